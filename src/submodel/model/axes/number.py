"""Integers that remember how they were computed from stored numbers and from sizes of tensors.

A forward computes the sizes of its views in plain Python: `channels // self.groups`. With integers
that keep their formula, it is known what such a size becomes when widths change, and whether it
still fits.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
}


@dataclass(frozen=True)
class Attribute:
    """An integer that a module stores, named as tensors are, by the path of its module."""

    name: str


@dataclass(frozen=True)
class SizeOf:
    """The size of a dimension, described by the tracer's expression or, later, by its layout."""

    dimension: Any


@dataclass(frozen=True)
class Computed:
    """One of `OPERATIONS` on two numbers."""

    operation: str
    left: Number
    right: Number


Number = int | Attribute | SizeOf | Computed
"""Where an integer comes from; a plain one is written out in the code, or nobody knows."""


def leaves(number: Number) -> Iterator[int | Attribute | SizeOf]:
    """What a number is computed from.

    >>> list(leaves(Computed("mul", 3, Attribute("heads"))))
    [3, Attribute(name='heads')]
    """
    if isinstance(number, Computed):
        yield from leaves(number.left)
        yield from leaves(number.right)
    else:
        yield number


def factors_of(number: Number) -> Iterator[Number]:
    """The numbers that are multiplied; the number itself, if it is no product.

    >>> list(factors_of(Computed("mul", 3, Attribute("heads"))))
    [3, Attribute(name='heads')]
    """
    if isinstance(number, Computed) and number.operation == "mul":
        yield from factors_of(number.left)
        yield from factors_of(number.right)
    else:
        yield number


def evaluate(number: Number, value: Callable[[Attribute | SizeOf], int]) -> int:
    """The number, given the values of what it is computed from.

    >>> evaluate(Computed("mul", 3, Attribute("heads")), lambda leaf: 4)
    12
    """
    if isinstance(number, Computed):
        left, right = evaluate(number.left, value), evaluate(number.right, value)
        return OPERATIONS[number.operation](left, right)
    return number if isinstance(number, int) else value(number)


def replace(number: Number, dimension: Callable[[Any], Any]) -> Number:
    """The number with every dimension described anew."""
    if isinstance(number, Computed):
        left, right = replace(number.left, dimension), replace(number.right, dimension)
        return Computed(number.operation, left, right)
    return SizeOf(dimension(number.dimension)) if isinstance(number, SizeOf) else number


class Uses(list[Number]):
    """The formulas of integers that were lost to other arithmetic, such as a square root."""

    def compare(self, one: Number, other: Number, equal: bool) -> None:
        """Two numbers were compared, with this outcome."""


class Tracked(int):
    """An integer with its formula; arithmetic with other integers keeps it.

    Where it is lost to other arithmetic, such as a square root, it adds its formula to ``lost``;
    comparisons are told there too.

    >>> three = Tracked(4, Attribute("heads"), lost := Uses()) * 3
    >>> three.number, 1 / three, len(lost)
    (Computed(operation='mul', left=Attribute(name='heads'), right=3), 0.08333333333333333, 1)
    """

    number: Number
    lost: Uses

    def __new__(cls, value: int, number: Number, lost: Uses) -> Tracked:
        """The integer ``value``, known to be ``number``."""
        made = super().__new__(cls, value)
        made.number, made.lost = number, lost
        return made

    def __deepcopy__(self, memo: object) -> Tracked:
        return self


def multiplied(numbers: Sequence[Number]) -> Number:
    """The product of some numbers.

    >>> multiplied([Attribute("heads"), 3])
    Computed(operation='mul', left=Attribute(name='heads'), right=3)
    """
    total: Number = numbers[0] if numbers else 1
    for number in numbers[1:]:
        total = Computed("mul", total, number)
    return total


def number_of(value: int) -> Number:
    """The formula of an integer: itself, if it has none."""
    return value.number if isinstance(value, Tracked) else int(value)


def _tracking(name: str, *, swapped: bool) -> Callable[[Tracked, Any], Any]:
    plain = getattr(int, f"__r{name}__" if swapped else f"__{name}__")

    def operate(self: Tracked, other: Any) -> Any:
        value = plain(self, other)
        if type(value) is not int:  # not an integer any more, or not an operation on integers
            if isinstance(other, float | complex):
                self.lost.append(self.number)
            return value
        left, right = (other, self) if swapped else (self, other)
        number = Computed(name, number_of(left), number_of(right))
        return Tracked(value, number, self.lost)

    return operate


def _negative(self: Tracked) -> Tracked:
    number = self.number
    twice = isinstance(number, Computed) and (number.operation, number.left) == ("mul", -1)
    opposite = number.right if isinstance(number, Computed) and twice else None
    negated = Computed("mul", -1, number) if opposite is None else opposite
    return Tracked(-int(self), negated, self.lost)


Tracked.__neg__ = _negative  # type: ignore[method-assign, assignment]


def _comparing(name: str) -> Callable[[Tracked, Any], Any]:
    plain = getattr(int, name)

    def compare(self: Tracked, other: Any) -> Any:
        found = plain(self, other)
        if isinstance(other, int) and not isinstance(other, bool):
            self.lost.compare(self.number, number_of(other), found is (name == "__eq__"))
        return found

    return compare


for _name in ("__eq__", "__ne__"):
    setattr(Tracked, _name, _comparing(_name))
Tracked.__hash__ = int.__hash__  # type: ignore[method-assign]


def _leaving(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def operate(self: Tracked, *others: Any) -> Any:
        self.lost.append(self.number)
        return plain(self, *others)

    return operate


for _name in ("float", "truediv", "rtruediv", "pow", "rpow", "divmod", "rdivmod"):
    setattr(Tracked, f"__{_name}__", _leaving(f"__{_name}__"))


def _array_ufunc(self: Tracked, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """NumPy computes with the value."""
    self.lost.append(self.number)
    plain = [int(value) if isinstance(value, Tracked) else value for value in inputs]
    return getattr(ufunc, method)(*plain, **options)


Tracked.__array_ufunc__ = _array_ufunc  # type: ignore[attr-defined]
for _name in OPERATIONS:
    setattr(Tracked, f"__{_name}__", _tracking(_name, swapped=False))
    setattr(Tracked, f"__r{_name}__", _tracking(_name, swapped=True))
