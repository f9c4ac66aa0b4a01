"""What a traced dimension is made of: atoms, row-major products, concatenations, fixed parts.

An *atom* is an axis that has no name yet. How two expressions become one, and how one is taken
apart, is in `algebra`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FixedTerm:
    """A part whose order must not change, and why. Two fixed parts of one size are the same."""

    size: int
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Atom:
    """An axis that nothing has frozen or taken apart so far (see `Algebra.resolve`)."""

    number: int
    size: int


@dataclass(frozen=True, slots=True)
class ProductTerm:
    """Parts in row-major order, the last one fastest."""

    parts: tuple[Expression, ...]
    size: int


@dataclass(frozen=True, slots=True)
class ConcatenationTerm:
    """Parts one after another."""

    parts: tuple[Expression, ...]
    size: int


Expression = FixedTerm | Atom | ProductTerm | ConcatenationTerm
ONE = FixedTerm(1)


def product(parts: Iterable[Expression]) -> Expression:
    """The row-major product in its simplest form: flat, without ones, fixed neighbours joined.

    >>> product([FixedTerm(2), FixedTerm(3), Atom(0, 4), ONE])
    ProductTerm(parts=(FixedTerm(size=6, reason=''), Atom(number=0, size=4)), size=24)
    """
    flat: list[Expression] = []
    for part in parts:
        for p in part.parts if isinstance(part, ProductTerm) else (part,):
            if p.size == 1:
                continue
            last = flat[-1] if flat else None
            if isinstance(p, FixedTerm) and isinstance(last, FixedTerm):
                flat[-1] = FixedTerm(last.size * p.size, last.reason or p.reason)
            else:
                flat.append(p)
    if len(flat) < 2:
        return flat[0] if flat else ONE
    size = math.prod(p.size for p in flat)
    return ProductTerm(tuple(flat), size) if size else FixedTerm(0)


def concatenation(parts: Iterable[Expression]) -> Expression:
    """The concatenation in its simplest form: flat, without empty parts, fixed neighbours joined.

    >>> concatenation([FixedTerm(2), FixedTerm(3), FixedTerm(0)])
    FixedTerm(size=5, reason='')
    """
    flat: list[Expression] = []
    for part in parts:
        for p in part.parts if isinstance(part, ConcatenationTerm) else (part,):
            if p.size == 0:
                continue
            last = flat[-1] if flat else None
            if isinstance(p, FixedTerm) and isinstance(last, FixedTerm):
                flat[-1] = FixedTerm(last.size + p.size, last.reason or p.reason)
            else:
                flat.append(p)
    if len(flat) < 2:
        return flat[0] if flat else FixedTerm(0)
    return ConcatenationTerm(tuple(flat), sum(p.size for p in flat))


def simple_terms(expression: Expression) -> Iterator[FixedTerm | Atom]:
    """The atoms and fixed parts, left to right."""
    if isinstance(expression, FixedTerm | Atom):
        yield expression
    else:
        for part in expression.parts:
            yield from simple_terms(part)


def atoms(expression: Expression) -> Iterator[Atom]:
    """The atoms, left to right; an atom that occurs twice comes twice."""
    return (leaf for leaf in simple_terms(expression) if isinstance(leaf, Atom))


def units(expression: Expression) -> Counter[tuple[int, ...]]:
    """How many units are left when axes are cut: a polynomial in how many each atom has left.

    Keys are the atoms that are multiplied, sorted; values are how often that product occurs.

    >>> heads, width = Atom(0, 3), Atom(1, 4)
    >>> units(product([heads, width])) == units(product([width, heads]))
    True
    """
    if isinstance(expression, FixedTerm):
        return Counter({(): expression.size})
    if isinstance(expression, Atom):
        return Counter({(expression.number,): 1})
    if isinstance(expression, ConcatenationTerm):
        return sum(map(units, expression.parts), Counter())
    total: Counter[tuple[int, ...]] = Counter({(): 1})
    for factor in map(units, expression.parts):
        products: Counter[tuple[int, ...]] = Counter()
        for (one, n), (other, m) in itertools.product(total.items(), factor.items()):
            products[tuple(sorted(one + other))] += n * m
        total = products
    return total
