"""The data that a device has: read, checked against what the run wants, kept ready on its disk.

A fresh process answers every message, so what was read once is kept as one file of tensors, under
a name that changes when the data does.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from submodel.config import Config
from submodel.data import Examples
from submodel.data.cache import cache_folder
from submodel.data.folder import classes_in, images_in, open_image
from submodel.data.images import normalise, stack
from submodel.devices.facts import Facts
from submodel.errors import DataError
from submodel.exchange import Federation
from submodel.prepare import load_data, split_data

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OwnData:
    """Where a device's examples are: in a folder or a file, or a part of the run's own data."""

    path: Path | None = None
    part: int | None = None  # the client whose part of the configured data this device plays

    def read(self, config: Config, facts: Facts) -> Examples:
        """The examples, in the shapes and classes of the run."""
        if self.part is not None:
            shared = config.data, config.clients.count, config.seed
            return _kept(_key("part", self.part, *shared), lambda: _part(config, self.part))
        if self.path is None:
            raise DataError("this device has no data: join with --data DIR, or --part NUMBER")
        path = self.path.expanduser()
        if path.is_dir():
            found = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in _files(path)]
            key = _key("folder", config.data.size, facts, found)
            return _kept(key, lambda: _checked(_folder(path, config.data.size, facts), facts, path))
        return _checked(_file(path), facts, path)


def _part(config: Config, client: int | None) -> Examples:
    data = load_data(config)
    if client is None or not 0 <= client < config.clients.count:
        raise DataError(f"part {client}: the run has clients 0 to {config.clients.count - 1}")
    return Federation(data, split_data(config, data)).examples(client)


def _files(path: Path) -> list[Path]:
    top = path / "train" if (path / "train").is_dir() else path
    return [file for name in classes_in(top) for file in images_in(top / name)]


def _folder(path: Path, size: int | None, facts: Facts) -> Examples:
    """Images in folders named by their class; the run knows the classes' numbers."""
    names = facts.names or tuple(map(str, range(facts.classes or 0)))
    pictures, labels = [], []
    for file in _files(path):
        name = file.parent.name
        if name not in names:
            raise DataError(f"{file.parent}: no class of the run; those are {', '.join(names)}")
        pictures.append(open_image(file, size))
        labels.append(names.index(name))
    if not pictures:
        raise DataError(f"{path}: no pictures in it; want {path}/CLASS/*.png")
    (pixels,) = stack([pictures], str(path))
    if pixels.shape[1] == 1 and facts.inputs[0] == 3:
        pixels = np.repeat(pixels, 3, axis=1)
    mean, deviation = facts.mean, facts.deviation
    if len(mean) != pixels.shape[1]:
        mean, deviation = (0.0,) * pixels.shape[1], (1.0,) * pixels.shape[1]
    return Examples(normalise(pixels, mean, deviation), torch.tensor(labels))


def _file(path: Path) -> Examples:
    """Tensors x and y of one file, .safetensors or .npz, ready to be trained on."""
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                found: Mapping[str, Tensor] = {
                    name: torch.from_numpy(arrays[name]) for name in ("x", "y")
                }
        else:
            found = load_file(path)
        return Examples(found["x"], found["y"])
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise DataError(
            f"{path}: want a folder CLASS/*.png, or .npz or .safetensors with arrays x and y "
            f"({error})"
        ) from None


def _checked(examples: Examples, facts: Facts, path: Path) -> Examples:
    x, y = examples.x, examples.y
    if not len(x) or len(x) != len(y):
        raise DataError(f"{path}: {len(x)} inputs and {len(y)} targets; want as many, not 0")
    if tuple(x.shape[1:]) != facts.inputs:
        raise DataError(f"{path}: inputs of {tuple(x.shape[1:])}, but the run's are {facts.inputs}")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise DataError(f"{path}: not all inputs are finite")
    if facts.classes is not None:
        y = y.long()
        if int(y.min()) < 0 or int(y.max()) >= facts.classes:
            raise DataError(f"{path}: labels must be 0 to {facts.classes - 1}")
    return Examples(x.to(getattr(torch, facts.dtype)), y)


def _key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _kept(key: str, read: Callable[[], Examples]) -> Examples:
    """What was read before, or is read now and kept."""
    file = cache_folder() / "devices" / f"{key}.safetensors"
    try:
        found = load_file(file)
        return Examples(found["x"], found["y"])
    except (OSError, KeyError, SafetensorError):
        examples = read()
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({"x": examples.x.contiguous(), "y": examples.y.contiguous()}, partial)
        partial.replace(file)
    except (OSError, SafetensorError) as error:
        _log.warning("%s: cannot keep the data there (%s): it is read every time", file, error)
        partial.unlink(missing_ok=True)
    return examples
