"""Dimensions that one number counts: a cut leaves them equal in size, so they become one axis.

Sizes that the code computes from one number (`2 * self.width`, `channels // 4`) stay multiples of
one unit: the dimensions become repetitions of one axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from torch import nn

from submodel.model.axes.code_numbers import NumberLog
from submodel.model.axes.expression import (
    Atom,
    ConcatenationTerm,
    Expression,
    FixedTerm,
    ProductTerm,
    product,
    units,
)
from submodel.model.axes.number import Attribute, Operation, SizeOf, leaves, proportion
from submodel.model.axes.record import Record
from submodel.model.axes.torch_layers import alike_in_layers


def unify_equal_sizes(record: Record, log: NumberLog, module: nn.Module) -> list[str]:
    """Dimensions that one number counts stay equal in size: they become one.

    Returns in words where that was a choice.
    """
    reason = "one number counts it and another dimension"
    alike = list(log.alike())
    for parts in alike_in_layers(module):
        alike_parts: list[Expression] = []
        for part in parts:
            dimensions = record.dimensions_of(part.tensor)
            if dimensions is not None:
                size = dimensions[part.dimension].size // part.parts
                alike_parts += record.algebra.pieces(
                    dimensions[part.dimension], [size] * part.parts, reason
                )
        alike.append(alike_parts)
    resolve = record.algebra.resolve
    for same in alike:
        for other in same[1:]:
            if same[0].size != other.size:  # the number changed on the way
                record.algebra.freeze(same[0], reason)
                record.algebra.freeze(other, reason)
            elif units(resolve(same[0])) != units(resolve(other)):
                record.algebra.unify(same[0], other, reason)
    for dimension, counts in log.multiples():
        _factor(record, dimension, counts)
    return _unify_multiples(record, log, module)


def _factor(record: Record, dimension: Expression, counts: Sequence[Expression]) -> None:
    """A dimension that a product makes, such as `2 * self.size`: its factors are what it counts.

    Only where it is one axis so far, and would be cut without regard to its factors.
    """
    resolve = record.algebra.resolve
    if not isinstance(resolve(dimension), Atom):
        return
    inner = [d for d in counts if not isinstance(resolve(d), FixedTerm)]
    size = math.prod(d.size for d in inner)
    if inner and size < dimension.size and dimension.size % size == 0:
        reason = "a multiple of the size of another dimension"
        sizes = [dimension.size // size, *(d.size for d in inner)]
        factors = record.algebra.factor(dimension, sizes, reason)
        for factor, count in zip(factors[1:], inner, strict=True):
            record.algebra.unify(factor, count, reason)


def _unify_multiples(record: Record, log: NumberLog, module: nn.Module) -> list[str]:
    """Dimensions of sizes that are computed from one number stay in proportion to it.

    In `2 * self.width` or `channels // self.divisor` one number tells a size: that of a tensor, or
    an integer that makes a dimension itself; else the largest integer that a module stores, even
    if an axis has the same size. Other integers are constants. Where the dimensions do not consist
    of whole multiples of several units, all stays as it is.
    """
    resolve = record.algebra.resolve
    counts = {
        s.number: s.dimension
        for s in log.sizings
        if isinstance(s.number, Attribute) and not s.groups
    }

    def value(leaf: Attribute | SizeOf) -> int:
        if isinstance(leaf, SizeOf):
            return int(leaf.dimension.size)
        path, _, name = leaf.name.rpartition(".")
        return int(getattr(module.get_submodule(path), name))

    multiples: dict[Attribute | Expression, list[tuple[Fraction, Expression]]] = {}
    choices: dict[Attribute | Expression, dict[str, None]] = {}
    for sizing in log.sizings:
        if sizing.groups or not isinstance(sizing.number, Operation):
            continue
        parts = dict.fromkeys(n for n in leaves(sizing.number) if not isinstance(n, int))
        bases: dict[Attribute | SizeOf, Attribute | Expression] = {
            n: resolve(n.dimension if isinstance(n, SizeOf) else counts[n])
            for n in parts
            if isinstance(n, SizeOf) or n in counts
        }
        if not bases:
            largest = max(parts, key=lambda n: (n in multiples, value(n)))
            assert isinstance(largest, Attribute)
            bases = {largest: largest}
            if len(parts) > 1:
                names = ", ".join(n.name for n in parts if isinstance(n, Attribute))
                note = f"{sizing.line} computes a size from {names}; a cut changes {largest.name}"
                choices.setdefault(largest, {})[note] = None
        ratio = proportion(sizing.number, bases.__contains__, value)
        if ratio and len(set(bases.values())) == 1:
            multiples.setdefault(next(iter(bases.values())), []).append((ratio, sizing.dimension))
    notes: list[str] = []
    for base, entries in multiples.items():
        if not isinstance(base, Attribute):
            is_kept = all(_is_multiple(resolve(d), resolve(base), ratio) for ratio, d in entries)
            if is_kept:
                continue
            entries.append((Fraction(1), base))
        whole = value(base) if isinstance(base, Attribute) else base.size
        size = Fraction(whole, math.lcm(*(ratio.denominator for ratio, _ in entries)))
        dimensions = [dimension for _, dimension in entries]
        if size > 1 and all(_consists_of(resolve(d), int(size)) for d in dimensions):
            _repeat(record, dimensions, int(size))
            notes += choices.get(base, ())
    return notes


def _is_multiple(dimension: Expression, base: Expression, ratio: Fraction) -> bool:
    """Whether a dimension keeps its proportion to another however axes are cut."""
    ours, theirs = units(dimension), units(base)
    return all(
        ours[term] * ratio.denominator == theirs[term] * ratio.numerator
        for term in ours.keys() | theirs.keys()
    )


def _consists_of(expression: Expression, size: int) -> bool:
    """Whether a dimension can be repetitions of an axis of this size."""
    if isinstance(expression, FixedTerm):
        return False
    if isinstance(expression, Atom):
        return expression.size % size == 0
    if isinstance(expression, ConcatenationTerm):
        return all(_consists_of(part, size) for part in expression.parts)
    free = [part for part in expression.parts if not isinstance(part, FixedTerm)]
    return len(free) == 1 and _consists_of(free[0], size)


def _repeat(record: Record, dimensions: Sequence[Expression], size: int) -> None:
    """Make dimensions repetitions of one axis."""
    reason = "the code computes its size from another one"
    algebra = record.algebra
    unit = algebra.fresh(size)

    def repeat(e: Expression) -> None:
        if isinstance(e, Atom):
            algebra.unify(e, product([FixedTerm(e.size // size), unit]), reason)
        elif isinstance(e, ConcatenationTerm | ProductTerm):
            for part in e.parts:
                repeat(algebra.resolve(part))

    for dimension in dimensions:
        repeat(algebra.resolve(dimension))
