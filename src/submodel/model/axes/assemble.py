"""From what a trace recorded to axes: their names, which are cut, which are exact."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from submodel.errors import ConfigError
from submodel.model.axes.advice import WRITTEN_SIZE, Reason, line_of
from submodel.model.axes.declare import CLASSES, Axes
from submodel.model.axes.layout import (
    Along,
    Concatenation,
    FixedPart,
    Layout,
    Product,
    atoms,
    simple_parts,
)
from submodel.model.axes.number import NumberLog
from submodel.model.axes.record import Record

Names = dict[Along, str]


def name_axes(
    record: Record, weights: Mapping[str, Tensor], classes: Along | None, names_so_far: Names
) -> Names:
    """Each axis is named after the tensor that was read first among those it lies in.

    That is where it comes from: the layer that makes it runs before those that use it. Several
    axes of one tensor are numbered in the order in which they lie there.
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
    if classes is not None:  # last, as classes come last in the net
        names[classes] = names.pop(classes)
    return names


def resolve_weights(record: Record, weights: Mapping[str, Tensor]) -> dict[str, tuple[Layout, ...]]:
    """The dimensions of every parameter and buffer, as they are known by now."""
    resolve = record.algebra.resolve
    return {
        name: tuple(map(resolve, record.tensors[id(tensor)].dimensions))
        for name, tensor in weights.items()
    }


@dataclass(frozen=True)
class Overrides:
    """What the user says about axes; see `trace`."""

    freeze: Sequence[str] = ()
    tie: Sequence[tuple[str, str]] = ()
    whole: Sequence[str] = ()
    cut: Sequence[str] = ()

    def __post_init__(self) -> None:
        problems = []
        for option in ("freeze", "whole", "cut"):
            names = getattr(self, option)
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                problems.append(f"{option}: {names!r} is not a list of names, as ['fc']")
        for pair in self.tie:
            if isinstance(pair, str) or len(pair) != 2:
                problems.append(f"tie: {pair!r} is not a pair of axes, as ('fc1', 'fc2')")
        if problems:
            raise ConfigError(problems)


def apply_overrides(
    record: Record,
    weights: Mapping[str, Tensor],
    classes: Along | None,
    names: Names,
    overrides: Overrides,
) -> Names:
    """Freeze and tie as told; the axes that remain keep their names."""
    by_name: dict[str, Along] = {name: atom for atom, name in names.items()}
    problems: list[str] = []

    def find(text: str, where: str) -> Layout | None:
        if text in by_name:
            return by_name[text]
        match = re.fullmatch(r"(.+)\[(\d+)\]", text)
        if match and match[1] in weights and int(match[2]) < weights[match[1]].dim():
            return record.tensors[id(weights[match[1]])].dimensions[int(match[2])]
        problems.append(
            f"{where}: {text!r} is neither an axis ({', '.join(by_name) or 'there is none'}) "
            "nor a dimension such as 'fc.weight[0]'"
        )
        return None

    for text in overrides.freeze:
        frozen = find(text, "freeze")
        if frozen is not None:
            record.algebra.freeze(frozen, "frozen as told")
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
    if problems:
        raise ConfigError(problems)
    remaining_names = {a: n for a, n in names.items() if record.algebra.resolve(a) == a}
    if classes is not None and classes not in remaining_names:
        raise ConfigError(["classes: the axis of the classes is frozen or tied by another option"])
    return name_axes(record, weights, classes, remaining_names)


_STARTING = (
    "in this forward it holds constants alone, as a state does before its first step; an example "
    "of more steps would tell what it shares its units with"
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


def _alone(layouts: Mapping[str, tuple[Layout, ...]]) -> Iterator[Along]:
    """Parts of a concatenation that occur nowhere else.

    A slice of a table, as of positions for longer inputs, leaves the rest unread.
    """
    count = Counter(a for ds in layouts.values() for d in ds for a in simple_parts(d))
    for dimensions in layouts.values():
        for dimension in dimensions:
            if isinstance(dimension, Concatenation):
                yield from (a for a in atoms(dimension) if count[a] == 1)


def _frozen(dimension: Layout) -> str:
    """Why a dimension is never cut, or is only cut in part; empty if it is free."""
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

    def factors_of(p: Product) -> list[set[str]]:
        return [{names[a] for a in atoms(part) if a in names} for part in p.parts]

    for p in _products([d for ds in layouts.values() for d in ds]):
        decide(factors_of(p))
    for p in _products([record.algebra.resolve(p) for p in record.products]):
        # an einsum merges in any order: that in which the axes lie in the weights counts
        free = [f for f in factors_of(p) if f]
        decide(sorted(free, key=lambda f: max(map(rank.__getitem__, f))))
    return kept_whole


def _products(expressions: Sequence[Layout]) -> Iterator[Product]:
    """All products, outer ones before those within."""
    for e in expressions:
        if isinstance(e, Product):
            yield e
        if not isinstance(e, FixedPart | Along):
            yield from _products(e.parts)


def _inexact(record: Record, names: Names, sizes: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Per axis the operators that mix its units other than by masked weights."""
    notes: dict[str, dict[str, None]] = {}
    for expression, words in record.mixes:
        for atom in atoms(record.algebra.resolve(expression)):
            if atom in names and names[atom] in sizes:
                notes.setdefault(names[atom], {})[words] = None
    return {axis: tuple(notes[axis]) for axis in names.values() if axis in notes}


def _layout(expression: Layout, names: Names) -> Layout:
    """The expression in the words of the rest of the library."""
    if isinstance(expression, FixedPart):
        return FixedPart(expression.size)
    if isinstance(expression, Along):  # one that lies in no weight is never cut
        axis = names.get(expression)
        return FixedPart(expression.size) if axis is None else Along(axis, expression.size)
    parts = tuple(_layout(part, names) for part in expression.parts)
    return Product(parts) if isinstance(expression, Product) else Concatenation(parts)
