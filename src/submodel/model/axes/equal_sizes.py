"""Dimensions that one number counts: a cut leaves them equal in size, so they become one axis.

Sizes that the code computes from one number (`2 * self.width`, `channels // 4`) stay multiples of
one unit: the dimensions become repetitions of one axis. The layers of torch that hold several
dimensions in one size keep them alike too, though the computation does not always say so: an
attention whose heads together are narrower than its input would be sound, and a cell that runs a
single step never feeds its output back; but torch has one number for both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from torch import Tensor, nn

from submodel.model.axes.layout import (
    Along,
    Concatenation,
    FixedPart,
    Layout,
    Product,
    product,
    units,
)
from submodel.model.axes.number import Attribute, NumberLog, Operation, SizeOf, leaves, proportion
from submodel.model.axes.record import Record


class Part(NamedTuple):
    """A dimension of a tensor, made of a number of equal parts one after another."""

    tensor: Tensor
    dimension: int
    parts: int = 1


def alike_in_layers(module: nn.Module) -> Iterator[list[Part]]:
    """Dimensions whose parts must keep equal sizes, layer by layer.

    >>> [[(p.dimension, p.parts) for p in parts] for parts in alike_in_layers(nn.LSTMCell(2, 3))]
    [[(0, 4), (1, 1)]]
    """
    for layer in module.modules():
        if isinstance(layer, nn.MultiheadAttention):
            yield _attention(layer)
        elif isinstance(layer, nn.RNNCellBase):
            yield [Part(layer.weight_hh, 0, _gates(layer.weight_hh)), Part(layer.weight_hh, 1)]
        elif isinstance(layer, nn.RNNBase):
            yield from _recurrent(layer)


def _attention(layer: nn.MultiheadAttention) -> list[Part]:
    """One width for the queries read, for all heads together, and for the output."""
    output_parts = [Part(layer.out_proj.weight, 0), Part(layer.out_proj.weight, 1)]
    if layer._qkv_same_embed_dim:
        return [*output_parts, Part(layer.in_proj_weight, 0, 3), Part(layer.in_proj_weight, 1)]
    heads = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    return [*output_parts, Part(layer.q_proj_weight, 1), *(Part(weight, 0) for weight in heads)]


def _recurrent(layer: nn.RNNBase) -> Iterator[list[Part]]:
    """One hidden size for all layers and directions, and one size of what they give out."""
    parameters = dict(layer.named_parameters())
    recurrent = [p for name, p in parameters.items() if name.startswith("weight_hh")]
    gates = {"LSTM": 4, "GRU": 3}.get(layer.mode, 1)
    hidden_parts = [Part(weight, 0, gates) for weight in recurrent]
    output_parts = [Part(weight, 1) for weight in recurrent]
    if layer.proj_size:
        projections = [p for name, p in parameters.items() if name.startswith("weight_hr")]
        yield hidden_parts + [Part(weight, 1) for weight in projections]
        yield output_parts + [Part(weight, 0) for weight in projections]
    else:
        yield hidden_parts + output_parts


def _gates(weight: Tensor) -> int:
    return weight.shape[0] // weight.shape[1]


def unify_equal_sizes(record: Record, log: NumberLog, module: nn.Module) -> list[str]:
    """Dimensions that one number counts stay equal in size: they become one.

    Returns in words where that was a choice.
    """
    reason = "one number counts it and another dimension"
    alike = list(log.alike())
    for parts in alike_in_layers(module):
        alike_parts: list[Layout] = []
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


def _factor(record: Record, dimension: Layout, counts: Sequence[Layout]) -> None:
    """A dimension that a product makes, such as `2 * self.size`: its factors are what it counts.

    Only where it is one axis so far, and would be cut without regard to its factors.
    """
    resolve = record.algebra.resolve
    if not isinstance(resolve(dimension), Along):
        return
    inner = [d for d in counts if not isinstance(resolve(d), FixedPart)]
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

    multiples: dict[Attribute | Layout, list[tuple[Fraction, Layout]]] = {}
    choices: dict[Attribute | Layout, dict[str, None]] = {}
    for sizing in log.sizings:
        if sizing.groups or not isinstance(sizing.number, Operation):
            continue
        parts = dict.fromkeys(n for n in leaves(sizing.number) if not isinstance(n, int))
        bases: dict[Attribute | SizeOf, Attribute | Layout] = {
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


def _is_multiple(dimension: Layout, base: Layout, ratio: Fraction) -> bool:
    """Whether a dimension keeps its proportion to another however axes are cut."""
    ours, theirs = units(dimension), units(base)
    return all(
        ours[term] * ratio.denominator == theirs[term] * ratio.numerator
        for term in ours.keys() | theirs.keys()
    )


def _consists_of(expression: Layout, size: int) -> bool:
    """Whether a dimension can be repetitions of an axis of this size."""
    if isinstance(expression, FixedPart):
        return False
    if isinstance(expression, Along):
        return expression.size % size == 0
    if isinstance(expression, Concatenation):
        return all(_consists_of(part, size) for part in expression.parts)
    free = [part for part in expression.parts if not isinstance(part, FixedPart)]
    return len(free) == 1 and _consists_of(free[0], size)


def _repeat(record: Record, dimensions: Sequence[Layout], size: int) -> None:
    """Make dimensions repetitions of one axis."""
    reason = "the code computes its size from another one"
    algebra = record.algebra
    unit = algebra.fresh(size)

    def repeat(e: Layout) -> None:
        if isinstance(e, Along):
            algebra.unify(e, product([FixedPart(e.size // size), unit]), reason)
        elif isinstance(e, Concatenation | Product):
            for part in e.parts:
                repeat(algebra.resolve(part))

    for dimension in dimensions:
        repeat(algebra.resolve(dimension))
