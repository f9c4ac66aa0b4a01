"""How the units of the axes lie along one tensor dimension.

A dimension is made of axes in three ways: it *is* an axis (the channels of a convolution), it is a
row-major *product* of parts (channels x height x width after a flatten), or a *concatenation* of
parts (a fused qkv projection). A part that no axis cuts is fixed.

While a trace runs, axes have numbers for names. How two layouts become one, and how one is taken
apart, is in `algebra`. `kind` is what a saved layout says of itself.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

Indices = NDArray[np.int64]
Units = Mapping[str, Indices]  # the units kept of each cut axis, ascending; absent: all of them
Size = Annotated[int, Field(ge=0, lt=1 << 53)]

KIND = Field(alias="")
"""Saved objects name their kind under a key that is no name of a tensor or an axis."""


class Saved:
    """What is saved as it is: its JSON has the keys of its fields, and no others."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", strict=True)


class _Part(Saved):
    def axes(self) -> Iterator[str]:
        """The axes in it, left to right; one that occurs twice comes twice."""
        return (atom.axis for atom in atoms(self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class FixedPart(_Part):
    """A part that is never cut, and why. Two fixed parts of one size are the same."""

    kind: Annotated[Literal["Fixed"], KIND] = field(default="Fixed", kw_only=True, repr=False)
    size: Size
    reason: Annotated[str, Field(exclude=True)] = field(default="", compare=False, repr=False)

    def indices(self, units: Units) -> Indices:  # noqa: ARG002 - the same for every selection
        """All positions."""
        return np.arange(self.size)


@dataclass(frozen=True)
class Along(_Part):
    """The units of one axis, in order.

    >>> Along("hidden", 4).indices({"hidden": np.array([1, 3])})
    array([1, 3])
    """

    kind: Annotated[Literal["Along"], KIND] = field(default="Along", kw_only=True, repr=False)
    axis: str
    size: Size

    def indices(self, units: Units) -> Indices:
        """The positions of the kept units."""
        kept_units = units.get(self.axis)
        return np.arange(self.size) if kept_units is None else kept_units


@dataclass(frozen=True)
class Product(_Part):
    """Parts combined in row-major order, the last one fastest, as a flatten does.

    >>> Product((Along("channels", 3), FixedPart(2))).indices({"channels": np.array([0, 2])})
    array([0, 1, 4, 5])
    """

    kind: Annotated[Literal["Product"], KIND] = field(default="Product", kw_only=True, repr=False)
    parts: tuple[Layout, ...]

    @cached_property
    def size(self) -> int:
        """The product of the parts' sizes."""
        return math.prod(part.size for part in self.parts)

    def indices(self, units: Units) -> Indices:
        """The positions whose every factor is kept."""
        flat = np.zeros(1, dtype=np.int64)
        for part in self.parts:
            flat = (flat[:, None] * part.size + part.indices(units)).reshape(-1)
        return flat


@dataclass(frozen=True)
class Concatenation(_Part):
    """Parts one after another.

    >>> qkv = Concatenation((Along("head", 2), Along("head", 2)))
    >>> qkv.indices({"head": np.array([1])})
    array([1, 3])
    """

    kind: Annotated[Literal["Concatenation"], KIND] = field(
        default="Concatenation", kw_only=True, repr=False
    )
    parts: tuple[Layout, ...]

    @cached_property
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


Layout = Annotated[FixedPart | Along | Product | Concatenation, Field(discriminator="kind")]
ONE = FixedPart(1)


def product(parts: Iterable[Layout]) -> Layout:
    """The row-major product in its simplest form: flat, without ones, fixed neighbours joined.

    >>> product([FixedPart(2), FixedPart(3), Along("c", 4), ONE])
    Product(parts=(FixedPart(size=6), Along(axis='c', size=4)))
    """
    flat: list[Layout] = []
    for part in parts:
        for p in part.parts if isinstance(part, Product) else (part,):
            if p.size == 1:
                continue
            last = flat[-1] if flat else None
            if isinstance(p, FixedPart) and isinstance(last, FixedPart):
                flat[-1] = FixedPart(last.size * p.size, last.reason or p.reason)
            else:
                flat.append(p)
    if len(flat) < 2:
        return flat[0] if flat else ONE
    whole = Product(tuple(flat))
    return whole if whole.size else FixedPart(0)


def concatenation(parts: Iterable[Layout]) -> Layout:
    """The concatenation in its simplest form: flat, without empty parts, fixed neighbours joined.

    >>> concatenation([FixedPart(2), FixedPart(3), FixedPart(0)])
    FixedPart(size=5)
    """
    flat: list[Layout] = []
    for part in parts:
        for p in part.parts if isinstance(part, Concatenation) else (part,):
            if p.size == 0:
                continue
            last = flat[-1] if flat else None
            if isinstance(p, FixedPart) and isinstance(last, FixedPart):
                flat[-1] = FixedPart(last.size + p.size, last.reason or p.reason)
            else:
                flat.append(p)
    if len(flat) < 2:
        return flat[0] if flat else FixedPart(0)
    return Concatenation(tuple(flat))


def simple_parts(layout: Layout) -> Iterator[FixedPart | Along]:
    """The axes and fixed parts, left to right."""
    if isinstance(layout, FixedPart | Along):
        yield layout
    else:
        for part in layout.parts:
            yield from simple_parts(part)


def atoms(layout: Layout) -> Iterator[Along]:
    """The axes, left to right; one that occurs twice comes twice."""
    return (leaf for leaf in simple_parts(layout) if isinstance(leaf, Along))


def units(layout: Layout) -> Counter[tuple[str, ...]]:
    """How many units are left when axes are cut: a polynomial in how many each axis has left.

    Keys are the axes that are multiplied, sorted; values are how often that product occurs.

    >>> heads, width = Along("heads", 3), Along("width", 4)
    >>> units(product([heads, width])) == units(product([width, heads]))
    True
    """
    if isinstance(layout, FixedPart):
        return Counter({(): layout.size})
    if isinstance(layout, Along):
        return Counter({(layout.axis,): 1})
    if isinstance(layout, Concatenation):
        return sum(map(units, layout.parts), Counter())
    total: Counter[tuple[str, ...]] = Counter({(): 1})
    for factor in map(units, layout.parts):
        products: Counter[tuple[str, ...]] = Counter()
        for (one, n), (other, m) in itertools.product(total.items(), factor.items()):
            products[tuple(sorted(one + other))] += n * m
        total = products
    return total
