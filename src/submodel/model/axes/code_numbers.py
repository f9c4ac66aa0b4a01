"""What a forward did with the numbers in a module's code: which of them make which dimensions.

A `NumberLog` is written while the forward runs (see `watch_numbers`), in terms of the tracer's
expressions; `CodeNumbers` is what remains of it, in terms of layouts, for building small modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from submodel.model.axes.number import (
    Attribute,
    Number,
    SizeOf,
    Uses,
    factors_of,
    leaves,
    replace_dimensions,
)


@dataclass(frozen=True)
class Sizing:
    """A number that makes a dimension, or the number of groups into which a layer divides it."""

    number: Number
    dimension: Any  # the tracer's expression; in `CodeNumbers`, its layout
    where: str  # the path of the module that was running
    groups: bool = False
    line: str = field(default="", compare=False)  # of the code, for messages


@dataclass(frozen=True)
class Comparison:
    """Two numbers that the code compares: a cut must not change the outcome."""

    one: Number
    other: Number
    equal: bool
    line: str = field(default="", compare=False)

    def both_ways(self) -> tuple[tuple[Number, Number], tuple[Number, Number]]:
        """Each of the two numbers with the other."""
        return (self.one, self.other), (self.other, self.one)


@dataclass(frozen=True)
class CodeNumbers:
    """What a forward did with numbers, in terms of layouts."""

    sizings: tuple[Sizing, ...] = ()
    elsewhere: frozenset[str] = frozenset()  # attributes that arrived in some other argument
    comparisons: tuple[Comparison, ...] = ()
    layers: tuple[Sizing, ...] = ()  # numbers of torch's own layers that no tensor of theirs shows
    grouping_modules: frozenset[str] = frozenset()  # paths of those that multiply in groups
    values: frozenset[str] = frozenset()  # attributes from which a value was computed


@dataclass
class NumberLog:
    """What a forward did with numbers, in terms of the tracer's expressions."""

    sizings: list[Sizing] = field(default_factory=list)
    parts: list[list[Any]] = field(default_factory=list)  # of tensors cut into equal parts
    elsewhere: set[str] = field(default_factory=set)
    values: Uses = field(default_factory=Uses)  # numbers that became values, as scales do
    comparisons: dict[Comparison, None] = field(default_factory=dict)
    layers: list[Sizing] = field(default_factory=list)
    grouping_modules: set[str] = field(default_factory=set)
    sizes_read: dict[Any, None] = field(default_factory=dict)  # dimensions whose size was read
    of_layers: dict[Attribute, list[Any]] = field(default_factory=dict)
    """What an integer of torch's own layers may count, as building corrects it with the layer."""

    def scales(self) -> Iterator[Any]:
        """Dimensions whose size became a value: a sub-model computes with its own, smaller one."""
        for leaf in dict.fromkeys(leaf for number in self.values for leaf in leaves(number)):
            if isinstance(leaf, SizeOf):
                yield leaf.dimension
            elif isinstance(leaf, Attribute):
                yield from (s.dimension for s in self.sizings if s.number == leaf)
                yield from self.of_layers.get(leaf, ())

    def in_hand(self) -> Iterator[Any]:
        """Dimensions whose size the code has read, or stores: it may compute anything from it."""
        yield from self.sizes_read
        for sizing in self.sizings:
            if any(isinstance(leaf, Attribute) for leaf in leaves(sizing.number)):
                yield sizing.dimension

    def multiples(self) -> Iterator[tuple[Any, list[Any]]]:
        """Dimensions made by a product of numbers, each with what those of them count that tell."""
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
        """Dimensions that one number counts, or that are equal parts: they must stay equal."""
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
        """Dimensions that a number in the code makes: they must stay as they are. And the lines."""
        lines = {s.dimension: s.line for s in self.sizings if isinstance(s.number, int)}
        for comparison in self.comparisons:
            for one, other in comparison.both_ways() if comparison.equal else ():
                if isinstance(one, int) and isinstance(other, SizeOf):
                    lines.setdefault(other.dimension, comparison.line)
        return lines

    def finish(self, layout: Callable[[Any], Any]) -> CodeNumbers:
        """The same in terms of layouts, without repetitions."""

        def number_of(number: Number) -> Number:
            return replace_dimensions(number, layout)

        def describe(sizings: Sequence[Sizing]) -> tuple[Sizing, ...]:
            return tuple(
                dict.fromkeys(
                    Sizing(number_of(s.number), layout(s.dimension), s.where, s.groups, s.line)
                    for s in sizings
                )
            )

        comparisons = dict.fromkeys(
            Comparison(number_of(c.one), number_of(c.other), c.equal, c.line)
            for c in self.comparisons
        )
        return CodeNumbers(
            describe(self.sizings),
            frozenset(self.elsewhere),
            tuple(comparisons),
            describe(self.layers),
            frozenset(self.grouping_modules),
            frozenset(n.name for v in self.values for n in leaves(v) if isinstance(n, Attribute)),
        )
