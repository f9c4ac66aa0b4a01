"""Facts that a device needs of a run beside its task: configuration and properties of the data.

The encoding of text or tables as numbers, such as a tokeniser, may have megabytes. It is sent with
the request for a report, not with every task; the device keeps it on its disk under a fingerprint
that every message carries.
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
from submodel.config.model_facts import context_of, selection_of
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
"""Size limit of an encoding in a message."""
_log = logging.getLogger(__name__)
_KEY = "encoding"
_NOTHING: dict[str, Any] = {"tokens": None, "table": None}


@dataclass(frozen=True)
class _EncodingHead:
    """Encoding in the head of a request for a report."""

    tokens: str | None
    table: TableFacts | None


def encoding_values(data: Dataset) -> dict[str, Any]:
    """Return the encoding of text or a table as plain values.

    >>> from submodel.data import digits
    >>> encoding_values(digits())
    {'tokens': None, 'table': None}
    """
    tokens = None if data.text is None else data.text.tokens
    return {"tokens": tokens, "table": None if data.table is None else asdict(data.table)}


def encoding_fingerprint(values: Mapping[str, Any]) -> str:
    """Return a fingerprint of an encoding; empty if there is none.

    >>> encoding_fingerprint({"tokens": None, "table": None})
    ''
    """
    if values == _NOTHING:
        return ""
    return hashlib.sha256(_text(values).encode()).hexdigest()


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)


def encoding_head(data: Dataset) -> dict[str, Any]:
    """Return the encoding for a head; raise `ConfigError` if it is too large to send."""
    values = encoding_values(data)
    if values == _NOTHING:
        return {}
    if (size := len(_text(values))) > _MOST_BYTES:
        raise ConfigError(
            f"data.tokens: {size:,} bytes of tokens; devices are sent {_MOST_BYTES:,} at most"
        )
    return {_KEY: values}


def receive_encoding(head: Mapping[str, Any], fingerprint: str) -> Encoding:
    """Return the encoding of a message, or the one kept from an earlier message."""
    if not fingerprint:
        return Encoding()
    if len(fingerprint) != 64 or not fingerprint.isalnum() or not fingerprint.isascii():
        raise WireError(f"facts.encoding: {plain(fingerprint, 60)!r} is not a fingerprint")
    if _KEY in head:
        return _check_encoding(head[_KEY], fingerprint)
    file = _file_of(fingerprint)
    try:
        return _check_encoding(json.loads(read_text(file, _MOST_BYTES)), fingerprint)
    except (UnreadableError, WireError, ValueError, RecursionError) as error:
        raise DataError(
            f"{file}: the server's tokens are missing ({plain(error)}); leave and join again, "
            "with the environment variable SUBMODEL_DATA set to a writable folder"
        ) from None


def keep_encoding(head: Mapping[str, Any], fingerprint: str) -> None:
    """Write the encoding of a message, if it has one, for later processes."""
    if not fingerprint or _KEY not in head:
        return
    receive_encoding(head, fingerprint)  # raises unless it is valid
    file = _file_of(fingerprint)
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(_text(head[_KEY]), "utf-8")
        partial.replace(file)
    except OSError as error:
        _log.warning("%s: cannot write the server's tokens (%s)", file, error)
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
        raise WireError("encoding: it does not match the fingerprint of the facts")
    return Encoding(tokens=head.tokens, table=head.table)


@dataclass(frozen=True)
class InputColumn:
    """One of several inputs: name or position, shape and type of its rows."""

    name: str
    shape: tuple[PositiveInteger, ...]
    dtype: str

    def empty(self, rows: int) -> Tensor:
        """Return a tensor without values."""
        kind = getattr(torch, self.dtype)
        return torch.empty(rows, *self.shape, dtype=kind, device="meta")


@dataclass(frozen=True)
class Facts:
    """Properties of the server's data; devices give theirs the same form."""

    inputs: tuple[PositiveInteger, ...]
    dtype: str
    classes: PositiveInteger | None
    names: tuple[str, ...]  # of the classes; empty: they are numbered
    mean: tuple[float, ...]  # of every channel; empty: inputs are not normalised
    deviation: tuple[float, ...]
    vocabulary: PositiveInteger | None = None  # number of tokens, if inputs are tokens
    task: str | None = None  # as in `ModelContext`
    targets: tuple[PositiveInteger, ...] = ()  # shape of one target
    target_dtype: str = "int64"
    is_text: bool = False
    columns: tuple[InputColumn, ...] = ()  # of several inputs; empty for one
    outputs: PositiveInteger | None = None  # of the model, if they are not the classes
    selects_logits: bool = False  # from the model's output object
    encoding: str = ""  # fingerprint of the encoding of text or tables

    @classmethod
    def of(cls, data: Dataset, module: nn.Module | None = None) -> Facts:
        """Return the facts of a dataset and a model.

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
        """Context to build the model in."""
        outputs = self.outputs or self.classes or 1
        return ModelContext(self.inputs, outputs, self.vocabulary, self.task)

    @property
    def input_columns(self) -> tuple[InputColumn, ...]:
        """Columns of the inputs; a single input is one column without a name."""
        return self.columns or (InputColumn("", self.inputs, self.dtype),)

    @property
    def example(self) -> Inputs:
        """Batch of two inputs without values."""
        return from_columns({column.name: column.empty(2) for column in self.input_columns})

    @property
    def dataset(self) -> Dataset:
        """Dataset of this kind without values."""
        kind = getattr(torch, self.target_dtype)
        nothing = Examples(self.example, torch.empty(2, *self.targets, dtype=kind, device="meta"))
        text = TextFacts(self.vocabulary or 1, 1.0, "") if self.is_text else None
        about = About("server", self.names, self.mean, self.deviation) if self.names else None
        return Dataset(nothing, nothing, self.classes, about, text)


def run_head(config: Config, facts: Facts) -> dict[str, Any]:
    """Return the part of a message's head that describes the run."""
    return {"config": to_toml(config), "facts": asdict(facts)}


def digest(head: Mapping[str, Any]) -> str:
    """Return a digest of a head's description of the run.

    >>> digest({"config": "", "facts": {}, "units": 1}) == digest({"config": "", "facts": {}})
    True
    """
    text = json.dumps([head.get("config"), head.get("facts")], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_run_head(head: Mapping[str, Any]) -> tuple[Config, Facts]:
    """Read the values of `run_head`; raise `WireError` or `ConfigError` for anything else."""
    facts = read_as(Facts, head.get("facts"))
    _check_kind("dtype", facts.dtype, facts.inputs)
    _check_kind("targets", facts.target_dtype, facts.targets)
    for column in facts.columns:
        _check_kind("columns", column.dtype, column.shape)
    names = [column.name for column in facts.columns]
    places = [str(place) for place in range(len(names))]
    has_names = all(name and not name.isdigit() for name in names) and len(set(names)) == len(names)
    if len(names) > _MOST_COLUMNS or not (has_names or names == places):
        raise WireError(f"facts.columns: {plain(names, 60)} are not names of inputs")
    try:
        sections = tomllib.loads(read_as(_ConfigHead, head).config)
    except (ValueError, RecursionError) as error:
        raise WireError(f"config: {plain(error)}") from None
    return parse(sections), facts


def _check_kind(key: str, dtype: str, shape: tuple[int, ...]) -> None:
    if not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise WireError(f"facts.{key}: {plain(dtype, 60)!r} is not a tensor type")
    if math.prod(shape) > _LARGEST_INPUT or len(shape) > _MOST_DIMENSIONS:
        raise WireError(f"facts.{key}: {plain(shape, 60)} is not the shape of an example")


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
