"""Correction of integers that a module stores, such as `self.heads = 4`, after a cut.

A trace records which dimension an integer makes (see `submodel.model.axes.number`), so nothing is
guessed, and afterwards every size that the forward pass computes is checked. In
`qkv.view(b * self.heads, 3 * width // self.heads, -1)` no dimension has the size `self.heads`, but
the computed sizes must fit the cut tensors. So each such integer starts with the values suggested
by the tensors near it, and every formula and comparison excludes values that do not fit.

Declared axes do not contain this information; then an integer is changed if the nearest tensors
with a part of that size (the module's own, else its children's, ...) all agree; otherwise an error
is raised.

Floats are never changed: a stored scale such as 1/sqrt(size of a head) stays that of the full
model, so the sub-model stays the full model with the dropped units zeroed. A scale that the forward
pass computes from a shape or a changed integer is that of the sub-model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, combinations, product

from torch import nn

from submodel.model.axes.layout import Along, Concatenation, FixedPart, Layout, Product
from submodel.model.axes.number import (
    Attribute,
    CodeNumbers,
    Comparison,
    Number,
    SizeOf,
    Sizing,
    evaluate,
    leaves,
    proportion,
)
from submodel.model.cut import UnitCut

Values = dict[Attribute, frozenset[int]]
Stored = Callable[[Attribute], int]
Choices = Mapping[int, frozenset[int]]
"""A size in the full model -> the possible sizes in the sub-model."""


def kept_size(layout: Layout, sizes: Mapping[str, int]) -> int:
    """The size of a layout after each axis has been cut to ``sizes[axis]`` units.

    >>> kept_size(Product((Along("heads", 4), FixedPart(6))), {"heads": 3})
    18
    """
    match layout:
        case FixedPart(size):
            return size
        case Along(axis, size):
            return sizes.get(axis, size)
        case Product(parts):
            return math.prod(kept_size(part, sizes) for part in parts)
        case Concatenation(parts):
            return sum(kept_size(part, sizes) for part in parts)


def kept_groups(
    layout: Layout, width: int, sizes: Mapping[str, int]
) -> list[tuple[int, int]] | None:
    """Read a layout as groups of ``width`` units: (remaining groups, remaining units of each).

    None if the layout does not determine the group of a unit, so that the result would depend on
    the drawn units.

    >>> kept_groups(Product((Along("group", 4), Along("unit", 6))), 6, {"group": 3, "unit": 2})
    [(3, 2)]
    """
    if layout.size % width:
        return None
    if layout.size == width:
        return [(1, kept_size(layout, sizes))]
    if width == 1:
        return [(kept_size(layout, sizes), 1)]
    if kept_size(layout, sizes) == layout.size:
        return [(layout.size // width, width)]
    if isinstance(layout, Concatenation):
        parts = [kept_groups(part, width, sizes) for part in layout.parts]
        return None if None in parts else [g for part in parts if part is not None for g in part]
    if isinstance(layout, Product):
        first, rest = layout.parts[0], Product(layout.parts[1:])
        outer = kept_size(first, sizes)
        if rest.size > width:
            inner = kept_groups(rest, width, sizes)
            return None if inner is None else [(outer * n, units) for n, units in inner]
        if width % rest.size == 0:
            inner = kept_groups(first, width // rest.size, sizes)
            units_left = kept_size(rest, sizes)
            return None if inner is None else [(n, units * units_left) for n, units in inner]
    return None


def count_groups(layout: Layout, width: int, sizes: Mapping[str, int]) -> int | None:
    """The number of remaining groups of ``width`` units; None if their sizes differ."""
    groups_left = kept_groups(layout, width, sizes)
    if groups_left is None or len({units for _, units in groups_left}) > 1:
        return None
    return sum(count for count, _ in groups_left)


def pieces(layout: Layout) -> Iterator[Layout]:
    """The layout and its parts that views and splits can make: runs of parts, recursively.

    >>> [p.size for p in pieces(Product((Along("heads", 4), FixedPart(6))))]
    [24, 4, 6]
    """
    yield layout
    if isinstance(layout, Product | Concatenation):
        kind, parts = type(layout), layout.parts
        for start, end in combinations(range(len(parts) + 1), 2):
            if 1 < end - start < len(parts):
                yield kind(parts[start:end])
        for part in parts:
            yield from pieces(part)


def _choices(layouts: Iterable[Layout], sizes: Mapping[str, int]) -> Choices:
    choices: dict[int, set[int]] = {}
    for piece in chain.from_iterable(pieces(layout) for layout in set(layouts)):
        choices.setdefault(piece.size, set()).add(kept_size(piece, sizes))
    return {size: frozenset(becomes) for size, becomes in choices.items()}


class Sizes:
    """The sizes of tensors in and around each module of a model, before and after a cut."""

    def __init__(self, module: nn.Module, cut: UnitCut) -> None:
        self.kept_counts = {
            axis: len(cut.units[axis]) if axis in cut.units else size
            for axis, size in cut.axes.sizes.items()
        }
        tensors = chain(
            module.named_parameters(remove_duplicate=False),
            module.named_buffers(remove_duplicate=False),
        )
        first: dict[int, str] = {}  # a tied tensor has the first of its names
        self._layouts: dict[str, list[Layout]] = {}
        for name, tensor in tensors:
            name_of_all = first.setdefault(id(tensor), name)
            layouts = cut.axes.layouts.get(name_of_all, cut.axes.layouts.get(name, ()))
            self._layouts.setdefault(name.rpartition(".")[0], []).extend(layouts)
        self._module = module
        self._modules = dict(module.named_modules(remove_duplicate=False))
        self._levels: dict[str, list[Choices]] = {}

    def before(self, number: Number) -> int:
        """The value of a number in the full model."""
        return evaluate(
            number,
            lambda leaf: leaf.dimension.size if isinstance(leaf, SizeOf) else leaf.of(self._module),
        )

    def after(self, number: Number, stored: Stored) -> int | None:
        """The value of a number in a sub-model with these integers; None for a division by zero."""

        def value(leaf: Attribute | SizeOf) -> int:
            if isinstance(leaf, SizeOf):
                return kept_size(leaf.dimension, self.kept_counts)
            return stored(leaf)

        try:
            return evaluate(number, value)
        except ZeroDivisionError:
            return None

    def holds(self, comparison: Comparison, stored: Stored) -> bool:
        """Return whether a comparison has the same outcome in such a sub-model."""
        one, other = self.after(comparison.one, stored), self.after(comparison.other, stored)
        return (one == other) is comparison.equal

    def required(self, sizing: Sizing) -> int | None:
        """The required value of a number in the sub-model; None if no value fits."""
        layout: Layout = sizing.dimension
        if not sizing.groups:
            return kept_size(layout, self.kept_counts)
        width = layout.size // self.before(sizing.number)
        return count_groups(layout, width, self.kept_counts)

    def inside(self, path: str, size: int) -> frozenset[int]:
        """New values of ``size`` in the nearest tensors of a module: its own, its children's, ...

        Empty: no tensor has a part of that size. More than one: ambiguous.
        """
        if path not in self._levels:
            self._levels[path] = [
                _choices(
                    chain.from_iterable(self._layouts.get(p, ()) for p in level), self.kept_counts
                )
                for level in self._by_depth(path)
            ]
        return next((level[size] for level in self._levels[path] if size in level), frozenset())

    def around(self, path: str, size: int) -> frozenset[int]:
        """`inside` for a module without tensors, in the nearest module that contains it."""
        while path:
            path = path.rpartition(".")[0]
            if choices := self.inside(path, size):
                return choices
        return frozenset()

    def _by_depth(self, path: str) -> Iterator[list[str]]:
        """The module, its children, their children, ..., skipping plain containers."""
        level = [path]
        while level:
            yield level
            level = [child for parent in level for child in self._children(parent)]

    def _children(self, path: str) -> Iterator[str]:
        for name, child in self._modules[path].named_children():
            below = f"{path}.{name}" if path else name
            if isinstance(child, nn.Sequential | nn.ModuleList | nn.ModuleDict):
                yield from self._children(below)
            else:
                yield below


TRIALS = 4096
"""The largest number of combinations of values to try for one formula."""


def narrow_values(numbers: CodeNumbers, sizes: Sizes) -> Values:
    """The possible new values of each integer that the forward pass computes with or compares.

    If the integer itself makes a dimension, that dimension decides. Otherwise it takes the values
    suggested by the tensors near it, or its old value, as far as every formula fits. Empty: no
    value fits.
    """
    tests = [
        Comparison(sizing.number, becomes, equal=True)
        for sizing in numbers.sizings
        if (becomes := sizes.required(sizing)) is not None
    ]
    tests += numbers.comparisons
    formulas = [sizing.number for sizing in numbers.sizings]
    formulas += [n for c in numbers.comparisons for n in (c.one, c.other)]
    values: Values = {}
    for attribute in _attributes(*formulas):
        stated_values = frozenset(_stated_values(attribute, numbers, sizes))
        value = sizes.before(attribute)
        path = attribute.name.rpartition(".")[0]
        values[attribute] = stated_values or (
            sizes.inside(path, value) | {value, *_solved_values(attribute, numbers, sizes)}
        )
    has_changed = True
    while has_changed:
        has_changed = False
        for test in tests:
            unknowns = _attributes(test.one, test.other)
            choices = [sorted(values[a]) for a in unknowns]
            if not unknowns or not 1 < math.prod(map(len, choices)) <= TRIALS:
                continue
            fitting = [
                combination
                for combination in product(*choices)
                if sizes.holds(test, dict(zip(unknowns, combination, strict=True)).__getitem__)
            ]
            for place, attribute in enumerate(unknowns):
                fitting_values = frozenset(combination[place] for combination in fitting)
                has_changed |= fitting_values != values[attribute]
                values[attribute] = fitting_values
    return values


def _attributes(*numbers: Number) -> list[Attribute]:
    """The distinct stored integers from which numbers are computed."""
    found = (leaf for n in numbers for leaf in leaves(n) if isinstance(leaf, Attribute))
    return list(dict.fromkeys(found))


def _stated_values(attribute: Attribute, numbers: CodeNumbers, sizes: Sizes) -> Iterator[int]:
    """New values of an integer from the dimensions that it makes or must equal."""
    for sizing in numbers.sizings:
        if sizing.number == attribute and (becomes := sizes.required(sizing)) is not None:
            yield becomes
    for comparison in numbers.comparisons:
        for one, other in comparison.both_ways():
            if comparison.equal and one == attribute and isinstance(other, SizeOf):
                yield kept_size(other.dimension, sizes.kept_counts)


def _solved_values(attribute: Attribute, numbers: CodeNumbers, sizes: Sizes) -> Iterator[int]:
    """New values of an integer from formulas that only multiply or divide it."""
    for sizing in numbers.sizings:
        if attribute in leaves(sizing.number):
            becomes = sizes.required(sizing)
            factor = proportion(sizing.number, lambda n: n == attribute, sizes.before)
            if factor and becomes is not None and (becomes / factor).denominator == 1:
                yield int(becomes / factor)


def plain_integers(layer: nn.Module) -> dict[str, int]:
    """The integer attributes of one module, which may be sizes."""
    return {name: value for name, value in vars(layer).items() if type(value) is int}


def follow_integers(
    layer: nn.Module, path: str, sizes: Sizes, numbers: CodeNumbers | None, allowed_values: Values
) -> list[str]:
    """Set the integers of ``layer`` that the cut changes; return messages for ambiguous ones.

    ``allowed_values`` are the values that the trace allows (see `narrow_values`).
    """
    doubts = []
    for name, value in plain_integers(layer).items():
        doubt = ""
        if numbers is None:
            becomes = sizes.inside(path, value)
        else:
            source = Attribute(f"{path}.{name}" if path else name)
            near = sizes.inside(path, value)
            becomes = allowed_values.get(source, frozenset())
            makes_dimension = any(source in leaves(m.number) for m in numbers.sizings)
            only_sizes = source.name not in numbers.elsewhere | numbers.values
            if makes_dimension:
                becomes = (becomes & near) or becomes or near
            if len(becomes) > 1 and only_sizes:  # all of them have the same effect
                becomes = frozenset({value if value in becomes else max(becomes)})
            if source not in allowed_values and source.name in numbers.elsewhere:
                becomes = near
                if becomes - {value}:
                    doubt = "may or may not be a size that the cut changes"
        if len(becomes) > 1:
            doubt = f"may become any of {sorted(becomes)}"
        if doubt:
            doubts.append(f"{name} = {value} {doubt}")
        elif becomes:
            setattr(layer, name, next(iter(becomes)))
    return doubts


def misfits(small: nn.Module, sizes: Sizes, numbers: CodeNumbers) -> list[str]:
    """Messages for the sizes that the forward pass of ``small`` would compute wrongly."""
    problems: dict[str, None] = {}
    stored = partial(Attribute.of, module=small)
    for sizing in numbers.sizings:
        actual, becomes = sizes.after(sizing.number, stored), sizes.required(sizing)
        if actual != becomes:
            kind = type(small.get_submodule(sizing.where)).__name__
            where = f"{sizing.where or 'the model'} ({kind})"
            by = _from(sizing.number)
            what = "number of groups" if sizing.groups else "size"
            line = f", at {sizing.line}" if sizing.line else ""
            problems[f"{where}: a {what} {by}is {actual} and should be {becomes}{line}"] = None
    for comparison in numbers.comparisons:
        if not sizes.holds(comparison, stored):
            which = _from(comparison.one) or _from(comparison.other)
            words = "equal" if comparison.equal else "different"
            problems[
                f"{comparison.line} compares two numbers {which}that are {words} in the full "
                "model but not in the sub-model, which would take a branch that was not traced"
            ] = None
    return list(problems)


def _from(number: Number) -> str:
    names = sorted(attribute.name for attribute in _attributes(number))
    return f"computed from {', '.join(names)} " if names else ""
