"""Dimensions that one number counts: a cut leaves them equal in size, so they become one axis.

Sizes that the code computes from one number (`2 * self.width`, `channels // 4`) stay multiples of
one unit: the dimensions become repetitions of one axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from torch import nn

from submodel.model.axes.code_numbers import NumberLog
from submodel.model.axes.expression import (
    Atom,
    ConcatenationTerm,
    Expression,
    FixedTerm,
    atoms,
    product,
    units,
)
from submodel.model.axes.number import Attribute, Number, Operation, SizeOf, evaluate, leaves
from submodel.model.axes.record import Record
from submodel.model.axes.torch_layers import alike_in_layers


def unify_equal_sizes(record: Record, log: NumberLog, module: nn.Module) -> None:
    """Dimensions that one number counts stay equal in size: they become one."""
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
    _unify_multiples(record, log, module)


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


def _unify_multiples(record: Record, log: NumberLog, module: nn.Module) -> None:
    """Dimensions of sizes that are computed from one number stay in proportion to it.

    In `2 * self.width` or `channels // self.divisor` one number tells a size. A size of a tensor
    comes first, then an integer that makes a dimension itself, then the one that makes none; other
    integers that a module stores are constants. Where the dimensions do not consist of whole
    multiples of one unit, all stays as it is.
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
    for sizing in log.sizings:
        if sizing.groups or not isinstance(sizing.number, Operation):
            continue
        dimension_of = {
            leaf: resolve(leaf.dimension if isinstance(leaf, SizeOf) else counts[leaf])
            for leaf in leaves(sizing.number)
            if isinstance(leaf, SizeOf) or leaf in counts
        }
        unknown = {n for n in leaves(sizing.number) if isinstance(n, Attribute)} - counts.keys()
        bases = set(dimension_of.values()) or unknown
        if len(bases) == 1:
            is_base = (dimension_of or unknown).__contains__
            ratio = _ratio(sizing.number, is_base, value)
            if ratio:
                multiples.setdefault(bases.pop(), []).append((ratio, sizing.dimension))
    for base, entries in multiples.items():
        if not isinstance(base, Attribute):
            is_kept = all(_is_multiple(resolve(d), resolve(base), ratio) for ratio, d in entries)
            if is_kept:
                continue
            entries.append((Fraction(1), base))
        whole = value(base) if isinstance(base, Attribute) else base.size
        size = Fraction(whole, math.lcm(*(ratio.denominator for ratio, _ in entries)))
        dimensions = [dimension for _, dimension in entries]
        if all(_consists_of(resolve(d), int(size)) for d in dimensions):
            _repeat(record, dimensions, int(size))


def _ratio(
    number: Number,
    is_base: Callable[[Number], bool],
    value: Callable[[Attribute | SizeOf], int],
) -> Fraction | None:
    """What a number is multiplied with to give another; None if that is not all to it."""

    def terms(n: Number) -> tuple[Fraction, Fraction] | None:
        """The factor of the base, and what is added."""
        if is_base(n):
            return Fraction(1), Fraction(0)
        if not isinstance(n, Operation):
            return Fraction(0), Fraction(n if isinstance(n, int) else value(n))
        first, second = terms(n.first), terms(n.second)
        if first is None or second is None:
            return None
        if n.name in ("add", "sub"):
            sign = 1 if n.name == "add" else -1
            return first[0] + sign * second[0], first[1] + sign * second[1]
        if n.name == "mul" and 0 in (first[0], second[0]):
            return first[0] * second[1] + second[0] * first[1], first[1] * second[1]
        if n.name == "floordiv" and not second[0] and second[1]:
            is_whole = evaluate(n.first, value) % second[1] == 0
            return (first[0] / second[1], first[1] / second[1]) if is_whole else None
        return None

    result = terms(number)
    return result[0] if result is not None and not result[1] else None


def _is_multiple(dimension: Expression, base: Expression, ratio: Fraction) -> bool:
    """Whether a dimension keeps its proportion to another however axes are cut."""
    ours, theirs = units(dimension), units(base)
    return all(
        ours[term] * ratio.denominator == theirs[term] * ratio.numerator
        for term in ours.keys() | theirs.keys()
    )


def _consists_of(expression: Expression, size: int) -> bool:
    """Whether a dimension can be repetitions of as many units."""
    if isinstance(expression, FixedTerm | Atom):
        return expression.size % size == 0
    if isinstance(expression, ConcatenationTerm):
        return all(_consists_of(part, size) for part in expression.parts)
    free = [part for part in expression.parts if not isinstance(part, FixedTerm)]
    return len(free) == 1 and _consists_of(free[0], size)


def _repeat(record: Record, dimensions: Sequence[Expression], size: int) -> None:
    """Make dimensions repetitions of one axis; fixed ones fix it."""
    reason = "the code computes its size from another one"
    algebra = record.algebra
    unit = algebra.fresh(size)

    def repeat(e: Expression) -> None:
        if isinstance(e, ConcatenationTerm):
            for part in e.parts:
                repeat(algebra.resolve(part))
        elif isinstance(e, FixedTerm) or size == 1:
            algebra.freeze(e, reason)
            algebra.freeze(unit, reason)
        elif isinstance(e, Atom):
            algebra.unify(e, product([FixedTerm(e.size // size), unit]), reason)
        else:
            for atom in atoms(e):
                repeat(algebra.resolve(atom))

    for dimension in dimensions:
        repeat(algebra.resolve(dimension))
