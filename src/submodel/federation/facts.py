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
from submodel.data.text.facts import TextFacts
from submodel.errors import ConfigError, plain
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
    targets: tuple[PositiveInteger, ...] = ()  # the shape of one
    target_dtype: str = "int64"
    is_text: bool = False

    @classmethod
    def of(cls, data: Dataset) -> Facts:
        """What a server tells.

        >>> from submodel.data import digits
        >>> Facts.of(digits()).inputs
        (1, 8, 8)
        """
        about, context = data.about, context_of(data)
        if not isinstance(data.example, Tensor):
            raise ConfigError(["engine.name: 'flower' takes one tensor of inputs, not several"])
        return cls(
            data.inputs,
            str(data.example.dtype).removeprefix("torch."),
            data.classes,
            about.names if about else (),
            about.mean if about else (),
            about.deviation if about else (),
            context.vocabulary,
            context.task,
            tuple(data.train.y.shape[1:]),
            str(data.train.y.dtype).removeprefix("torch."),
            data.text is not None,
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
        kind = getattr(torch, self.target_dtype)
        nothing = Examples(self.example, torch.empty(2, *self.targets, dtype=kind, device="meta"))
        text = TextFacts(self.vocabulary or 1, 1.0, "") if self.is_text else None
        return Dataset(nothing, nothing, self.classes, text=text)


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
    for key in ("dtype", "target_dtype"):
        if not isinstance(getattr(torch, name := getattr(facts, key), None), torch.dtype):
            raise WireError(f"facts.{key}: {plain(name, 60)!r} is no type of tensors")
    for key in ("inputs", "targets"):
        shape = getattr(facts, key)
        if math.prod(shape) > _LARGEST_INPUT or len(shape) > _MOST_DIMENSIONS:
            raise WireError(f"facts.{key}: {plain(shape, 60)} is no shape of an example")
    try:
        sections = tomllib.loads(read_as(_ConfigHead, head).config)
    except (ValueError, RecursionError) as error:
        raise WireError(f"config: {plain(error)}") from None
    return parse(sections), facts


@dataclass(frozen=True)
class _ConfigHead:
    config: str


_LARGEST_INPUT, _MOST_DIMENSIONS = 1 << 31, 16
