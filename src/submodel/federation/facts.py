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
from torch import Tensor, nn

from submodel.config import Config, parse, to_toml
from submodel.data import Dataset
from submodel.data.examples import About, Examples
from submodel.data.facts import TextFacts
from submodel.errors import plain
from submodel.federation.encoding import encoding_fingerprint, encoding_values
from submodel.federation.wire import PositiveInteger, WireError, read_as
from submodel.model.inputs import Inputs, columns, first_column, from_columns
from submodel.model.zoo import ModelContext
from submodel.prepare.findings import context_of, selection_of


@dataclass(frozen=True)
class InputColumn:
    """One of several inputs: its name (or place), and the shape and type of its rows."""

    name: str
    shape: tuple[PositiveInteger, ...]
    dtype: str

    def empty(self, rows: int) -> Tensor:
        """A tensor without values."""
        kind = getattr(torch, self.dtype)
        return torch.empty(rows, *self.shape, dtype=kind, device="meta")


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
    columns: tuple[InputColumn, ...] = ()  # of inputs, where there are several; else empty
    outputs: PositiveInteger | None = None  # of the model, where they are not the classes
    selects_logits: bool = False  # from the object that the model returns
    encoding: str = ""  # the fingerprint of how text or tables became numbers

    @classmethod
    def of(cls, data: Dataset, module: nn.Module | None = None) -> Facts:
        """What a server tells.

        Args:
            data: the server's own.
            module: the model that is trained, which may select its outputs.

        >>> from submodel.data import digits
        >>> Facts.of(digits()).inputs
        (1, 8, 8)
        """
        about, context = data.about, context_of(data)
        return cls(
            data.inputs,
            _type_name(first_column(data.example)),
            data.classes,
            about.names if about else (),
            about.mean if about else (),
            about.deviation if about else (),
            context.vocabulary,
            context.task,
            tuple(data.train.y.shape[1:]),
            _type_name(data.train.y),
            data.text is not None,
            _columns_of(data.example),
            context.classes,
            module is not None and selection_of(module) is not None,
            encoding_fingerprint(encoding_values(data)),
        )

    @property
    def model_context(self) -> ModelContext:
        """What the model is made for."""
        outputs = self.outputs or self.classes or 1
        return ModelContext(self.inputs, outputs, self.vocabulary, self.task)

    @property
    def input_columns(self) -> tuple[InputColumn, ...]:
        """Every tensor of the inputs."""
        return self.columns or (InputColumn("", self.inputs, self.dtype),)

    @property
    def example(self) -> Inputs:
        """A batch of two inputs without values."""
        return from_columns({column.name: column.empty(2) for column in self.input_columns})

    @property
    def dataset(self) -> Dataset:
        """A dataset of this kind, with nothing in it."""
        kind = getattr(torch, self.target_dtype)
        nothing = Examples(self.example, torch.empty(2, *self.targets, dtype=kind, device="meta"))
        text = TextFacts(self.vocabulary or 1, 1.0, "") if self.is_text else None
        about = About("server", self.names, self.mean, self.deviation) if self.names else None
        return Dataset(nothing, nothing, self.classes, about, text)


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
    _check_kind("dtype", facts.dtype, facts.inputs)
    _check_kind("targets", facts.target_dtype, facts.targets)
    for column in facts.columns:
        _check_kind("columns", column.dtype, column.shape)
    names = [column.name for column in facts.columns]
    places = [str(place) for place in range(len(names))]
    has_names = all(name and not name.isdigit() for name in names) and len(set(names)) == len(names)
    if len(names) > _MOST_COLUMNS or not (has_names or names == places):
        raise WireError(f"facts.columns: {plain(names, 60)} are no names of inputs")
    try:
        sections = tomllib.loads(read_as(_ConfigHead, head).config)
    except (ValueError, RecursionError) as error:
        raise WireError(f"config: {plain(error)}") from None
    return parse(sections), facts


def _check_kind(key: str, dtype: str, shape: tuple[int, ...]) -> None:
    if not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise WireError(f"facts.{key}: {plain(dtype, 60)!r} is no type of tensors")
    if math.prod(shape) > _LARGEST_INPUT or len(shape) > _MOST_DIMENSIONS:
        raise WireError(f"facts.{key}: {plain(shape, 60)} is no shape of an example")


def _type_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _columns_of(example: Inputs) -> tuple[InputColumn, ...]:
    if isinstance(example, Tensor):
        return ()
    tensors = columns(example)
    return tuple(
        InputColumn(name, tuple(tensor.shape[1:]), _type_name(tensor))
        for name, tensor in tensors.items()
    )


@dataclass(frozen=True)
class _ConfigHead:
    config: str


_LARGEST_INPUT, _MOST_DIMENSIONS, _MOST_COLUMNS = 1 << 31, 16, 100
