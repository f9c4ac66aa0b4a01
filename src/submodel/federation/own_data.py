"""The data that a device has: read, checked against what the run wants, kept ready on its disk.

A fresh process answers every message, so what was read once is kept as one file of tensors, under
a name that changes when the data does.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from submodel.algorithm.clients import PartitionedClients
from submodel.amounts import si
from submodel.config import Config
from submodel.data import Examples
from submodel.data.arrays import ArrayShapes, read_arrays
from submodel.data.cache import cache_folder
from submodel.data.images import normalise, stack_pictures
from submodel.data.sources.folder import classes_in, images_in, open_image
from submodel.errors import DataError, plain
from submodel.federation.facts import Facts
from submodel.federation.memory import free_memory
from submodel.model.inputs import first_column
from submodel.prepare.parts import load_data, split_data

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OwnData:
    """Where a device's examples are: in a folder or a file, or a part of the run's own data."""

    path: Path | None = None
    part: int | None = None  # the client whose part of the configured data this device plays

    def read(self, config: Config, facts: Facts) -> Examples:
        """The examples, in the shapes and classes of the run."""
        if self.part is not None:
            key = _key("part", self.part, config.data, config.clients.client_count, config.seed)
            return _read_once(key, lambda: _part(config, self.part))
        if self.path is None:
            raise DataError("this device has no data: join with --data DIR, or --part NUMBER")
        path = self.path.expanduser()
        try:
            if not path.is_dir():
                return _file(path, facts)
            files = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in _files(path)]
        except (OSError, ValueError) as error:  # not readable, or no name of a file
            raise DataError(f"{path}: {error}") from None
        size = getattr(config.data, "size", None)
        key = _key("folder", size, facts, files)
        return _read_once(key, lambda: _conform(_folder(path, size, facts), facts, path))


def _part(config: Config, client: int | None) -> Examples:
    data = load_data(config)
    if client is None or not 0 <= client < config.clients.client_count:
        raise DataError(
            f"part {client}: the run has clients 0 to {config.clients.client_count - 1}"
        )
    return PartitionedClients(data, split_data(config, data)).examples(client)


def _files(path: Path) -> list[Path]:
    top = path / "train" if (path / "train").is_dir() else path
    return [file for name in classes_in(top) for file in images_in(top / name)]


def _folder(path: Path, size: int | None, facts: Facts) -> Examples:
    """Images in folders named by their class; the run knows the classes' numbers."""
    names = facts.names or tuple(map(str, range(facts.classes or 0)))
    pictures, labels = [], []
    size_in_memory, room = 0, free_memory(torch.device("cpu"))
    for file in _files(path):
        name = file.parent.name
        if name not in names:
            raise DataError(f"{file.parent}: no class of the run; those are {', '.join(names)}")
        pictures.append(open_image(file, size))
        labels.append(names.index(name))
        # as read, and as they are trained on
        size_in_memory += pictures[-1].size * (1 + _value_bytes(facts))
        _check_room(size_in_memory, room, path)
    if not pictures:
        raise DataError(f"{path}: no pictures in it; want {path}/CLASS/*.png")
    (pixels,) = stack_pictures([pictures], str(path))
    if pixels.shape[1] == 1 and facts.inputs[0] == 3:
        pixels = np.repeat(pixels, 3, axis=1)
    mean, deviation = facts.mean, facts.deviation
    if len(mean) != pixels.shape[1]:
        mean, deviation = (0.0,) * pixels.shape[1], (1.0,) * pixels.shape[1]
    return Examples(normalise(pixels, mean, deviation), torch.tensor(labels))


def _file(path: Path, facts: Facts) -> Examples:
    """Tensors x and y of one file, .safetensors or .npz, ready to be trained on."""

    def check(shapes: ArrayShapes, size: int) -> None:
        _check_shapes(shapes["x"], shapes["y"], facts)
        # as read, and as they are trained on
        size_in_memory = size + math.prod(shapes["x"]) * _value_bytes(facts)
        _check_room(size_in_memory, free_memory(torch.device("cpu")), path)

    try:
        x, y = read_arrays(path, ("x", "y"), check)
    except DataError as error:
        raise DataError(
            f"{path}: want a folder CLASS/*.png, or .npz or .safetensors with arrays x and y: "
            f"{error}"
        ) from None
    return _conform(Examples(x, y), facts, path)


def _check_shapes(x: tuple[int, ...], y: tuple[int, ...], facts: Facts) -> None:
    if not x or not y or not x[0] or x[0] != y[0]:
        counts = [str(shape[0]) if shape else "a single number instead of" for shape in (x, y)]
        raise DataError(f"{counts[0]} inputs and {counts[1]} targets; want as many, not 0")
    if x[1:] != facts.inputs:
        raise DataError(f"inputs of {plain(x[1:], 60)}, but the run's are {facts.inputs}")
    if facts.classes is not None and len(y) > 1:
        raise DataError(f"targets of {plain(y[1:], 60)}, but the run's are labels, one number each")


def _value_bytes(facts: Facts) -> int:
    """The bytes of one value of an input."""
    return torch.empty(0, dtype=getattr(torch, facts.dtype)).element_size()


def _check_room(size: int, room: int, path: Path) -> None:
    """Refuse what the device cannot hold, before it is held."""
    if size > room:
        raise DataError(
            f"{path}: {si(size, 'B')} to be held, but half of the free memory is {si(room, 'B')}"
        )


def _conform(examples: Examples, facts: Facts, path: Path) -> Examples:
    """The examples in the types of the run, if their shapes and values are such as it wants."""
    x, y = first_column(examples.x), examples.y
    try:
        _check_shapes(tuple(x.shape), tuple(y.shape), facts)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    for what, tensor in {"inputs": x, "targets": y}.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise DataError(f"{path}: not all {what} are finite")
    if facts.classes is not None:
        y = y.long()
        if int(y.min()) < 0 or int(y.max()) >= facts.classes:
            raise DataError(f"{path}: labels must be 0 to {facts.classes - 1}")
    return Examples(x.to(getattr(torch, facts.dtype)), y)


def _key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _read_once(key: str, read: Callable[[], Examples]) -> Examples:
    """The examples that were kept under a key, or what is read now and kept under it."""
    file = cache_folder() / "devices" / f"{key}.safetensors"
    try:
        tensors = load_file(file)
        if 0 < len(tensors["x"]) == len(tensors["y"]):
            return Examples(tensors["x"], tensors["y"])
    except (OSError, KeyError, TypeError, ValueError, SafetensorError):
        pass  # not there, or damaged
    examples = read()
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        x = first_column(examples.x)
        save_file({"x": x.contiguous(), "y": examples.y.contiguous()}, partial)
        partial.replace(file)
    except (OSError, SafetensorError) as error:
        _log.warning("%s: cannot keep the data there (%s): it is read every time", file, error)
        partial.unlink(missing_ok=True)
    return examples
