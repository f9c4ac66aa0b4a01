"""Integers with the formula by which they were computed from stored numbers and tensor sizes.

A forward pass computes the sizes of its views in plain Python: `channels // self.groups`. The
formula shows the new value of such a size when widths change, and whether it still fits. A
`NumberLog` is filled while the forward pass runs (see `watch_numbers`), in terms of the tracer's
expressions; `CodeNumbers` is its final form for building, in terms of layouts.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer
from torch import nn

from submodel.model.axes.layout import KIND, Layout, Saved

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
}


@dataclass(frozen=True)
class Attribute(Saved):
    """An integer that a module stores, named like tensors by the path of its module."""

    kind: Annotated[Literal["Attribute"], KIND] = field(
        default="Attribute", kw_only=True, repr=False
    )
    name: str

    def of(self, module: nn.Module) -> int:
        """The stored value."""
        path, _, name = self.name.rpartition(".")
        return int(getattr(module.get_submodule(path), name))


@dataclass(frozen=True)
class SizeOf(Saved):
    """The size of a dimension."""

    kind: Annotated[Literal["SizeOf"], KIND] = field(default="SizeOf", kw_only=True, repr=False)
    dimension: Layout


@dataclass(frozen=True)
class Operation(Saved):
    """An application of one of `OPERATIONS` to two numbers."""

    kind: Annotated[Literal["Computed"], KIND] = field(default="Computed", kw_only=True, repr=False)
    name: Annotated[str, Field(alias="operation", pattern=f"^({'|'.join(OPERATIONS)})$")]
    first: Annotated[Number, Field(alias="left")]
    second: Annotated[Number, Field(alias="right")]


_Formula = Annotated[Attribute | SizeOf | Operation, Field(discriminator="kind")]
Number = Annotated[int, Field(gt=-(1 << 53), lt=1 << 53)] | _Formula
"""The origin of an integer; a plain integer is written in the code or of unknown origin."""


def leaves(number: Number) -> Iterator[int | Attribute | SizeOf]:
    """The leaves of a number's formula."""
    if isinstance(number, Operation):
        yield from leaves(number.first)
        yield from leaves(number.second)
    else:
        yield number


def factors_of(number: Number) -> Iterator[Number]:
    """The factors of a product; the number itself if it is not a product."""
    if isinstance(number, Operation) and number.name == "mul":
        yield from factors_of(number.first)
        yield from factors_of(number.second)
    else:
        yield number


def evaluate(number: Number, value: Callable[[Attribute | SizeOf], int]) -> int:
    """The value of the number, given the values of its leaves."""
    if isinstance(number, Operation):
        first, second = evaluate(number.first, value), evaluate(number.second, value)
        return OPERATIONS[number.name](first, second)
    return number if isinstance(number, int) else value(number)


def proportion(
    number: Number, is_base: Callable[[Number], bool], value: Callable[[Attribute | SizeOf], int]
) -> Fraction | None:
    """The factor between a number and the base in its formula; None if it is not proportional.

    Leaves other than the base are constants.

    >>> three_quarters = Operation("floordiv", Operation("mul", 3, Attribute("width")), 4)
    >>> proportion(three_quarters, lambda n: n == Attribute("width"), lambda leaf: 8)
    Fraction(3, 4)
    """

    def terms(n: Number) -> tuple[Fraction, Fraction] | None:
        """The factor of the base, and the constant term."""
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
    """The number with ``dimension`` applied to all its dimensions."""
    if isinstance(number, Operation):
        operands = (replace_dimensions(n, dimension) for n in (number.first, number.second))
        return Operation(number.name, *operands)
    return SizeOf(dimension(number.dimension)) if isinstance(number, SizeOf) else number


class Uses(list[Number]):
    """The formulas of integers used in untracked arithmetic, such as a square root."""

    def compare(self, one: Number, other: Number, equal: bool) -> None:
        """Note that two numbers were compared, with this outcome."""


class TracedInt(int):
    """An integer with its formula; arithmetic with other integers keeps it.

    In untracked arithmetic, such as a square root, it adds its formula to ``uses``; comparisons are
    noted there too.

    >>> three = TracedInt(4, Attribute("heads"), uses := Uses()) * 3
    >>> three.number, 1 / three, len(uses)
    (Operation(name='mul', first=Attribute(name='heads'), second=3), 0.08333333333333333, 1)
    """

    number: Number
    uses: Uses

    def __new__(cls, value: int, number: Number, uses: Uses) -> TracedInt:
        """Make the integer ``value`` with the formula ``number``."""
        integer = super().__new__(cls, value)
        integer.number, integer.uses = number, uses
        return integer

    def __deepcopy__(self, memo: object) -> TracedInt:
        return self

    def __neg__(self) -> TracedInt:
        match self.number:
            case Operation("mul", -1, opposite):
                negation = opposite
            case number:
                negation = Operation("mul", -1, number)
        return TracedInt(-int(self), negation, self.uses)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        self.uses.append(self.number)
        plain = [int(value) if isinstance(value, TracedInt) else value for value in inputs]
        return getattr(ufunc, method)(*plain, **options)


def multiply(numbers: Sequence[Number]) -> Number:
    """The product of some numbers."""
    total: Number = numbers[0] if numbers else 1
    for number in numbers[1:]:
        total = Operation("mul", total, number)
    return total


def number_of(value: int) -> Number:
    """The formula of an integer; the integer itself if it has none."""
    return value.number if isinstance(value, TracedInt) else int(value)


def _tracking(name: str, *, is_swapped: bool) -> Callable[[TracedInt, Any], Any]:
    plain = getattr(int, f"__r{name}__" if is_swapped else f"__{name}__")

    def operate(self: TracedInt, other: Any) -> Any:
        value = plain(self, other)
        if type(value) is not int:  # the result or the other operand is not an integer
            if isinstance(other, float | complex):
                self.uses.append(self.number)
            return value
        first, second = (other, self) if is_swapped else (self, other)
        number = Operation(name, number_of(first), number_of(second))
        return TracedInt(value, number, self.uses)

    return operate


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


for _name in OPERATIONS:
    setattr(TracedInt, f"__{_name}__", _tracking(_name, is_swapped=False))
    setattr(TracedInt, f"__r{_name}__", _tracking(_name, is_swapped=True))


@dataclass(frozen=True)
class Sizing(Saved):
    """A number that makes a dimension, or the number of groups into which a layer divides it."""

    kind: Annotated[Literal["Made"], KIND] = field(default="Made", kw_only=True, repr=False)
    number: Number
    dimension: Layout
    where: str  # the path of the module that was running
    groups: bool = False
    line: str = field(default="", compare=False)  # of the code, for messages


@dataclass(frozen=True)
class Comparison(Saved):
    """Two numbers that the code compares: a cut must not change the outcome."""

    kind: Annotated[Literal["Compared"], KIND] = field(default="Compared", kw_only=True, repr=False)
    one: Number
    other: Number
    equal: bool
    line: str = field(default="", compare=False)

    def both_ways(self) -> tuple[tuple[Number, Number], tuple[Number, Number]]:
        """Each of the two numbers with the other."""
        return (self.one, self.other), (self.other, self.one)


def _names_saved(value: Any) -> Any:
    """Read a set of names in its saved form."""
    if not isinstance(value, dict) or not {""} <= value.keys() <= {"", "items"}:
        return value
    items = value.get("items", [])
    is_set = value[""] == "set" and isinstance(items, list)
    return frozenset(items) if is_set and all(isinstance(n, str) for n in items) else value


Names = Annotated[
    frozenset[str],
    BeforeValidator(_names_saved),
    PlainSerializer(lambda names: {"": "set", "items": sorted(names)}),
]


@dataclass(frozen=True)
class CodeNumbers(Saved):
    """The use of numbers in a forward pass."""

    kind: Annotated[Literal["Stored"], KIND] = field(default="Stored", kw_only=True, repr=False)
    sizings: Annotated[tuple[Sizing, ...], Field(alias="made")] = ()
    elsewhere: Names = frozenset()  # attributes passed in other arguments
    comparisons: Annotated[tuple[Comparison, ...], Field(alias="compared")] = ()
    layers: tuple[Sizing, ...] = ()  # numbers of torch's layers that none of their tensors shows
    # paths of modules with grouped products
    grouping_modules: Annotated[Names, Field(alias="grouped")] = frozenset()
    values: Names = frozenset()  # attributes from which a value was computed


@dataclass
class NumberLog:
    """The use of numbers in a forward pass, in terms of the tracer's expressions."""

    sizings: list[Sizing] = field(default_factory=list)
    parts: list[list[Any]] = field(default_factory=list)  # of tensors cut into equal parts
    elsewhere: set[str] = field(default_factory=set)
    values: Uses = field(default_factory=Uses)  # numbers that became values, such as scales
    comparisons: dict[Comparison, None] = field(default_factory=dict)
    layers: list[Sizing] = field(default_factory=list)
    grouping_modules: set[str] = field(default_factory=set)
    sizes_read: dict[Any, None] = field(default_factory=dict)  # dimensions whose size was read
    of_layers: dict[Attribute, list[Any]] = field(default_factory=dict)
    """Dimensions that an integer of torch's layers may count; building corrects it."""

    def scales(self) -> Iterator[Any]:
        """Dimensions whose size became a value; a sub-model computes with its own, smaller size."""
        for leaf in dict.fromkeys(leaf for number in self.values for leaf in leaves(number)):
            if isinstance(leaf, SizeOf):
                yield leaf.dimension
            elif isinstance(leaf, Attribute):
                yield from (s.dimension for s in self.sizings if s.number == leaf)
                yield from self.of_layers.get(leaf, ())

    def exposed_dimensions(self) -> Iterator[Any]:
        """Dimensions whose size the code reads or stores, and may use in any computation."""
        yield from self.sizes_read
        for sizing in self.sizings:
            if any(isinstance(leaf, Attribute) for leaf in leaves(sizing.number)):
                yield sizing.dimension

    def multiples(self) -> Iterator[tuple[Any, list[Any]]]:
        """Dimensions made by a product of numbers, with the known dimensions of its factors."""
        counts = {s.number: s.dimension for s in self.sizings if not s.groups}
        for sizing in self.sizings:
            factors = list(factors_of(sizing.number))
            if len(factors) > 1 and not sizing.groups:
                dimensions = [
                    factor.dimension if isinstance(factor, SizeOf) else counts.get(factor)
                    for factor in factors
                    if not isinstance(factor, int)
                ]
                yield sizing.dimension, [d for d in dimensions if d is not None]

    def alike(self) -> Iterator[list[Any]]:
        """Groups of dimensions with the same number as size, or that are equal parts."""
        dimensions_of: dict[Number, list[Any]] = {}

        def count(number: Number, dimension: Any) -> None:
            itself = [number.dimension] if isinstance(number, SizeOf) else []
            dimensions_of.setdefault(number, itself).append(dimension)

        for sizing in (*self.sizings, *self.layers):
            if not sizing.groups and not isinstance(sizing.number, int):
                count(sizing.number, sizing.dimension)
        for comparison in self.comparisons:
            for one, other in comparison.both_ways() if comparison.equal else ():
                if isinstance(other, SizeOf) and isinstance(one, Attribute | SizeOf):
                    count(one, other.dimension)
        yield from dimensions_of.values()
        yield from self.parts

    def written_out(self) -> dict[Any, str]:
        """Dimensions whose size is written in the code and must stay, with the line of code."""
        lines = {s.dimension: s.line for s in self.sizings if isinstance(s.number, int)}
        for comparison in self.comparisons:
            for one, other in comparison.both_ways() if comparison.equal else ():
                if isinstance(one, int) and isinstance(other, SizeOf):
                    lines.setdefault(other.dimension, comparison.line)
        return lines

    def finish(self, layout: Callable[[Any], Any]) -> CodeNumbers:
        """Convert the log to layouts, without duplicates."""

        def number_of(number: Number) -> Number:
            return replace_dimensions(number, layout)

        def describe(sizings: Sequence[Sizing]) -> tuple[Sizing, ...]:
            described = [
                replace(s, number=number_of(s.number), dimension=layout(s.dimension))
                for s in sizings
            ]
            return tuple(dict.fromkeys(described))

        comparisons = dict.fromkeys(
            replace(c, one=number_of(c.one), other=number_of(c.other)) for c in self.comparisons
        )
        return CodeNumbers(
            describe(self.sizings),
            frozenset(self.elsewhere),
            tuple(comparisons),
            describe(self.layers),
            frozenset(self.grouping_modules),
            frozenset(n.name for v in self.values for n in leaves(v) if isinstance(n, Attribute)),
        )
