"""How much of a model a capacity holds, and the nested cuts that hold it: the first units."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from submodel.model.axes import CLASSES, Axes
from submodel.model.axes.layout import Indices
from submodel.model.cut import UnitCut


@lru_cache(maxsize=1 << 12)
def units_held(capacity: float, size: int) -> int:
    """How many of ``size`` units a capacity holds: its share, rounded up.

    >>> units_held(0.25, 64), units_held(0.25, 10), units_held(1 / 16, 4)
    (16, 3, 1)
    """
    return math.ceil(Fraction(capacity).limit_denominator(1 << 20) * size)


def prefix(size: int, length: int) -> NDArray[np.bool_]:
    """The first units."""
    return np.arange(size) < length


def prefix_cut(
    axes: Axes,
    capacity: float,
    classes: Indices | None = None,
    least: Mapping[str, float] = MappingProxyType({}),
) -> UnitCut:
    """The first units of every axis; ``classes`` keeps only those rows of the classifier.

    ``least`` is the least share of an axis that is held, whatever the capacity.
    """
    units: dict[str, Indices] = {}
    for axis, size in axes.cut_by_capacity.items():
        count = units_held(max(capacity, least.get(axis, 0.0)), size)
        if count < size:
            units[axis] = np.arange(count)
    if classes is not None and len(classes) < axes.sizes.get(CLASSES, 0):
        units[CLASSES] = classes
    return UnitCut(axes, units)
