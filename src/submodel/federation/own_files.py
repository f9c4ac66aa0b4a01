"""Pictures in folders and arrays in files, as a device has them: measured, then read."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from submodel.amounts import si
from submodel.data import Examples
from submodel.data.files import ArrayShapes, read_arrays
from submodel.data.images import normalise, stack_pictures
from submodel.data.sources.folder import classes_in, images_in, open_image
from submodel.errors import DataError
from submodel.federation.conform import check_shapes
from submodel.federation.facts import Facts
from submodel.federation.memory import free_memory
from submodel.model.inputs import from_columns


def picture_files(path: Path) -> list[Path]:
    """The pictures of a folder with folders of classes, or of its folder ``train``."""
    top = path / "train" if (path / "train").is_dir() else path
    return [file for name in classes_in(top) for file in images_in(top / name)]


def read_pictures(path: Path, size: int | None, facts: Facts) -> Examples:
    """Images in folders named by their class; the run knows the classes' numbers."""
    names = facts.names or tuple(map(str, range(facts.classes or 0)))
    pictures, labels = [], []
    size_in_memory, room = 0, free_memory(torch.device("cpu"))
    for file in picture_files(path):
        name = file.parent.name
        if name not in names:
            raise DataError(f"{file.parent}: no class of the run; those are {', '.join(names)}")
        pictures.append(open_image(file, size))
        labels.append(names.index(name))
        # as read, and as they are trained on
        size_in_memory += pictures[-1].size * (1 + _value_bytes(facts.dtype))
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


def read_array_file(path: Path, facts: Facts) -> Examples:
    """Inputs and y of one file, .safetensors or .npz, ready to be trained on.

    A single input is called x; several are called as the run does, or x0, x1, ... by their place.
    """
    names = {column.name: _array_name(column.name) for column in facts.input_columns}

    def check(shapes: ArrayShapes, size: int) -> None:
        check_shapes({name: shapes[array] for name, array in names.items()}, shapes["y"], facts)
        # as read, and as they are trained on
        size_in_memory = size + sum(
            math.prod(shapes[names[column.name]]) * _value_bytes(column.dtype)
            for column in facts.input_columns
        )
        _check_room(size_in_memory, free_memory(torch.device("cpu")), path)

    try:
        *inputs, y = read_arrays(path, (*names.values(), "y"), check)
    except DataError as error:
        raise DataError(
            f"{path}: want a folder CLASS/*.png, or .npz or .safetensors with arrays "
            f"{', '.join(names.values())} and y: {error}"
        ) from None
    return Examples(from_columns(dict(zip(names, inputs, strict=True))), y)


def _array_name(column: str) -> str:
    """What the array of a column is called.

    >>> _array_name(""), _array_name("1"), _array_name("input_ids")
    ('x', 'x1', 'input_ids')
    """
    return f"x{column}" if not column or column.isdigit() else column


def _value_bytes(dtype: str) -> int:
    """The bytes of one value of a type."""
    return torch.empty(0, dtype=getattr(torch, dtype)).element_size()


def _check_room(size: int, room: int, path: Path) -> None:
    """Refuse what the device cannot hold, before it is held."""
    if size > room:
        raise DataError(
            f"{path}: {si(size, 'B')} to be held, but half of the free memory is {si(room, 'B')}"
        )
