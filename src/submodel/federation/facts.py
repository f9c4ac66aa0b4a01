"""What a device must know of a run beside its task: the configuration and facts about the data.

How text or a table became numbers is sent to devices that have others. A tokeniser may have
megabytes. It goes out with the question who a device is, not with every task; the device keeps it
on its disk, under a fingerprint that every message has.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from submodel.config import Config, parse, to_toml
from submodel.config.findings import context_of, selection_of
from submodel.core.errors import ConfigError, DataError, plain
from submodel.core.files import UnreadableError, read_text
from submodel.data import Dataset
from submodel.data.cache import cache_folder
from submodel.data.examples import About, Examples
from submodel.data.facts import TableFacts, TextFacts
from submodel.data.sources import Encoding
from submodel.federation.wire import PositiveInteger, WireError, read_as
from submodel.model.inputs import Inputs, columns, first_column, from_columns
from submodel.model.zoo import ModelContext

_MOST_BYTES = 1 << 25
"""Of an encoding, as it travels."""
_log = logging.getLogger(__name__)
_KEY = "encoding"
_NOTHING: dict[str, Any] = {"tokens": None, "table": None}


@dataclass(frozen=True)
class _EncodingHead:
    """What the head of a question says."""

    tokens: str | None
    table: TableFacts | None


def encoding_values(data: Dataset) -> dict[str, Any]:
    """How text or a table became numbers, as plain values.

    >>> from submodel.data import digits
    >>> encoding_values(digits())
    {'tokens': None, 'table': None}
    """
    tokens = None if data.text is None else data.text.tokens
    return {"tokens": tokens, "table": None if data.table is None else asdict(data.table)}


def encoding_fingerprint(values: Mapping[str, Any]) -> str:
    """Equal for equal values; empty where there are none.

    >>> encoding_fingerprint({"tokens": None, "table": None})
    ''
    """
    if values == _NOTHING:
        return ""
    return hashlib.sha256(_text(values).encode()).hexdigest()


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)


def encoding_head(data: Dataset) -> dict[str, Any]:
    """What a question says in addition; raises `ConfigError` where that is too much to send."""
    values = encoding_values(data)
    if values == _NOTHING:
        return {}
    if (size := len(_text(values))) > _MOST_BYTES:
        raise ConfigError(
            f"data.tokens: {size:,} bytes of tokens; devices are sent {_MOST_BYTES:,} at most"
        )
    return {_KEY: values}


def receive_encoding(head: Mapping[str, Any], fingerprint: str) -> Encoding:
    """The encoding that a message has, which is kept from then on, or that an earlier one had."""
    if not fingerprint:
        return Encoding()
    if len(fingerprint) != 64 or not fingerprint.isalnum() or not fingerprint.isascii():
        raise WireError(f"facts.encoding: {plain(fingerprint, 60)!r} is no fingerprint")
    if _KEY in head:
        return _check_encoding(head[_KEY], fingerprint)
    file = _file_of(fingerprint)
    try:
        return _check_encoding(json.loads(read_text(file, _MOST_BYTES)), fingerprint)
    except (UnreadableError, WireError, ValueError, RecursionError) as error:
        raise DataError(
            f"{file}: the server's tokens are not there ({plain(error)}); leave and join again, "
            "with the environment variable SUBMODEL_DATA set to a folder that can be written"
        ) from None


def keep_encoding(head: Mapping[str, Any], fingerprint: str) -> None:
    """Write the encoding of a message, if it has one, where later processes find it."""
    if not fingerprint or _KEY not in head:
        return
    receive_encoding(head, fingerprint)  # it is one
    file = _file_of(fingerprint)
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(_text(head[_KEY]), "utf-8")
        partial.replace(file)
    except OSError as error:
        _log.warning("%s: cannot keep the server's tokens there (%s)", file, error)
        partial.unlink(missing_ok=True)


def _file_of(fingerprint: str) -> Path:
    return cache_folder() / "devices" / f"encoding-{fingerprint}.json"


def _check_encoding(values: Any, fingerprint: str) -> Encoding:
    head = read_as(_EncodingHead, values)
    table = head.table
    if table is not None and not table.columns:
        raise WireError("encoding: a table without columns")
    for code in () if table is None else (*table.columns, *filter(None, [table.target])):
        if not (math.isfinite(code.mean) and 0 < code.deviation < math.inf):
            raise WireError(f"encoding: column {plain(code.name, 60)!r} has no mean and deviation")
        if code.fill and (
            len(code.fill) != len(code.words or ()) or not all(0 <= f <= 1 for f in code.fill)
        ):
            raise WireError(f"encoding: column {plain(code.name, 60)!r} has no shares of its words")
    if encoding_fingerprint(values) != fingerprint:
        raise WireError("encoding: it is another one than the facts say")
    return Encoding(tokens=head.tokens, table=head.table)


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
