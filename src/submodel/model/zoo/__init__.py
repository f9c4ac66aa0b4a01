"""The built-in models, a file for each, layers as products of low-rank ones, and adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from submodel.errors import ConfigError
from submodel.model.registry import MODELS
from submodel.model.zoo.adapters import add_adapters, fold_adapters
from submodel.model.zoo.context import ModelContext
from submodel.model.zoo.low_rank import factorised
from submodel.model.zoo.ranks import only_ranks

__all__ = [
    "ModelContext",
    "add_adapters",
    "factorised",
    "fold_adapters",
    "make_model",
    "only_ranks",
]


def make_model(
    name: str, inputs: Sequence[int], classes: int, width: int | None = None, **keys: Any
) -> nn.Module:
    """A model by name, for inputs of a shape and a number of classes.

    >>> make_model("mlp", (1, 8, 8), 10, width=16)[1]
    Linear(in_features=64, out_features=16, bias=True)
    """
    if not isinstance(classes, int) or classes < 1:
        raise ConfigError([f"model.classes: {classes!r} is not a whole number of at least 1"])
    model = MODELS.find(name)
    values = {**keys, **({} if width is None else {"width": width})}
    options = model.options.model_validate(values)
    return model.make(options, ModelContext(inputs, classes))
