"""Integers of modules as unknowns: the values at which all that a forward computes from them fits.

`qkv.view(b * self.heads, 3 * width // self.heads, -1)` never makes a dimension of `self.heads`
itself, but what it computes must fit the cut tensors. So each such integer starts with what it
might become by the tensors near it, and every formula and comparison rules out what does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product

from submodel.model.axes.code_numbers import CodeNumbers, Sizing
from submodel.model.axes.number import Attribute, Number, SizeOf, evaluate, leaves, proportion
from submodel.model.build.sizes import Sizes, kept_groups, kept_size

TRIALS = 4096
"""How many combinations of values of one formula are tried."""

Values = dict[Attribute, frozenset[int]]
Test = Callable[[Mapping[Attribute, int]], bool]


def required_value(sizing: Sizing, before: int, sizes: Sizes) -> int | None:
    """What a number must be in the sub-model; None if no number is right."""
    if not sizing.groups:
        return kept_size(sizing.dimension, sizes.kept_counts)
    groups_left = kept_groups(sizing.dimension, sizing.dimension.size // before, sizes.kept_counts)
    if groups_left is None or len({units for _, units in groups_left}) > 1:
        return None
    return sum(count for count, _ in groups_left)


def original(number: Number, sizes: Sizes) -> int:
    """A number in the full model."""
    return evaluate(
        number,
        lambda leaf: (
            leaf.dimension.size if isinstance(leaf, SizeOf) else sizes.stored_integer(leaf.name)
        ),
    )


def narrow_values(numbers: CodeNumbers, sizes: Sizes) -> Values:
    """What each integer that the forward computes with, or compares, may become.

    If it makes a dimension itself, that dimension decides. Otherwise it may become what tensors
    near it suggest, or stay what it was, as far as every formula fits. Empty: nothing fits.
    """
    values: Values = {}
    for attribute in dict.fromkeys(_attributes(numbers)):
        stated_values = set(_stated_values(attribute, numbers, sizes))
        value = sizes.stored_integer(attribute.name)
        path = attribute.name.rpartition(".")[0]
        values[attribute] = frozenset(stated_values) or (
            sizes.inside(path, value) | {value, *_solved_values(attribute, numbers, sizes)}
        )
    tests = [test for test in _tests(numbers, sizes) if len(test[0]) > 0]
    has_changed = True
    while has_changed:
        has_changed = False
        for unknowns, holds in tests:
            choices = [sorted(values[a]) for a in unknowns]
            if not 1 < math.prod(map(len, choices)) <= TRIALS:
                continue
            fitting = [v for v in product(*choices) if holds(dict(zip(unknowns, v, strict=True)))]
            for place, attribute in enumerate(unknowns):
                fitting_values = frozenset(combination[place] for combination in fitting)
                has_changed |= fitting_values != values[attribute]
                values[attribute] = fitting_values
    return values


def _attributes(numbers: CodeNumbers) -> Iterator[Attribute]:
    formulas = [sizing.number for sizing in numbers.sizings]
    formulas += [n for c in numbers.comparisons for n in (c.one, c.other)]
    for number in formulas:
        yield from (leaf for leaf in leaves(number) if isinstance(leaf, Attribute))


def _stated_values(attribute: Attribute, numbers: CodeNumbers, sizes: Sizes) -> Iterator[int]:
    """What dimensions say that an integer becomes: those that it makes, and those it must equal."""
    for sizing in numbers.sizings:
        if sizing.number == attribute:
            becomes = required_value(sizing, sizes.stored_integer(attribute.name), sizes)
            if becomes is not None:
                yield becomes
    for comparison in numbers.comparisons:
        for one, other in ((comparison.one, comparison.other), (comparison.other, comparison.one)):
            if comparison.equal and one == attribute and isinstance(other, SizeOf):
                yield kept_size(other.dimension, sizes.kept_counts)


def _solved_values(attribute: Attribute, numbers: CodeNumbers, sizes: Sizes) -> Iterator[int]:
    """What an integer becomes by the formulas that multiply or divide it and nothing else."""
    for sizing in numbers.sizings:
        if attribute in leaves(sizing.number):
            becomes = required_value(sizing, original(sizing.number, sizes), sizes)
            factor = proportion(
                sizing.number, lambda n: n == attribute, lambda leaf: original(leaf, sizes)
            )
            if factor and becomes is not None and (becomes / factor).denominator == 1:
                yield int(becomes / factor)


def _tests(numbers: CodeNumbers, sizes: Sizes) -> Iterator[tuple[list[Attribute], Test]]:
    """What must hold of which integers."""
    for sizing in numbers.sizings:
        becomes = required_value(sizing, original(sizing.number, sizes), sizes)
        if becomes is not None:
            yield _unknowns(sizing.number), _equals(sizing.number, becomes, sizes)
    for comparison in numbers.comparisons:
        yield (
            _unknowns(comparison.one, comparison.other),
            _compares(comparison.one, comparison.other, sizes, equal=comparison.equal),
        )


def _unknowns(*numbers: Number) -> list[Attribute]:
    attributes = (leaf for n in numbers for leaf in leaves(n) if isinstance(leaf, Attribute))
    return list(dict.fromkeys(attributes))


def _equals(number: Number, becomes: int, sizes: Sizes) -> Test:
    return lambda values: _value(number, values, sizes) == becomes


def _compares(one: Number, other: Number, sizes: Sizes, *, equal: bool) -> Test:
    return lambda values: (_value(one, values, sizes) == _value(other, values, sizes)) is equal


def _value(number: Number, values: Mapping[Attribute, int], sizes: Sizes) -> int | None:
    """A number in the sub-model, for given integers; None where it divides by zero."""
    try:
        return evaluate(
            number,
            lambda n: (
                kept_size(n.dimension, sizes.kept_counts) if isinstance(n, SizeOf) else values[n]
            ),
        )
    except ZeroDivisionError:
        return None
