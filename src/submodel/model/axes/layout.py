"""How the units of the axes lie along one tensor dimension.

A dimension is made of axes in three ways: it *is* an axis (the channels of a convolution), it is a
row-major *product* of parts (channels x height x width after a flatten), or a *concatenation* of
parts (a fused qkv projection). A part that no axis cuts is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Units = Mapping[str, Indices]  # the units kept of each cut axis, ascending; absent: all of them


@dataclass(frozen=True)
class FixedPart:
    """A part that is never cut."""

    size: int

    def indices(self, units: Units) -> Indices:  # noqa: ARG002 - the same for every selection
        """All positions."""
        return np.arange(self.size)

    def axes(self) -> Iterator[str]:
        """No axis."""
        return iter(())


@dataclass(frozen=True)
class Along:
    """The units of one axis, in order.

    >>> Along("hidden", 4).indices({"hidden": np.array([1, 3])})
    array([1, 3])
    """

    axis: str
    size: int

    def indices(self, units: Units) -> Indices:
        """The positions of the kept units."""
        kept_units = units.get(self.axis)
        return np.arange(self.size) if kept_units is None else kept_units

    def axes(self) -> Iterator[str]:
        """Its one axis."""
        yield self.axis


@dataclass(frozen=True)
class Product:
    """Parts combined in row-major order, as a flatten does.

    >>> Product((Along("channels", 3), FixedPart(2))).indices({"channels": np.array([0, 2])})
    array([0, 1, 4, 5])
    """

    parts: tuple[Layout, ...]

    @property
    def size(self) -> int:
        """The product of the parts' sizes."""
        return math.prod(part.size for part in self.parts)

    def indices(self, units: Units) -> Indices:
        """The positions whose every factor is kept."""
        flat = np.zeros(1, dtype=np.int64)
        for part in self.parts:
            flat = (flat[:, None] * part.size + part.indices(units)).reshape(-1)
        return flat

    def axes(self) -> Iterator[str]:
        """The axes of all parts."""
        for part in self.parts:
            yield from part.axes()


@dataclass(frozen=True)
class Concatenation:
    """Parts one after another.

    >>> qkv = Concatenation((Along("head", 2), Along("head", 2)))
    >>> qkv.indices({"head": np.array([1])})
    array([1, 3])
    """

    parts: tuple[Layout, ...]

    @property
    def size(self) -> int:
        """The sum of the parts' sizes."""
        return sum(part.size for part in self.parts)

    def indices(self, units: Units) -> Indices:
        """The positions kept in each part, shifted to where the part begins."""
        starts = np.cumsum([0, *(part.size for part in self.parts)])
        kept_positions = [
            s + part.indices(units) for s, part in zip(starts, self.parts, strict=False)
        ]
        return np.concatenate(kept_positions)

    def axes(self) -> Iterator[str]:
        """The axes of all parts."""
        for part in self.parts:
            yield from part.axes()


Layout = FixedPart | Along | Product | Concatenation
