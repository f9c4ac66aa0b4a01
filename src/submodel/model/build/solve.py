"""Integers of modules as unknowns: the values at which all that a forward computes from them fits.

`qkv.view(b * self.heads, 3 * width // self.heads, -1)` never makes a dimension of `self.heads`
itself, but what it computes must fit the cut tensors. So each such integer starts with what it
might become by the tensors near it, and every formula and comparison rules out what does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product

from submodel.model.axes.number import Attribute, Number, SizeOf, evaluate, leaves
from submodel.model.axes.stored import Made, Stored
from submodel.model.build.sizes import Sizes, groups_kept, kept

TRIALS = 4096
"""How many combinations of values of one formula are tried."""

Values = dict[Attribute, frozenset[int]]
Test = Callable[[Mapping[Attribute, int]], bool]


def needed(made: Made, before: int, sizes: Sizes) -> int | None:
    """What a number must be in the sub-model; None if no number is right."""
    if not made.groups:
        return kept(made.dimension, sizes.kept)
    left = groups_kept(made.dimension, made.dimension.size // before, sizes.kept)
    if left is None or len({units for _, units in left}) > 1:
        return None
    return sum(count for count, _ in left)


def original(number: Number, sizes: Sizes) -> int:
    """A number in the full model."""
    return evaluate(
        number,
        lambda leaf: leaf.dimension.size if isinstance(leaf, SizeOf) else sizes.stored(leaf.name),
    )


def settle(stored: Stored, sizes: Sizes) -> Values:
    """What each integer that the forward computes with, or compares, may become.

    Where a dimension of its own says so, that is all that it may; otherwise what tensors near it
    suggest, or what it was, as far as it fits. Empty: nothing fits.
    """
    found: Values = {}
    for attribute in dict.fromkeys(_attributes(stored)):
        told = set(_told(attribute, stored, sizes))
        value = sizes.stored(attribute.name)
        path = attribute.name.rpartition(".")[0]
        found[attribute] = frozenset(told) or sizes.inside(path, value) | {value}
    tests = [test for test in _tests(stored, sizes) if len(test[0]) > 0]
    changed = True
    while changed:
        changed = False
        for unknown, holds in tests:
            choices = [sorted(found[a]) for a in unknown]
            if not 1 < math.prod(map(len, choices)) <= TRIALS:
                continue
            fitting = [v for v in product(*choices) if holds(dict(zip(unknown, v, strict=True)))]
            for place, attribute in enumerate(unknown):
                left = frozenset(values[place] for values in fitting)
                changed |= left != found[attribute]
                found[attribute] = left
    return found


def _attributes(stored: Stored) -> Iterator[Attribute]:
    numbers = [m.number for m in stored.made]
    numbers += [n for c in stored.compared for n in (c.one, c.other)]
    for number in numbers:
        yield from (leaf for leaf in leaves(number) if isinstance(leaf, Attribute))


def _told(attribute: Attribute, stored: Stored, sizes: Sizes) -> Iterator[int]:
    """What dimensions say that an integer becomes: those that it makes, and those it must equal."""
    for made in stored.made:
        if made.number == attribute:
            becomes = needed(made, sizes.stored(attribute.name), sizes)
            if becomes is not None:
                yield becomes
    for seen in stored.compared:
        for one, other in ((seen.one, seen.other), (seen.other, seen.one)):
            if seen.equal and one == attribute and isinstance(other, SizeOf):
                yield kept(other.dimension, sizes.kept)


def _tests(stored: Stored, sizes: Sizes) -> Iterator[tuple[list[Attribute], Test]]:
    """What must hold of which integers."""
    for made in stored.made:
        becomes = needed(made, original(made.number, sizes), sizes)
        if becomes is not None:
            yield _unknown(made.number), _equals(made.number, becomes, sizes)
    for seen in stored.compared:
        yield (
            _unknown(seen.one, seen.other),
            _compares(seen.one, seen.other, sizes, equal=seen.equal),
        )


def _unknown(*numbers: Number) -> list[Attribute]:
    found = (leaf for n in numbers for leaf in leaves(n) if isinstance(leaf, Attribute))
    return list(dict.fromkeys(found))


def _equals(number: Number, becomes: int, sizes: Sizes) -> Test:
    return lambda values: _value(number, values, sizes) == becomes


def _compares(one: Number, other: Number, sizes: Sizes, *, equal: bool) -> Test:
    return lambda values: (_value(one, values, sizes) == _value(other, values, sizes)) is equal


def _value(number: Number, values: Mapping[Attribute, int], sizes: Sizes) -> int | None:
    """A number in the sub-model, for given integers; None where it divides by zero."""
    try:
        return evaluate(
            number,
            lambda n: kept(n.dimension, sizes.kept) if isinstance(n, SizeOf) else values[n],
        )
    except ZeroDivisionError:
        return None
