"""Dimensions that one number counts: a cut leaves them equal in size, so they become one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from submodel.model.axes.code_numbers import NumberLog
from submodel.model.axes.expression import Atom, Expression, FixedTerm, units
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
