"""The algebra of dimensions: its laws, against what numpy does with real indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from submodel.model.axes.layout import (
    Algebra,
    Along,
    Concatenation,
    FixedPart,
    Layout,
    Product,
    atoms,
    concatenation,
    product,
    simple_parts,
    units,
)

Order = NDArray[np.int64]


def order(expression: Layout, orders: dict[str, Order]) -> Order:
    """Where each unit goes if every atom is put in the given order: numpy on real indices."""
    if isinstance(expression, FixedPart):
        return np.arange(expression.size)
    if isinstance(expression, Along):
        return orders[expression.axis]
    parts = [order(part, orders) for part in expression.parts]
    sizes = [len(part) for part in parts]
    if isinstance(expression, Product):
        return np.arange(expression.size).reshape(sizes)[np.ix_(*parts)].reshape(-1)
    pieces = np.split(np.arange(expression.size), np.cumsum(sizes)[:-1])
    return np.concatenate([piece[part] for piece, part in zip(pieces, parts, strict=True)])


def orders_for(*expressions: Layout) -> dict[str, Order]:
    """A random order for each atom, drawn by its rank of appearance."""
    found: dict[str, Order] = {}
    for expression in expressions:
        for atom in atoms(expression):
            if atom.axis not in found:
                rng = np.random.default_rng(len(found))
                found[atom.axis] = rng.permutation(atom.size)
    return found


def same(one: Layout, other: Layout) -> bool:
    """Whether two expressions, made of the same atoms, put units in the same places."""
    orders = orders_for(one, other)
    return np.array_equal(order(one, orders), order(other, orders))


# A plan of an expression: a leaf ("atom" | "fixed", size), or ("product" | "concatenation", parts).
# The same plan gives the same expression in any algebra.
Plan = tuple[str, int] | tuple[str, tuple["Plan", ...]]
leaf = st.tuples(st.sampled_from(["atom", "atom", "fixed"]), st.integers(1, 6))
plans = st.recursive(
    leaf,
    lambda inner: st.tuples(
        st.sampled_from(["product", "concatenation"]),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
    ),
    max_leaves=4,
)


def build(algebra: Algebra, plan: Plan) -> Layout:
    kind, content = plan
    if isinstance(content, int):
        return algebra.fresh(content) if kind == "atom" else FixedPart(content)
    parts = [build(algebra, part) for part in content]
    return product(parts) if kind == "product" else concatenation(parts)


def divisions(size: int) -> st.SearchStrategy[list[int]]:
    """Ways to write a size as a product."""
    if size == 1:
        return st.just([])
    divisors = [d for d in range(2, size + 1) if size % d == 0]
    return st.sampled_from(divisors).flatmap(
        lambda d: divisions(size // d).map(lambda rest: [d, *rest])
    )


def cuts(size: int) -> st.SearchStrategy[list[int]]:
    """Ways to write a size as a sum."""
    return st.lists(st.integers(0, size), max_size=3).map(
        lambda ends: np.diff([0, *sorted(ends), size]).tolist()
    )


def grown(plan: Plan) -> int:
    kind, content = plan
    if isinstance(content, int):
        return content
    sizes = [grown(part) for part in content]
    return math.prod(sizes) if kind == "product" else sum(sizes)


@given(plans)
def test_the_simplest_form_puts_units_in_the_same_places(plan: Plan) -> None:
    algebra = Algebra()
    expression = build(algebra, plan)
    assert expression.size == grown(plan) == len(order(expression, orders_for(expression)))
    if isinstance(expression, Product | Concatenation):
        assert all(type(part) is not type(expression) for part in expression.parts)
        assert len(expression.parts) > 1


@given(plans.flatmap(lambda p: st.tuples(st.just(p), divisions(grown(p)))))
def test_factors_multiply_to_the_whole(drawn: tuple[Plan, list[int]]) -> None:
    plan, sizes = drawn
    algebra = Algebra()
    whole = build(algebra, plan)
    factors = algebra.factor(whole, sizes, "a view")
    assert [f.size for f in factors] == sizes
    factors = list(map(algebra.resolve, factors))
    assert same(product(factors), algebra.resolve(whole))
    assert all(map(same, algebra.factor(whole, sizes, "again"), factors))


@given(plans.flatmap(lambda p: st.tuples(st.just(p), cuts(grown(p)))))
def test_pieces_add_up_to_the_whole(drawn: tuple[Plan, list[int]]) -> None:
    plan, sizes = drawn
    algebra = Algebra()
    whole = build(algebra, plan)
    pieces = algebra.pieces(whole, sizes, "a split")
    assert [p.size for p in pieces] == sizes
    pieces = list(map(algebra.resolve, pieces))
    assert same(concatenation(pieces), algebra.resolve(whole))
    assert all(map(same, algebra.pieces(whole, sizes, "again"), pieces))


def of_one_size(plan: Plan) -> st.SearchStrategy[tuple[Plan, Plan]]:
    """A plan and another one of the same size: an independent product or sum, or both nested."""
    size = grown(plan)
    atom: Plan = ("atom", size)
    factors = divisions(size).map(
        lambda sizes: ("product", tuple(("atom", n) for n in sizes)) if sizes else atom
    )
    pieces = cuts(size).map(
        lambda sizes: ("concatenation", tuple(("atom", n) for n in sizes if n)) if size else atom
    )
    return st.tuples(st.just(plan), st.one_of(factors, pieces, st.just(atom), st.just(plan)))


@given(plans.flatmap(of_one_size))
def test_unified_expressions_put_units_in_the_same_places(drawn: tuple[Plan, Plan]) -> None:
    algebra = Algebra()
    one, other = (build(algebra, plan) for plan in drawn)
    both = algebra.unify(one, other, "an addition")
    assert both.size == one.size
    assert same(algebra.resolve(one), algebra.resolve(other))
    assert same(both, algebra.resolve(one))
    before = (algebra.resolve(one), algebra.resolve(other))
    algebra.unify(one, other, "again")
    assert before == (algebra.resolve(one), algebra.resolve(other))


@given(plans.flatmap(of_one_size))
def test_unifying_is_commutative(drawn: tuple[Plan, Plan]) -> None:
    found = []
    for swap in (False, True):
        algebra = Algebra()
        one, other = (build(algebra, plan) for plan in drawn)
        algebra.unify(*((other, one) if swap else (one, other)), "an addition")
        known = algebra.resolve(one)
        found.append(order(known, orders_for(known)).tolist())
    assert found[0] == found[1]


@given(st.lists(st.integers(2, 6), min_size=2, max_size=4), st.randoms(), st.booleans())
def test_unifying_rearrangements_of_the_same_atoms(
    sizes: list[int], random: Random, multiply: bool
) -> None:
    algebra = Algebra()
    parts = [algebra.fresh(n) for n in sizes]
    shuffled = random.sample(parts, len(parts))
    join = product if multiply else concatenation
    algebra.unify(join(parts), join(shuffled), "an addition")
    one, other = (algebra.resolve(join(p)) for p in (parts, shuffled))
    assert one.size == other.size
    assert same(one, other)


@given(plans.flatmap(of_one_size))
def test_freezing_one_freezes_the_other(drawn: tuple[Plan, Plan]) -> None:
    algebra = Algebra()
    one, other = (build(algebra, plan) for plan in drawn)
    algebra.unify(one, other, "an addition")
    algebra.freeze(one, "an output")
    assert not list(atoms(algebra.resolve(other)))
    assert all(isinstance(part, FixedPart) for part in simple_parts(algebra.resolve(one)))


def test_units_left_do_not_depend_on_the_order() -> None:
    a, b, c = Along("0", 2), Along("1", 3), Along("2", 4)
    assert units(product([a, concatenation([b, c])])) == {("0", "1"): 1, ("0", "2"): 1}
    one = concatenation([product([a, b]), product([FixedPart(2), a, c])])
    other = product([concatenation([c, b, c]), a])
    assert units(one) == units(other) == {("0", "1"): 1, ("0", "2"): 2}
    assert units(product([a, b])) != units(product([a, a]))


def resolved(algebra: Algebra, expressions: Sequence[Layout]) -> list[Layout]:
    return [algebra.resolve(e) for e in expressions]


def test_a_view_splits_an_axis_everywhere() -> None:
    algebra = Algebra()
    hidden = algebra.fresh(12)
    copy = concatenation([hidden, FixedPart(3)])
    heads, width = algebra.factor(hidden, [3, 4], "a view")
    assert algebra.resolve(copy) == concatenation([product([heads, width]), FixedPart(3)])


def test_thirds_that_are_viewed_as_one_factor_become_alike() -> None:
    algebra = Algebra()
    q, k, v = (algebra.fresh(4) for _ in range(3))
    three, width = algebra.factor(concatenation([q, k, v]), [3, 4], "a view")
    assert three == FixedPart(3)
    assert resolved(algebra, [q, k, v]) == [width] * 3


def test_a_fixed_outer_factor_is_a_repetition() -> None:
    algebra = Algebra()
    width, q, k = algebra.fresh(4), algebra.fresh(4), algebra.fresh(4)
    algebra.unify(product([FixedPart(2), width]), concatenation([q, k]), "an addition")
    assert resolved(algebra, [q, k]) == [width, width]


def test_concatenations_meet_at_all_their_ends() -> None:
    algebra = Algebra()
    one = concatenation([a := algebra.fresh(4), b := algebra.fresh(8)])
    other = concatenation([c := algebra.fresh(7), d := algebra.fresh(5)])
    both = algebra.unify(one, other, "an addition")
    assert isinstance(both, Concatenation)
    assert [part.size for part in both.parts] == [4, 3, 5]
    assert algebra.resolve(b) == concatenation(both.parts[1:])
    assert algebra.resolve(c) == concatenation(both.parts[:2])
    assert algebra.resolve(a) == both.parts[0]
    assert algebra.resolve(d) == both.parts[2]


def test_products_meet_at_all_their_factors_or_freeze() -> None:
    algebra = Algebra()
    one = product([algebra.fresh(2), algebra.fresh(9)])
    both = algebra.unify(one, product([algebra.fresh(6), algebra.fresh(3)]), "an addition")
    assert isinstance(both, Product)
    assert [part.size for part in both.parts] == [2, 3, 3]
    one = product([algebra.fresh(3), algebra.fresh(4)])
    both = algebra.unify(one, product([algebra.fresh(4), algebra.fresh(3)]), "an addition")
    assert isinstance(both, FixedPart)
    assert both == FixedPart(12)
    assert both.reason == "an addition: its parts do not line up"


def test_sizes_are_checked() -> None:
    algebra = Algebra()
    with pytest.raises(ValueError, match="cannot unify 4 units with 5"):
        algebra.unify(algebra.fresh(4), algebra.fresh(5), "an addition")
    with pytest.raises(ValueError, match="are not"):
        algebra.factor(algebra.fresh(4), [3, 2], "a view")
    with pytest.raises(ValueError, match="are not"):
        algebra.pieces(algebra.fresh(4), [3, 2], "a split")
