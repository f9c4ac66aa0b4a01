"""Errors, options, registries, randomness, files and units of measure. No PyTorch here."""

from typing import TYPE_CHECKING

from submodel.core.lazy import lazily

if TYPE_CHECKING:
    from submodel.core.amounts import duration, parse_amount, parse_capacity, si
    from submodel.core.errors import (
        CallbackError,
        CheckpointError,
        ConfigError,
        DataError,
        DivergedError,
        Interruption,
        LostProcessError,
        PlanError,
        SilentRoundError,
        SubmodelError,
        plain,
    )
    from submodel.core.extras import MissingExtraError, needs_extra
    from submodel.core.files import JsonNumber, UnreadableError, read_typed, write_text
    from submodel.core.options import Capacity, Count, Decay, PathText, Positive, Section
    from submodel.core.randomness import generator, key, permute_index
    from submodel.core.registry import Component, Entry, Registry, find

__all__ = [
    "CallbackError", "Capacity", "CheckpointError", "Component", "ConfigError", "Count",
    "DataError", "Decay", "DivergedError", "Entry", "Interruption", "JsonNumber",
    "LostProcessError", "MissingExtraError", "PathText", "PlanError", "Positive", "Registry",
    "Section", "SilentRoundError", "SubmodelError", "UnreadableError", "duration", "find",
    "generator", "key", "lazily", "needs_extra", "parse_amount", "parse_capacity",
    "permute_index", "plain", "read_typed", "si", "write_text",
]  # fmt: skip
__getattr__ = lazily(__name__)
