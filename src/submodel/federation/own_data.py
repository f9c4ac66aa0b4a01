"""Data of a device: read, checked against the run's facts, and cached on its disk.

A new process answers every message, so examples are cached as one file of tensors, under a key
that changes with the data. Shapes, types, labels and tokens must match those of the run.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from submodel.algorithm.types import PartitionedClients
from submodel.config import Config, DataSection, override, parse
from submodel.config.objective import apply_task, make_task
from submodel.config.parts import load_data, split_data
from submodel.core.amounts import si
from submodel.core.errors import ConfigError, DataError, plain
from submodel.core.options import compose
from submodel.data import Dataset, Examples
from submodel.data.builtin_data import SOURCES
from submodel.data.cache import cache_folder
from submodel.data.files import ArrayShapes, read_arrays
from submodel.data.images import normalise, stack_pictures
from submodel.data.parts import NO_TARGET
from submodel.data.sources import Encoding, SourceContext
from submodel.data.sources.folder import classes_in, images_in, open_image
from submodel.data.tables import TABLES
from submodel.data.text.streams import visible_files
from submodel.federation.facts import Facts
from submodel.federation.memory import free_memory
from submodel.model.inputs import columns, from_columns

ColumnShapes = Mapping[str, tuple[int, ...]]
"""Shapes of all rows of every column of the inputs, by name."""


def check_shapes(x: ColumnShapes, y: tuple[int, ...], facts: Facts) -> None:
    """Raise `DataError` unless inputs and targets are equally many and have the run's shapes.

    >>> check_shapes({"": (4, 3)}, (4,), Facts((2,), "float32", 3, (), (), ()))
    Traceback (most recent call last):
    submodel.core.errors.DataError: inputs of (3,), but the run's are (2,)
    """
    expected_columns = {column.name: column for column in facts.input_columns}
    if x.keys() != expected_columns.keys():
        raise DataError(
            f"inputs {plain(', '.join(x) or 'without names', 100)}, but the run's are "
            f"{', '.join(expected_columns) or 'a single tensor'}"
        )
    for name, shape in x.items():
        if not shape or not y or not shape[0] or shape[0] != y[0]:
            counts = [str(s[0]) if s else "a single number instead of" for s in (shape, y)]
            raise DataError(
                f"{counts[0]} inputs and {counts[1]} targets; their numbers must be equal and not 0"
            )
        if shape[1:] != expected_columns[name].shape:
            run_shape = expected_columns[name].shape
            which = f"inputs {name!r}" if name else "inputs"
            raise DataError(f"{which} of {plain(shape[1:], 60)}, but the run's are {run_shape}")
    if facts.classes is not None and len(y) > 1:
        raise DataError(f"targets of {plain(y[1:], 60)}, but the run's are labels, one number each")
    if y[1:] != facts.targets:
        raise DataError(f"targets of {plain(y[1:], 60)}, but the run's are {facts.targets}")


def conform(examples: Examples, facts: Facts, where: object) -> Examples:
    """Convert examples to the types of the run; raise `DataError` if they do not fit.

    Args:
        examples: examples of the device.
        facts: facts of the run.
        where: name of the data in errors.
    """
    tensors, y = columns(examples.x), examples.y
    try:
        check_shapes({n: tuple(t.shape) for n, t in tensors.items()}, tuple(y.shape), facts)
        inputs = {
            column.name: _as_type(tensors[column.name], column.dtype, "inputs")
            for column in facts.input_columns
        }
        y = _as_type(y, "int64" if facts.classes is not None else facts.target_dtype, "targets")
        _check_numbers(inputs, y, facts)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    return Examples(from_columns(inputs), y)


def _as_type(tensor: Tensor, name: str, what: str) -> Tensor:
    kind: torch.dtype = getattr(torch, name)
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise DataError(f"not all {what} are finite")
    numbers = tensor.to(kind)
    is_rounded = not kind.is_floating_point and tensor.is_floating_point()
    if is_rounded and not bool((numbers == tensor).all()):
        raise DataError(f"not all {what} are whole numbers, as the run's are")
    return numbers


def _check_numbers(inputs: Mapping[str, Tensor], y: Tensor, facts: Facts) -> None:
    """Raise `DataError` unless labels and tokens are within the run's range."""
    if facts.classes is not None and (int(y.min()) < 0 or int(y.max()) >= facts.classes):
        raise DataError(f"labels must be 0 to {facts.classes - 1}")
    if facts.vocabulary is None:
        return
    numbers = {"tokens": next(iter(inputs.values()))}
    if facts.task == "language":
        numbers["targets"] = y[y != NO_TARGET]
    for what, tensor in numbers.items():
        if tensor.numel() and not 0 <= int(tensor.min()) <= int(tensor.max()) < facts.vocabulary:
            raise DataError(f"{what} must be 0 to {facts.vocabulary - 1}, as the run's are")


def renumber_classes(data: Dataset, facts: Facts, where: object) -> Examples:
    """Return a device's training part with its classes numbered, by name, as in the run.

    Args:
        data: dataset of the device.
        facts: facts of the run.
        where: name of the data in errors.
    """
    about = data.about
    if about is None or not about.names or not facts.names or about.names == facts.names:
        return data.train
    numbers = {name: number for number, name in enumerate(facts.names)}
    present_classes = sorted(set(data.train.y.tolist()))
    if unknown := [about.names[c] for c in present_classes if about.names[c] not in numbers]:
        names = ", ".join(facts.names)
        raise DataError(f"{where}: {unknown[0]} is not a class of the run; its classes are {names}")
    table = torch.tensor([numbers.get(name, -1) for name in about.names])
    return Examples(data.train.x, table[data.train.y])


def picture_files(path: Path) -> list[Path]:
    """Return the pictures in the class folders of a folder, or of its folder ``train``."""
    top = path / "train" if (path / "train").is_dir() else path
    return [file for name in classes_in(top) for file in images_in(top / name)]


def read_pictures(path: Path, size: int | None, facts: Facts) -> Examples:
    """Read images from folders named by class; the run defines the classes' numbers."""
    names = facts.names or tuple(map(str, range(facts.classes or 0)))
    pictures, labels = [], []
    size_in_memory, free_bytes = 0, free_memory(torch.device("cpu"))
    for file in picture_files(path):
        name = file.parent.name
        if name not in names:
            raise DataError(
                f"{file.parent}: not a class of the run; its classes are {', '.join(names)}"
            )
        pictures.append(open_image(file, size))
        labels.append(names.index(name))
        # as read, and as they are trained on
        size_in_memory += pictures[-1].size * (1 + _value_bytes(facts.dtype))
        _check_memory(size_in_memory, free_bytes, path)
    if not pictures:
        raise DataError(f"{path}: no pictures; expected {path}/CLASS/*.png")
    (pixels,) = stack_pictures([pictures], str(path))
    if pixels.shape[1] == 1 and facts.inputs[0] == 3:
        pixels = np.repeat(pixels, 3, axis=1)
    mean, deviation = facts.mean, facts.deviation
    if len(mean) != pixels.shape[1]:
        mean, deviation = (0.0,) * pixels.shape[1], (1.0,) * pixels.shape[1]
    return Examples(normalise(pixels, mean, deviation), torch.tensor(labels))


def read_array_file(path: Path, facts: Facts) -> Examples:
    """Read inputs and targets from one .safetensors or .npz file.

    A single input is named x; several have the run's names, or x0, x1, ... by position.
    """
    names = {column.name: _array_name(column.name) for column in facts.input_columns}

    def check(shapes: ArrayShapes, size: int) -> None:
        check_shapes({name: shapes[array] for name, array in names.items()}, shapes["y"], facts)
        # as read, and as they are trained on
        size_in_memory = size + sum(
            math.prod(shapes[names[column.name]]) * _value_bytes(column.dtype)
            for column in facts.input_columns
        )
        _check_memory(size_in_memory, free_memory(torch.device("cpu")), path)

    try:
        *inputs, y = read_arrays(path, (*names.values(), "y"), check)
    except DataError as error:
        raise DataError(
            f"{path}: expected a folder CLASS/*.png, or .npz or .safetensors with arrays "
            f"{', '.join(names.values())} and y: {error}"
        ) from None
    return Examples(from_columns(dict(zip(names, inputs, strict=True))), y)


def _array_name(column: str) -> str:
    """Return the array name of a column.

    >>> _array_name(""), _array_name("1"), _array_name("input_ids")
    ('x', 'x1', 'input_ids')
    """
    return f"x{column}" if not column or column.isdigit() else column


def _value_bytes(dtype: str) -> int:
    """Return the bytes of one value of a type."""
    return torch.empty(0, dtype=getattr(torch, dtype)).element_size()


def _check_memory(size: int, free_bytes: int, path: Path) -> None:
    """Raise `DataError` if the data exceeds the memory, before it is allocated."""
    if size > free_bytes:
        raise DataError(
            f"{path}: needs {si(size, 'B')}, but half of the free memory is {si(free_bytes, 'B')}"
        )


_log = logging.getLogger(__name__)
_NOT_HERE = ("name", "path", "test_path", "source", "examples", "test_examples", "held_out",
             "least", "client", "partition", "augment")  # fmt: skip
"""Keys of the server's data that do not apply to a device's: location and selection."""


@dataclass(frozen=True)
class OwnData:
    """Location of a device's examples: a path, a named source, or a part of the run's data."""

    path: Path | None = None  # folder of class folders with pictures, or file of arrays
    part: int | None = None  # client whose part of the run's data to use
    name: str | None = None  # source, such as ``csv:PATH``, read with the run's configuration
    settings: tuple[str, ...] = ()  # overrides for this device, such as ``data.path=PLACE``

    @classmethod
    def of(cls, text: str, settings: tuple[str, ...] = ()) -> OwnData:
        """Return an existing path, or else the name of a source.

        >>> OwnData.of("mnist").name, OwnData.of("folder:/pictures").path
        ('mnist', PosixPath('/pictures'))
        """
        prefix, _, argument = text.partition(":")
        if prefix == "folder" and argument:
            return cls(Path(argument), settings=settings)
        if Path(text).expanduser().exists() or not SOURCES.accepts(text):
            return cls(Path(text), settings=settings)
        return cls(name=text, settings=settings)

    def read(
        self, config: Config, facts: Facts, receive: Callable[[], Encoding] = Encoding
    ) -> Examples:
        """Return the examples in the shapes and classes of the run.

        Args:
            config: configuration of the run.
            facts: facts of the run.
            receive: returns the server's encoding of text or tables.
        """
        if self.part is not None:
            key = _key("part", self.part, config.data, config.clients.client_count, config.seed,
                       config.task)  # fmt: skip
            return _read_once(key, lambda: _part(config, self.part))
        if self.name is not None:
            return self._read_named(self.name, config, facts, receive)
        if self.path is None:
            raise DataError("this device has no data: join with --data, or --part NUMBER")
        path = self.path.expanduser()
        size = getattr(self._section(config), "size", None)
        try:
            if not path.is_dir():
                return conform(read_array_file(path, facts), facts, path)
            files = [_identity(file) for file in picture_files(path)]
        except (OSError, ValueError) as error:  # unreadable, or not a file name
            raise DataError(f"{path}: {error}") from None
        task = make_task(config, facts.dataset)

        def read() -> Examples:
            return conform(task.examples(read_pictures(path, size, facts)), facts, path)

        return _read_once(_key("folder", size, facts, files, config.task), read)

    def _read_named(
        self, name: str, config: Config, facts: Facts, receive: Callable[[], Encoding]
    ) -> Examples:
        section = self._section(config)
        source = SOURCES.find(name)
        task = make_task(config, facts.dataset)

        def read() -> Examples:
            encoding = replace(receive(), mean=facts.mean, deviation=facts.deviation)
            data = source.make(section, SourceContext(source.argument, encoding=encoding))
            if data.about is not None and facts.mean and data.about.mean != facts.mean:
                raise DataError(f"{name}: its normalisation differs from that of the run's data")
            return conform(task.examples(renumber_classes(data, facts, name)), facts, name)

        if not SOURCES.is_builtin(name):
            return read()  # foreign code may return other examples each time
        places = [source.argument, getattr(section, "path", None)]
        files = [
            _identity(file)
            for place in places
            if place and (path := Path(place).expanduser()).exists()
            for file in visible_files(path)
        ]
        return _read_once(_key("named", section, facts, files, config.task), read)

    def _section(self, config: Config) -> DataSection:
        """Return section ``data`` of the run with the device's overrides."""
        own_values = override({}, self.settings)
        own_keys = own_values.get("data", {})
        foreign_keys = sorted(own_values.keys() - {"data"})
        if foreign_keys or not isinstance(own_keys, dict) or "name" in own_keys:
            wrong = foreign_keys[0] if foreign_keys else "data.name, which is --data,"
            raise ConfigError(f"--set {wrong}: expected data.KEY=VALUE")
        choice, name = config.data, self.name or config.data.name
        values = {
            key: getattr(choice, key)
            for key, field in type(choice).model_fields.items()
            if key not in _NOT_HERE and getattr(choice, key) != field.default
        }
        if name.startswith("text:") and Path(name).suffix.lower() not in TABLES:
            values.pop("column", None)  # plain text has no columns, though the server's data may
        values |= {"name": name, **own_keys}
        fields = compose(DataSection, values).model_fields
        return parse(
            {"data": {k: v for k, v in values.items() if k in fields or k in own_keys}}
        ).data


def _part(config: Config, client: int | None) -> Examples:
    source = load_data(config)
    if client is None or not 0 <= client < config.clients.client_count:
        raise DataError(
            f"part {client}: the run has clients 0 to {config.clients.client_count - 1}"
        )
    data = apply_task(make_task(config, source), source)
    return PartitionedClients(data, split_data(config, source)).examples(client)


def _identity(file: Path) -> tuple[str, int, int]:
    status = file.stat()
    return str(file), status.st_size, status.st_mtime_ns


def _key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _read_once(key: str, read: Callable[[], Examples]) -> Examples:
    """Return the examples cached under a key; read and cache them if missing."""
    file = cache_folder() / "devices" / f"{key}.safetensors"
    try:
        return _from_tensors(load_file(file))
    except (OSError, KeyError, TypeError, ValueError, SafetensorError):
        pass  # missing or damaged
    examples = read()
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(_to_tensors(examples), partial)
        partial.replace(file)
    except (OSError, SafetensorError) as error:
        _log.warning("%s: cannot cache the data (%s): it is read for every message", file, error)
        partial.unlink(missing_ok=True)
    return examples


_INPUTS = "x/"


def _to_tensors(examples: Examples) -> dict[str, Tensor]:
    inputs = {f"{_INPUTS}{name}": t.contiguous() for name, t in columns(examples.x).items()}
    # an autoencoder's targets are its inputs, and safetensors writes no tensor twice
    shared = any(examples.y.data_ptr() == tensor.data_ptr() for tensor in inputs.values())
    targets = examples.y.contiguous()
    return {**inputs, "y": targets.clone() if shared else targets}


def _from_tensors(tensors: Mapping[str, Tensor]) -> Examples:
    inputs = {n.removeprefix(_INPUTS): t for n, t in tensors.items() if n.startswith(_INPUTS)}
    examples = Examples(from_columns(inputs), tensors["y"])
    if not inputs or not all(0 < len(t) == len(examples.y) for t in inputs.values()):
        raise ValueError("damaged")
    return examples
