"""Layouts of the units of axes along one tensor dimension.

A dimension consists of axes in three ways: it *is* an axis (the channels of a convolution), it is a
row-major *product* of parts (channels x height x width after a flatten), or a *concatenation* of
parts (a fused qkv projection). A part that no axis cuts is fixed.

During a trace, names of axes are numbers. Operators unify layouts (`Algebra.unify`) and divide them
(`Algebra.factor`, `Algebra.pieces`); a divided atom is *bound* to its parts, everywhere at once.
Layouts that do not fit together are frozen, with the reason, and never guessed. `kind` is the name
of the class in a saved layout.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
"""Saved objects store their kind under the empty key, which no tensor or axis has as name."""


class Saved:
    """Base of saved dataclasses: their JSON has exactly the keys of their fields."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", strict=True)


class _Part(Saved):
    def axes(self) -> Iterator[str]:
        """The axes in it, left to right, with repetitions."""
        return (atom.axis for atom in atoms(self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class FixedPart(_Part):
    """A part that is never cut, with the reason. Two fixed parts of one size are equal."""

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
        """The positions of which every factor is kept."""
        flat = np.zeros(1, dtype=np.int64)
        for part in self.parts:
            flat = (flat[:, None] * part.size + part.indices(units)).reshape(-1)
        return flat


@dataclass(frozen=True)
class Concatenation(_Part):
    """Consecutive parts.

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
        """The positions kept in each part, shifted by the start of the part."""
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
    flat = _flatten(parts, Product, 1, operator.mul)
    if len(flat) < 2:
        return flat[0] if flat else ONE
    whole = Product(tuple(flat))
    return whole if whole.size else FixedPart(0)


def concatenation(parts: Iterable[Layout]) -> Layout:
    """The concatenation in its simplest form: flat, without empty parts, fixed neighbours joined.

    >>> concatenation([FixedPart(2), FixedPart(3), FixedPart(0)])
    FixedPart(size=5)
    """
    flat = _flatten(parts, Concatenation, 0, operator.add)
    if len(flat) < 2:
        return flat[0] if flat else FixedPart(0)
    return Concatenation(tuple(flat))


def _flatten(
    parts: Iterable[Layout],
    kind: type[Product | Concatenation],
    neutral: int,
    join: Callable[[int, int], int],
) -> list[Layout]:
    flat: list[Layout] = []
    for part in parts:
        for p in part.parts if isinstance(part, kind) else (part,):
            last = flat[-1] if flat else None
            if isinstance(p, FixedPart) and isinstance(last, FixedPart) and p.size != neutral:
                flat[-1] = FixedPart(join(last.size, p.size), last.reason or p.reason)
            elif p.size != neutral:
                flat.append(p)
    return flat


def simple_parts(layout: Layout) -> Iterator[FixedPart | Along]:
    """The axes and fixed parts, left to right."""
    if isinstance(layout, FixedPart | Along):
        yield layout
    else:
        for part in layout.parts:
            yield from simple_parts(part)


def atoms(layout: Layout) -> Iterator[Along]:
    """The axes, left to right, with repetitions."""
    return (leaf for leaf in simple_parts(layout) if isinstance(leaf, Along))


def units(layout: Layout) -> Counter[tuple[str, ...]]:
    """The number of remaining units as a polynomial in the remaining units of each axis.

    Keys are the sorted axes of a monomial; values are its coefficients.

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


REPEATS = 4096
"""The largest number of repetitions to expand for a split; beyond it they are frozen."""


class Algebra:
    """The bindings of the atoms of one trace.

    >>> algebra = Algebra()
    >>> hidden, heads, width = algebra.fresh(12), algebra.fresh(3), algebra.fresh(4)
    >>> algebra.unify(hidden, product([heads, width]), "a view")
    Product(parts=(Along(axis='1', size=3), Along(axis='2', size=4)))
    >>> algebra.freeze(width, "an output")
    >>> algebra.resolve(hidden).parts
    (Along(axis='1', size=3), FixedPart(size=4))
    """

    def __init__(self) -> None:
        self._bindings: dict[str, Layout] = {}
        self._count = 0
        self.locate: Callable[[str], str] = str  # adds the line of code to a reason

    def fresh(self, size: int) -> Layout:
        """A new atom; a dimension of at most one unit is fixed."""
        if size < 2:
            return FixedPart(size)
        self._count += 1
        return Along(str(self._count - 1), size)

    def resolve(self, expression: Layout) -> Layout:
        """The expression with all present bindings, in its simplest form."""
        if isinstance(expression, FixedPart):
            return expression
        if isinstance(expression, Along):
            binding = self._bindings.get(expression.axis)
            if binding is None:
                return expression
            resolution = self.resolve(binding)
            self._bindings[expression.axis] = resolution
            return resolution
        parts = tuple(self.resolve(p) for p in expression.parts)
        if all(new is old for new, old in zip(parts, expression.parts, strict=True)):
            return expression
        return product(parts) if isinstance(expression, Product) else concatenation(parts)

    def freeze(self, expression: Layout, reason: str) -> None:
        """Fix every atom of the expression."""
        for atom in atoms(self.resolve(expression)):
            reason = self.locate(reason)
            self._bindings[atom.axis] = FixedPart(atom.size, reason)

    def unify(self, one: Layout, other: Layout, reason: str) -> Layout:
        """Make two expressions of one size equal, refining or freezing them if they differ.

        ``reason`` is stored if the two do not fit and are frozen.
        """
        a, b = self.resolve(one), self.resolve(other)
        if a is b or a == b:
            return a
        if a.size != b.size:
            raise ValueError(f"cannot unify {a.size} units with {b.size}: {reason}")
        if isinstance(a, FixedPart) or isinstance(b, FixedPart):
            fixed_part, free_term = (a, b) if isinstance(a, FixedPart) else (b, a)
            assert isinstance(fixed_part, FixedPart)
            self.freeze(free_term, fixed_part.reason or reason)
            return fixed_part
        if isinstance(a, Along) or isinstance(b, Along):
            younger, older = self._order(a, b)
            self._bindings[younger.axis] = older
            return older
        if isinstance(a, Product) and isinstance(b, Product):
            self._unify_products(a, b, reason)
        else:
            self._unify_concatenations(a, b, reason)
        return self.resolve(a)

    @staticmethod
    def _order(a: Layout, b: Layout) -> tuple[Along, Layout]:
        """The atom to bind and its binding: the younger to the older, an atom to its parts."""
        if isinstance(a, Along) and (not isinstance(b, Along) or int(b.axis) < int(a.axis)):
            return a, b
        assert isinstance(b, Along)
        return b, a

    def _misfit(self, expressions: Iterable[Layout], reason: str) -> None:
        for expression in expressions:
            self.freeze(expression, f"{reason}: its parts do not line up")

    def _take(self, ahead: list[Layout], kind: type[Product | Concatenation]) -> Layout:
        """Pop the next part of a stack, expanding parts of a kind: last or first part first."""
        part = self.resolve(ahead.pop())
        while isinstance(part, kind):
            ahead.extend(part.parts if kind is Product else reversed(part.parts))
            part = ahead.pop()
        return part

    def _unify_products(self, a: Product, b: Product, reason: str) -> None:
        """Unify from the fastest factor on; the longer of two factors is split by the shorter."""
        first_parts, second_parts = list(a.parts), list(b.parts)
        while first_parts and second_parts:
            x, y = self._take(first_parts, Product), self._take(second_parts, Product)
            if x.size < y.size:
                x, y, first_parts, second_parts = y, x, second_parts, first_parts
            split = self._split_inner(x, y.size, reason)
            if split is None:
                return self._misfit((a, b), reason)
            outer, inner = split
            self.unify(inner, y, reason)
            if outer.size > 1:
                first_parts.append(outer)
        return None

    def _unify_concatenations(self, a: Layout, b: Layout, reason: str) -> None:
        """Unify from the first part on; the longer of two parts is split at the shorter's end."""
        first_parts, second_parts = [a], [b]
        while first_parts and second_parts:
            x, y = self._take(first_parts, Concatenation), self._take(second_parts, Concatenation)
            if x.size < y.size:
                x, y, first_parts, second_parts = y, x, second_parts, first_parts
            head, *rest = self.pieces(x, [y.size, x.size - y.size], reason)
            self.unify(head, y, reason)
            first_parts.extend(r for r in rest if r.size)

    def factor(self, expression: Layout, sizes: Sequence[int], reason: str) -> list[Layout]:
        """Divide a dimension as a view does: row-major factors of the given sizes."""
        if math.prod(sizes) != expression.size:
            raise ValueError(f"{expression.size} units are not {sizes}: {reason}")
        if expression.size == 0:
            return [FixedPart(n) for n in sizes]
        rest, factors = expression, []
        for size in reversed(sizes):
            split = self._split_inner(self.resolve(rest), size, reason)
            if split is None:
                self._misfit((expression,), reason)
                return [FixedPart(n, f"{reason}: its parts do not line up") for n in sizes]
            rest, inner = split
            factors.append(inner)
        return factors[::-1]

    def _split_inner(self, e: Layout, size: int, reason: str) -> tuple[Layout, Layout] | None:
        """``e`` as (outer, inner) with the inner of this size; None if impossible."""
        if size == 1 or size == e.size:
            return (e, ONE) if size == 1 else (ONE, e)
        if e.size % size:
            return None
        if isinstance(e, FixedPart):
            return FixedPart(e.size // size, e.reason), FixedPart(size, e.reason)
        if isinstance(e, Along):
            outer, inner = self.fresh(e.size // size), self.fresh(size)
            self._bindings[e.axis] = product([outer, inner])
            return outer, inner
        if isinstance(e, Product):
            return self._split_product(e, size, reason)
        outers, inners = [], []
        for part in e.parts:
            split = self._split_inner(self.resolve(part), size, reason)
            if split is None:
                return None
            outers.append(split[0])
            inners.append(split[1])
        for inner in inners[1:]:
            self.unify(inners[0], inner, reason)
        return concatenation(map(self.resolve, outers)), self.resolve(inners[0])

    def _split_product(self, e: Product, size: int, reason: str) -> tuple[Layout, Layout] | None:
        before, last = product(e.parts[:-1]), e.parts[-1]
        if last.size >= size:
            split = self._split_inner(last, size, reason)
            return split and (product([before, split[0]]), split[1])
        if size % last.size:
            return None
        split = self._split_inner(before, size // last.size, reason)
        return split and (split[0], product([split[1], last]))

    def pieces(self, expression: Layout, sizes: Sequence[int], reason: str) -> list[Layout]:
        """Divide a dimension as a split does: consecutive pieces of the given sizes."""
        e = self.resolve(expression)
        if sum(sizes) != e.size:
            raise ValueError(f"{e.size} units are not {sizes} one after another: {reason}")
        if sum(n > 0 for n in sizes) < 2:
            return [e if n else FixedPart(0) for n in sizes]
        if isinstance(e, FixedPart):
            return [FixedPart(n, e.reason) for n in sizes]
        if isinstance(e, Along):
            alone = self.locate(f"{reason}: one unit") if 1 in sizes else ""
            fresh_pieces = [self.fresh(n) if n > 1 else FixedPart(n, alone) for n in sizes]
            self._bindings[e.axis] = concatenation(fresh_pieces)
            return fresh_pieces
        if isinstance(e, Concatenation):
            return self._cut(e.parts, sizes, reason)
        first, rest = e.parts[0], product(e.parts[1:])
        if all(n % rest.size == 0 for n in sizes):
            outer = self.pieces(first, [n // rest.size for n in sizes], reason)
            return [product([o, rest]) if o.size else FixedPart(0) for o in outer]
        if isinstance(first, FixedPart) and first.size <= REPEATS:  # it repeats the rest
            return self._cut((rest,) * first.size, sizes, reason)
        self._misfit((e,), reason)
        return [FixedPart(n, f"{reason}: its parts do not line up") for n in sizes]

    def _cut(self, parts: Sequence[Layout], sizes: Sequence[int], reason: str) -> list[Layout]:
        """Split consecutive parts into pieces of the given sizes."""
        ahead = list(reversed(parts))
        pieces = []
        for size in sizes:
            piece: list[Layout] = []
            missing = size
            while missing:
                part = self._take(ahead, Concatenation)
                if part.size > missing:
                    part, after = self.pieces(part, [missing, part.size - missing], reason)
                    ahead.append(after)
                piece.append(part)
                missing -= part.size
            pieces.append(concatenation(map(self.resolve, piece)))
        return [self.resolve(p) for p in pieces]
