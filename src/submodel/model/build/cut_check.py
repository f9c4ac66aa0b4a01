"""Whether a cut that somebody made by hand fits the module it is to be taken from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import nn

from submodel.errors import ConfigError
from submodel.model.axes import Axes
from submodel.model.axes.forward import weights_of
from submodel.model.axes.layout import Units


def check_cut(module: object, axes: Axes, units: Units) -> None:
    """Raise unless the axes are of this module and the units are some of theirs."""
    if not isinstance(module, nn.Module):
        raise ConfigError([f"module: a {type(module).__name__} is not an nn.Module"])
    check_axes(module, axes)
    if problems := [*_misfits(axes, units)]:
        raise ConfigError(problems)


def check_axes(module: nn.Module, axes: Axes) -> None:
    """Raise unless the axes are of a model with these tensors."""
    shapes = {name: tuple(tensor.shape) for name, tensor in weights_of(module).items()}
    for name, layouts in axes.layouts.items():
        shape = tuple(layout.size for layout in layouts)
        is_missing = name not in shapes and any(layout.axes() for layout in layouts)
        if is_missing or shapes.get(name, shape) != shape:
            there = f"is of shape {shapes[name]} here" if name in shapes else "is not there"
            raise ConfigError(
                [f"axes: they are of another model: {name} has the shape {shape}, and {there}"]
            )


def _misfits(axes: Axes, units: Units) -> Iterator[str]:
    for axis, positions in units.items():
        size = axes.sizes.get(axis)
        if size is None:
            yield f"units: {axis!r} is not an axis; there are {', '.join(axes.sizes) or 'none'}"
        elif (
            not isinstance(positions, np.ndarray)
            or positions.ndim != 1
            or positions.dtype.kind != "i"
        ):
            mask = " np.flatnonzero(mask) makes them of a mask" if _is_mask(positions) else ""
            yield f"units[{axis!r}]: want positions, a NumPy array of whole numbers;{mask}".rstrip(
                ";"
            )
        elif not len(positions) or positions.min() < 0 or positions.max() >= size:
            wish = f"want one at least, from 0 to {size - 1}"
            yield f"units[{axis!r}]: {wish}, not {positions.tolist()}"
        elif len(np.unique(positions)) < len(positions):
            yield f"units[{axis!r}]: a unit is there twice: {positions.tolist()}"


def _is_mask(positions: object) -> bool:
    return isinstance(positions, np.ndarray) and positions.dtype == np.bool_
