"""From what a trace recorded to axes: where they lie, which ones are cut, and which are exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from torch import Tensor

from submodel.model.axes.advice import WRITTEN_SIZE, Reason, line_of
from submodel.model.axes.axis_names import Names, name_axes, resolve_weights
from submodel.model.axes.code_numbers import NumberLog
from submodel.model.axes.declare import CLASSES, Axes
from submodel.model.axes.expression import (
    Atom,
    ConcatenationTerm,
    Expression,
    FixedTerm,
    ProductTerm,
    atoms,
    simple_terms,
)
from submodel.model.axes.layout import Along, Concatenation, FixedPart, Layout, Product
from submodel.model.axes.overrides import Overrides, apply_overrides
from submodel.model.axes.record import Record

_STARTING = (
    "in this forward it holds constants alone, as a state does before its first step; an example "
    "of more steps would tell what it shares its units with"
)


def assemble(
    record: Record,
    weights: Mapping[str, Tensor],
    classes: Atom | None,
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
    kept_whole = dict.fromkeys(overrides.whole, "kept whole as told")
    for dimension, line in log.written_out().items():
        for atom in atoms(record.algebra.resolve(dimension)):
            if atom in names and names[atom] not in overrides.cut:
                kept_whole.setdefault(names[atom], Reason(WRITTEN_SIZE, line))
    for atom in record.starting():
        if atom in names and names[atom] not in overrides.cut:
            kept_whole.setdefault(names[atom], _STARTING)
    for atom in _alone(layouts):
        kept_whole.setdefault(
            names[atom], "this forward may not have read it: nothing else shares it"
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
    """Why axes may be inexact though no operator says so: the code has their sizes in hand."""
    axes_in_hand = {
        names[atom]: None
        for dimension in log.in_hand()
        for atom in atoms(record.algebra.resolve(dimension))
        if atom in names and names[atom] in cut
    }
    which = ", ".join(axes_in_hand)
    return f"not measured, and the code may compute with the size of {which}" if which else ""


def _alone(layouts: Mapping[str, tuple[Expression, ...]]) -> Iterator[Atom]:
    """Parts of a concatenation that occur nowhere else.

    A slice of a table, as of positions for longer inputs, leaves the rest unread.
    """
    count = Counter(a for ds in layouts.values() for d in ds for a in simple_terms(d))
    for dimensions in layouts.values():
        for dimension in dimensions:
            if isinstance(dimension, ConcatenationTerm):
                yield from (a for a in atoms(dimension) if count[a] == 1)


def _frozen(dimension: Expression) -> str:
    """Why a dimension is never cut, or is only cut in part; empty if it is free."""
    fixed_terms = [
        leaf for leaf in simple_terms(dimension) if isinstance(leaf, FixedTerm) and leaf.size > 1
    ]
    if isinstance(dimension, FixedTerm) and fixed_terms:
        return dimension.reason or "it meets a constant"
    reasons = dict.fromkeys(
        f"{leaf.size} units: {leaf.reason}" for leaf in fixed_terms if leaf.reason
    )
    line = next((line for leaf in fixed_terms if (line := line_of(leaf.reason))), "")
    return Reason(f"in part, {'; '.join(reasons)}", line) if reasons else ""


def _keep_factors(
    record: Record,
    layouts: Mapping[str, tuple[Expression, ...]],
    names: Names,
    overrides: Overrides,
    whole: Collection[str],
) -> dict[str, str]:
    """The axes that a capacity leaves whole because another factor of their product is cut.

    Outer products are decided first. Of each, the factor that the user names is cut; else the
    groups of a group norm; else the innermost one that may be cut.
    """
    axes_to_cut = set(overrides.cut)
    groups = {a for g in record.groups for a in atoms(record.algebra.resolve(g))}
    kept_whole: dict[str, str] = {}

    rank = {name: number for number, name in enumerate(names.values())}

    def decide(factors: list[set[str]]) -> None:
        free = [f for f in factors if f.difference(whole, kept_whole)]
        if len(free) < 2:
            return
        once = [f for f in free if factors.count(f) == 1]  # what comes twice is squared by itself
        free = once or free
        named_factors = [f for f in free if f & axes_to_cut]
        group_factors = [f for f in free if any(names[a] in f for a in groups)]
        cut = set().union(*named_factors) if named_factors else (group_factors or free)[-1]
        for axis in set().union(*factors).difference(cut, whole, kept_whole):
            others = " and ".join(sorted(cut))
            kept_whole[axis] = (
                f"its product with {others} is cut there; cutting both squares the share"
            )

    def factors_of(p: ProductTerm) -> list[set[str]]:
        return [{names[a] for a in atoms(part) if a in names} for part in p.parts]

    for p in _products([d for ds in layouts.values() for d in ds]):
        decide(factors_of(p))
    for p in _products([record.algebra.resolve(p) for p in record.products]):
        # an einsum merges in any order: that in which the axes lie in the weights counts
        free = [f for f in factors_of(p) if f]
        decide(sorted(free, key=lambda f: max(map(rank.__getitem__, f))))
    return kept_whole


def _products(expressions: Sequence[Expression]) -> Iterator[ProductTerm]:
    """All products, outer ones before those within."""
    for e in expressions:
        if isinstance(e, ProductTerm):
            yield e
        if not isinstance(e, FixedTerm | Atom):
            yield from _products(e.parts)


def _inexact(record: Record, names: Names, sizes: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Per axis the operators that mix its units other than by masked weights."""
    notes: dict[str, dict[str, None]] = {}
    for expression, words in record.mixes:
        for atom in atoms(record.algebra.resolve(expression)):
            if atom in names and names[atom] in sizes:
                notes.setdefault(names[atom], {})[words] = None
    return {axis: tuple(notes[axis]) for axis in names.values() if axis in notes}


def _layout(expression: Expression, names: Names) -> Layout:
    """The expression in the words of the rest of the library."""
    if isinstance(expression, FixedTerm):
        return FixedPart(expression.size)
    if isinstance(expression, Atom):  # one that lies in no weight is never cut
        axis = names.get(expression)
        return FixedPart(expression.size) if axis is None else Along(axis, expression.size)
    parts = tuple(_layout(part, names) for part in expression.parts)
    return Product(parts) if isinstance(expression, ProductTerm) else Concatenation(parts)
