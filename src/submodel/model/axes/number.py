"""Integers that remember how they were computed from stored numbers and from sizes of tensors.

A forward computes the sizes of its views in plain Python: `channels // self.groups`. With integers
that keep their formula, it is known what such a size becomes when widths change, and whether it
still fits.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
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
class Operation:
    """One of `OPERATIONS` on two numbers."""

    name: str
    first: Number
    second: Number


Number = int | Attribute | SizeOf | Operation
"""Where an integer comes from; a plain one is written out in the code, or nobody knows."""


def leaves(number: Number) -> Iterator[int | Attribute | SizeOf]:
    """What a number is computed from.

    >>> list(leaves(Operation("mul", 3, Attribute("heads"))))
    [3, Attribute(name='heads')]
    """
    if isinstance(number, Operation):
        yield from leaves(number.first)
        yield from leaves(number.second)
    else:
        yield number


def factors_of(number: Number) -> Iterator[Number]:
    """The numbers that are multiplied; the number itself, if it is no product.

    >>> list(factors_of(Operation("mul", 3, Attribute("heads"))))
    [3, Attribute(name='heads')]
    """
    if isinstance(number, Operation) and number.name == "mul":
        yield from factors_of(number.first)
        yield from factors_of(number.second)
    else:
        yield number


def evaluate(number: Number, value: Callable[[Attribute | SizeOf], int]) -> int:
    """The number, given the values of what it is computed from.

    >>> evaluate(Operation("mul", 3, Attribute("heads")), lambda leaf: 4)
    12
    """
    if isinstance(number, Operation):
        first, second = evaluate(number.first, value), evaluate(number.second, value)
        return OPERATIONS[number.name](first, second)
    return number if isinstance(number, int) else value(number)


def proportion(
    number: Number,
    is_base: Callable[[Number], bool],
    value: Callable[[Attribute | SizeOf], int],
) -> Fraction | None:
    """The factor between a number and the base that it is computed from; None if there is none.

    Args:
        number: the number.
        is_base: whether a number is the base; other leaves are constants.
        value: of a leaf.

    >>> three_quarters = Operation("floordiv", Operation("mul", 3, Attribute("width")), 4)
    >>> proportion(three_quarters, lambda n: n == Attribute("width"), lambda leaf: 8)
    Fraction(3, 4)
    """

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


def replace_dimensions(number: Number, dimension: Callable[[Any], Any]) -> Number:
    """The number with every dimension described anew."""
    if isinstance(number, Operation):
        operands = (replace_dimensions(n, dimension) for n in (number.first, number.second))
        return Operation(number.name, *operands)
    return SizeOf(dimension(number.dimension)) if isinstance(number, SizeOf) else number


class Uses(list[Number]):
    """The formulas of integers that were lost to other arithmetic, such as a square root."""

    def compare(self, one: Number, other: Number, equal: bool) -> None:
        """Two numbers were compared, with this outcome."""


class TracedInt(int):
    """An integer with its formula; arithmetic with other integers keeps it.

    Where it is lost to other arithmetic, such as a square root, it adds its formula to ``uses``;
    comparisons are told there too.

    >>> three = TracedInt(4, Attribute("heads"), uses := Uses()) * 3
    >>> three.number, 1 / three, len(uses)
    (Operation(name='mul', first=Attribute(name='heads'), second=3), 0.08333333333333333, 1)
    """

    number: Number
    uses: Uses

    def __new__(cls, value: int, number: Number, uses: Uses) -> TracedInt:
        """The integer ``value``, known to be ``number``."""
        integer = super().__new__(cls, value)
        integer.number, integer.uses = number, uses
        return integer

    def __deepcopy__(self, memo: object) -> TracedInt:
        return self


def multiply(numbers: Sequence[Number]) -> Number:
    """The product of some numbers.

    >>> multiply([Attribute("heads"), 3])
    Operation(name='mul', first=Attribute(name='heads'), second=3)
    """
    total: Number = numbers[0] if numbers else 1
    for number in numbers[1:]:
        total = Operation("mul", total, number)
    return total


def number_of(value: int) -> Number:
    """The formula of an integer: itself, if it has none."""
    return value.number if isinstance(value, TracedInt) else int(value)


def _tracking(name: str, *, is_swapped: bool) -> Callable[[TracedInt, Any], Any]:
    plain = getattr(int, f"__r{name}__" if is_swapped else f"__{name}__")

    def operate(self: TracedInt, other: Any) -> Any:
        value = plain(self, other)
        if type(value) is not int:  # not an integer any more, or not an operation on integers
            if isinstance(other, float | complex):
                self.uses.append(self.number)
            return value
        first, second = (other, self) if is_swapped else (self, other)
        number = Operation(name, number_of(first), number_of(second))
        return TracedInt(value, number, self.uses)

    return operate


def _negative(self: TracedInt) -> TracedInt:
    number = self.number
    twice = isinstance(number, Operation) and (number.name, number.first) == ("mul", -1)
    opposite = number.second if isinstance(number, Operation) and twice else None
    negation = Operation("mul", -1, number) if opposite is None else opposite
    return TracedInt(-int(self), negation, self.uses)


TracedInt.__neg__ = _negative  # type: ignore[method-assign, assignment]


def _comparing(name: str) -> Callable[[TracedInt, Any], Any]:
    plain = getattr(int, name)

    def compare(self: TracedInt, other: Any) -> Any:
        outcome = plain(self, other)
        if isinstance(other, int) and not isinstance(other, bool):
            self.uses.compare(self.number, number_of(other), outcome is (name == "__eq__"))
        return outcome

    return compare


for _name in ("__eq__", "__ne__"):
    setattr(TracedInt, _name, _comparing(_name))
TracedInt.__hash__ = int.__hash__  # type: ignore[method-assign]


def _leaving(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def operate(self: TracedInt, *others: Any) -> Any:
        self.uses.append(self.number)
        return plain(self, *others)

    return operate


for _name in ("float", "truediv", "rtruediv", "pow", "rpow", "divmod", "rdivmod"):
    setattr(TracedInt, f"__{_name}__", _leaving(f"__{_name}__"))


def _array_ufunc(self: TracedInt, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """NumPy computes with the value."""
    self.uses.append(self.number)
    plain = [int(value) if isinstance(value, TracedInt) else value for value in inputs]
    return getattr(ufunc, method)(*plain, **options)


TracedInt.__array_ufunc__ = _array_ufunc  # type: ignore[attr-defined]
for _name in OPERATIONS:
    setattr(TracedInt, f"__{_name}__", _tracking(_name, is_swapped=False))
    setattr(TracedInt, f"__r{_name}__", _tracking(_name, is_swapped=True))
