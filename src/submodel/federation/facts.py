"""What a device must know of a run beside its task: the configuration and facts about the data."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from submodel.config import Config, parse, to_toml
from submodel.data import Dataset
from submodel.data.examples import Examples
from submodel.errors import plain
from submodel.federation.wire import PositiveInteger, WireError, read_as
from submodel.model.zoo import ModelContext
from submodel.prepare.model_context import context_of


@dataclass(frozen=True)
class Facts:
    """Of the data as the server knows it; devices shape their own alike."""

    inputs: tuple[PositiveInteger, ...]
    dtype: str
    classes: PositiveInteger | None
    names: tuple[str, ...]  # of the classes; empty: they are numbers
    mean: tuple[float, ...]  # of every channel; empty: inputs come as they are
    deviation: tuple[float, ...]
    vocabulary: PositiveInteger | None = None  # how many tokens, where inputs are tokens
    task: str | None = None  # as `ModelContext` has it

    @classmethod
    def of(cls, data: Dataset) -> Facts:
        """What a server tells.

        >>> from submodel.data import digits
        >>> Facts.of(digits()).inputs
        (1, 8, 8)
        """
        about, context = data.about, context_of(data)
        return cls(
            data.inputs,
            str(data.example.dtype).removeprefix("torch."),
            data.classes,
            about.names if about else (),
            about.mean if about else (),
            about.deviation if about else (),
            context.vocabulary,
            context.task,
        )

    @property
    def model_context(self) -> ModelContext:
        """What the model is made for."""
        outputs = self.vocabulary if self.task == "language" else self.classes
        return ModelContext(self.inputs, outputs or 1, self.vocabulary, self.task)

    @property
    def example(self) -> Tensor:
        """A batch of two inputs without values."""
        return torch.empty(2, *self.inputs, dtype=getattr(torch, self.dtype), device="meta")

    @property
    def dataset(self) -> Dataset:
        """A dataset of this kind, with nothing in it."""
        nothing = Examples(self.example, torch.empty(2, dtype=torch.int64, device="meta"))
        return Dataset(nothing, nothing, self.classes)


def briefing(config: Config, facts: Facts) -> dict[str, Any]:
    """What the head of every message to a device says of the run."""
    return {"config": to_toml(config), "facts": asdict(facts)}


def digest(head: Mapping[str, Any]) -> str:
    """Equal for heads that brief alike.

    >>> digest({"config": "", "facts": {}, "units": 1}) == digest({"config": "", "facts": {}})
    True
    """
    briefing_text = json.dumps([head.get("config"), head.get("facts")], sort_keys=True)
    return hashlib.sha256(briefing_text.encode()).hexdigest()


def read_briefing(head: Mapping[str, Any]) -> tuple[Config, Facts]:
    """What `briefing` said; raises `WireError`, or `ConfigError`, for anything else."""
    facts = read_as(Facts, head.get("facts"))
    if not isinstance(getattr(torch, facts.dtype, None), torch.dtype):
        raise WireError(f"facts.dtype: {plain(facts.dtype, 60)!r} is no type of tensors")
    if math.prod(facts.inputs) > _LARGEST_INPUT or len(facts.inputs) > _MOST_DIMENSIONS:
        raise WireError(f"facts.inputs: {plain(facts.inputs, 60)} is no shape of an example")
    try:
        sections = tomllib.loads(read_as(_ConfigHead, head).config)
    except (ValueError, RecursionError) as error:
        raise WireError(f"config: {plain(error)}") from None
    return parse(sections), facts


@dataclass(frozen=True)
class _ConfigHead:
    config: str


_LARGEST_INPUT, _MOST_DIMENSIONS = 1 << 31, 16
