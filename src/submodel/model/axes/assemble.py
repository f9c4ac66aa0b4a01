"""Conversion of a trace's record to axes: equal sizes, names, the axes to cut, the exact axes.

Dimensions whose size is the same number become one axis, so a cut keeps them equal in size. Sizes
that the code computes from one number (`2 * self.width`, `channels // 4`) stay multiples of one
unit: the dimensions become repetitions of one axis. Layers of torch that store one size for several
dimensions keep these equal too, even where the computation would not need it: an attention whose
heads together are narrower than its input would be sound, and a cell that runs a single step never
feeds its output back; but torch has one number for both.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from torch import Tensor, nn

from submodel.core.errors import ConfigError, refuse
from submodel.model.axes.declare import CLASSES, Axes
from submodel.model.axes.layout import (
    Along,
    Concatenation,
    FixedPart,
    Layout,
    Product,
    atoms,
    product,
    simple_parts,
    units,
)
from submodel.model.axes.number import Attribute, NumberLog, Operation, SizeOf, leaves, proportion
from submodel.model.axes.record import WRITTEN_SIZE, Reason, Record, line_of


class Part(NamedTuple):
    """A dimension of a tensor that consists of a number of equal consecutive parts."""

    tensor: Tensor
    dimension: int
    parts: int = 1


def alike_in_layers(module: nn.Module) -> Iterator[list[Part]]:
    """Groups of dimensions whose parts must keep equal sizes, layer by layer.

    >>> [[(p.dimension, p.parts) for p in parts] for parts in alike_in_layers(nn.LSTMCell(2, 3))]
    [[(0, 4), (1, 1)]]
    """
    for layer in module.modules():
        if isinstance(layer, nn.MultiheadAttention):
            yield _attention(layer)
        elif isinstance(layer, nn.RNNCellBase):
            all_gates, hidden = layer.weight_hh.shape
            yield [Part(layer.weight_hh, 0, all_gates // hidden), Part(layer.weight_hh, 1)]
        elif isinstance(layer, nn.RNNBase):
            yield from _recurrent(layer)


def _attention(layer: nn.MultiheadAttention) -> list[Part]:
    """The dimensions of the one width: of the queries, of all heads together, of the output."""
    output_parts = [Part(layer.out_proj.weight, 0), Part(layer.out_proj.weight, 1)]
    if layer._qkv_same_embed_dim:
        return [*output_parts, Part(layer.in_proj_weight, 0, 3), Part(layer.in_proj_weight, 1)]
    heads = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    return [*output_parts, Part(layer.q_proj_weight, 1), *(Part(weight, 0) for weight in heads)]


def _recurrent(layer: nn.RNNBase) -> Iterator[list[Part]]:
    """The dimensions of the hidden size and of the output size of all layers and directions."""
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


def unify_equal_sizes(record: Record, log: NumberLog, module: nn.Module) -> list[str]:
    """Unify dimensions whose size is the same number, and multiples of one number.

    Returns notes on ambiguous choices.
    """
    reason = "it and another dimension have the same number as size"
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
            if same[0].size != other.size:  # the number changed meanwhile
                record.algebra.freeze(same[0], reason)
                record.algebra.freeze(other, reason)
            elif units(resolve(same[0])) != units(resolve(other)):
                record.algebra.unify(same[0], other, reason)
    for dimension, counts in log.multiples():
        _factor(record, dimension, counts)
    return _unify_multiples(record, log, module)


def _factor(record: Record, dimension: Layout, counts: Sequence[Layout]) -> None:
    """Factor a dimension whose size is a product, such as `2 * self.size`.

    Only dimensions that are a single axis so far are factored, as they would be cut without regard
    to the factors.
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
    """Keep dimensions in proportion to the number from which their size is computed.

    In `2 * self.width` or `channels // self.divisor` the base is the size of a tensor, or an
    integer that makes a dimension itself; otherwise it is the largest integer that a module stores,
    even if an axis has the same size. Other integers are constants. If the dimensions do not
    consist of whole multiples of several units, nothing changes.
    """
    resolve = record.algebra.resolve
    counts = {
        s.number: s.dimension
        for s in log.sizings
        if isinstance(s.number, Attribute) and not s.groups
    }

    def value(leaf: Attribute | SizeOf) -> int:
        return int(leaf.dimension.size) if isinstance(leaf, SizeOf) else leaf.of(module)

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
    """Return whether a dimension keeps its proportion to another in every cut."""
    ours, theirs = units(dimension), units(base)
    return all(
        ours[term] * ratio.denominator == theirs[term] * ratio.numerator
        for term in ours.keys() | theirs.keys()
    )


def _consists_of(expression: Layout, size: int) -> bool:
    """Return whether a dimension can be a repetition of an axis of this size."""
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


Names = dict[Along, str]


def name_axes(
    record: Record, weights: Mapping[str, Tensor], classes: Along | None, names_so_far: Names
) -> Names:
    """Name each axis after the first read of the tensors that contain it.

    The layer that produces an axis runs before the layers that use it. Several axes of one tensor
    are numbered in the order of its dimensions.
    """
    order = {name: record.read.get(id(tensor), 1 << 60) for name, tensor in weights.items()}
    layouts = resolve_weights(record, weights)
    names = dict(names_so_far)
    if classes is not None:
        names[classes] = CLASSES
    new: dict[str, list[Along]] = {}
    named_atoms = set(names)
    for tensor in sorted(weights, key=order.__getitem__):
        for dimension in layouts[tensor]:
            for atom in atoms(dimension):
                if atom not in named_atoms:
                    named_atoms.add(atom)
                    base = tensor.removesuffix(".weight").removesuffix(".bias")
                    new.setdefault(base, []).append(atom)
    names_in_use = set(names.values())
    for base, members in new.items():
        if len(members) == 1 and base not in names_in_use | {CLASSES}:
            names[members[0]] = base
            continue
        number = 0
        for atom in members:
            number += 1
            while f"{base}#{number}" in names_in_use:
                number += 1
            names[atom] = f"{base}#{number}"
    if classes is not None:  # the last axis, as in the net
        names[classes] = names.pop(classes)
    return names


def resolve_weights(record: Record, weights: Mapping[str, Tensor]) -> dict[str, tuple[Layout, ...]]:
    """The dimensions of every parameter and buffer in their present form."""
    resolve = record.algebra.resolve
    return {
        name: tuple(map(resolve, record.tensors[id(tensor)].dimensions))
        for name, tensor in weights.items()
    }


@dataclass(frozen=True)
class Overrides:
    """The user's settings for axes; see `trace`."""

    freeze: Sequence[str] = ()
    tie: Sequence[tuple[str, str]] = ()
    whole: Sequence[str] = ()
    cut: Sequence[str] = ()

    def __post_init__(self) -> None:
        problems = []
        for option in ("freeze", "whole", "cut"):
            names = getattr(self, option)
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                problems.append(f"{option}: {names!r} is not a list of names such as ['fc']")
        for pair in self.tie:
            if isinstance(pair, str) or len(pair) != 2:
                problems.append(f"tie: {pair!r} is not a pair of axes such as ('fc1', 'fc2')")
        refuse(problems)


def apply_overrides(
    record: Record,
    weights: Mapping[str, Tensor],
    classes: Along | None,
    names: Names,
    overrides: Overrides,
) -> Names:
    """Apply the user's `freeze` and `tie`; the remaining axes keep their names."""
    by_name: dict[str, Along] = {name: atom for atom, name in names.items()}
    problems: list[str] = []

    def find(text: str, where: str) -> Layout | None:
        if text in by_name:
            return by_name[text]
        match = re.fullmatch(r"(.+)\[(\d+)\]", text)
        if match and match[1] in weights and int(match[2]) < weights[match[1]].dim():
            return record.tensors[id(weights[match[1]])].dimensions[int(match[2])]
        problems.append(
            f"{where}: {text!r} is neither an axis ({', '.join(by_name) or 'there are none'}) "
            "nor a dimension such as 'fc.weight[0]'"
        )
        return None

    for text in overrides.freeze:
        frozen = find(text, "freeze")
        if frozen is not None:
            record.algebra.freeze(frozen, "frozen by the user")
    for one, other in overrides.tie:
        a, b = find(one, "tie"), find(other, "tie")
        if a is not None and b is not None:
            if a.size == b.size:
                record.algebra.unify(a, b, f"tied with {other}")
            else:
                problems.append(f"tie: {one!r} has {a.size} units and {other!r} has {b.size}")
    for option, texts in (("whole", overrides.whole), ("cut", overrides.cut)):
        for text in texts:
            if text not in by_name:
                problems.append(f"{option}: {text!r} is not an axis; there are {list(by_name)}")
            elif option == "cut" and text in overrides.whole:
                problems.append(f"cut: {text!r} is also to be kept whole")
            elif not isinstance(record.algebra.resolve(by_name[text]), Along):
                problems.append(f"{option}: {text!r} is frozen by another option")
    refuse(problems)
    remaining_names = {a: n for a, n in names.items() if record.algebra.resolve(a) == a}
    if classes is not None and classes not in remaining_names:
        raise ConfigError("classes: the axis of the classes is frozen or tied by another option")
    return name_axes(record, weights, classes, remaining_names)


_STARTING = (
    "in this forward it holds only constants, like a state before its first step; an example "
    "with more steps would show the dimensions coupled with it"
)


def assemble(
    record: Record,
    weights: Mapping[str, Tensor],
    classes: Along | None,
    overrides: Overrides,
    log: NumberLog,
) -> Axes:
    """The axes of a finished trace."""
    unread = [name for name, tensor in weights.items() if id(tensor) not in record.read]
    for name in unread:
        for dimension in record.tensors[id(weights[name])].dimensions:
            record.algebra.freeze(dimension, "nothing reads it")
    names = name_axes(record, weights, classes, {})
    names = apply_overrides(record, weights, classes, names, overrides)
    layouts = resolve_weights(record, weights)
    sizes = {names[a]: a.size for ds in layouts.values() for d in ds for a in atoms(d)}
    kept_whole = dict.fromkeys(overrides.whole, "kept whole by the user")
    for dimension, line in log.written_out().items():
        for atom in atoms(record.algebra.resolve(dimension)):
            if atom in names and names[atom] not in overrides.cut:
                kept_whole.setdefault(names[atom], Reason(WRITTEN_SIZE, line))
    for atom in record.starting():
        if atom in names and names[atom] not in overrides.cut:
            kept_whole.setdefault(names[atom], _STARTING)
    for atom in _alone(layouts):
        kept_whole.setdefault(
            names[atom], "this forward may not have read it: no other dimension has it"
        )
    kept_whole |= _keep_factors(record, layouts, names, overrides, {*kept_whole, CLASSES})
    frozen = {
        f"{name}[{i}]": reason
        for name, ds in layouts.items()
        for i, d in enumerate(ds)
        if (reason := _frozen(d))
    }
    return Axes(
        sizes={n: sizes[n] for n in names.values() if n in sizes},
        layouts={n: tuple(_layout(d, names) for d in ds) for n, ds in layouts.items()},
        frozen={where: str(reason) for where, reason in frozen.items()},
        kept_whole={
            n: str(kept_whole[n]) for n in names.values() if n in kept_whole and n in sizes
        },
        inexact=_inexact(record, names, sizes),
        unused_tensors=tuple(name for name in unread if weights[name].is_floating_point()),
        code_numbers=log.finish(lambda d: _layout(record.algebra.resolve(d), names)),
        doubt=_doubt(record, names, log, {*sizes} - {*kept_whole}),
        lines={
            where: line for where, why in (frozen | kept_whole).items() if (line := line_of(why))
        },
    )


def _doubt(record: Record, names: Names, log: NumberLog, cut: Collection[str]) -> str:
    """A message if the code may compute with sizes of axes; empty otherwise."""
    exposed_axes = {
        names[atom]: None
        for dimension in log.exposed_dimensions()
        for atom in atoms(record.algebra.resolve(dimension))
        if atom in names and names[atom] in cut
    }
    which = ", ".join(exposed_axes)
    return f"not measured, and the code may compute with the size of {which}" if which else ""


def _alone(layouts: Mapping[str, tuple[Layout, ...]]) -> Iterator[Along]:
    """Parts of a concatenation that occur in no other dimension.

    A slice of a table, for example of positions for longer inputs, leaves the rest unread.
    """
    count = Counter(a for ds in layouts.values() for d in ds for a in simple_parts(d))
    for dimensions in layouts.values():
        for dimension in dimensions:
            if isinstance(dimension, Concatenation):
                yield from (a for a in atoms(dimension) if count[a] == 1)


def _frozen(dimension: Layout) -> str:
    """The reason why a dimension is never, or only partly, cut; empty if it is free."""
    fixed_parts = [
        leaf for leaf in simple_parts(dimension) if isinstance(leaf, FixedPart) and leaf.size > 1
    ]
    if isinstance(dimension, FixedPart) and fixed_parts:
        return dimension.reason or "it meets a constant"
    reasons = dict.fromkeys(
        f"{leaf.size} units: {leaf.reason}" for leaf in fixed_parts if leaf.reason
    )
    line = next((line for leaf in fixed_parts if (line := line_of(leaf.reason))), "")
    return Reason(f"in part, {'; '.join(reasons)}", line) if reasons else ""


def _keep_factors(
    record: Record,
    layouts: Mapping[str, tuple[Layout, ...]],
    names: Names,
    overrides: Overrides,
    whole: Collection[str],
) -> dict[str, str]:
    """The axes that a capacity leaves whole because another factor of their product is cut.

    Outer products are decided first. In each product one factor is cut: the one named by the user,
    else the groups of a group norm, else the innermost one that may be cut.
    """
    axes_to_cut = set(overrides.cut)
    groups = {a for g in record.groups for a in atoms(record.algebra.resolve(g))}
    kept_whole: dict[str, str] = {}

    rank = {name: number for number, name in enumerate(names.values())}

    def decide(factors: list[set[str]]) -> None:
        free = [f for f in factors if f.difference(whole, kept_whole)]
        if len(free) < 2:
            return
        once = [f for f in free if factors.count(f) == 1]  # a repeated factor is squared
        free = once or free
        named_factors = [f for f in free if f & axes_to_cut]
        group_factors = [f for f in free if any(names[a] in f for a in groups)]
        cut = set().union(*named_factors) if named_factors else (group_factors or free)[-1]
        for axis in set().union(*factors).difference(cut, whole, kept_whole):
            others = " and ".join(sorted(cut))
            kept_whole[axis] = (
                f"its product with {others} is cut there; cutting both squares the fraction"
            )

    def factors_of(p: Product) -> list[set[str]]:
        return [{names[a] for a in atoms(part) if a in names} for part in p.parts]

    for p in _products([d for ds in layouts.values() for d in ds]):
        decide(factors_of(p))
    for p in _products([record.algebra.resolve(p) for p in record.products]):
        # an einsum merges in any order, so factors are sorted by the order in the weights
        free = [f for f in factors_of(p) if f]
        decide(sorted(free, key=lambda f: max(map(rank.__getitem__, f))))
    return kept_whole


def _products(expressions: Sequence[Layout]) -> Iterator[Product]:
    """All products, outer ones before inner ones."""
    for e in expressions:
        if isinstance(e, Product):
            yield e
        if not isinstance(e, FixedPart | Along):
            yield from _products(e.parts)


def _inexact(record: Record, names: Names, sizes: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """The operators, by axis, that mix units other than by masked weights."""
    notes: dict[str, dict[str, None]] = {}
    for expression, words in record.mixes:
        for atom in atoms(record.algebra.resolve(expression)):
            if atom in names and names[atom] in sizes:
                notes.setdefault(names[atom], {})[words] = None
    return {axis: tuple(notes[axis]) for axis in names.values() if axis in notes}


def _layout(expression: Layout, names: Names) -> Layout:
    """The expression with names of axes instead of numbers."""
    if isinstance(expression, FixedPart | Along):
        axis = names.get(expression) if isinstance(expression, Along) else None
        # an atom in no weight is never cut
        return FixedPart(expression.size) if axis is None else Along(axis, expression.size)
    parts = tuple(_layout(part, names) for part in expression.parts)
    return Product(parts) if isinstance(expression, Product) else Concatenation(parts)
