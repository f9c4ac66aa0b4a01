"""The algebra of dimensions against numpy; dimensions of the results of operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

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
from submodel.model.axes.record import Record
from submodel.model.axes.rules.call import OperatorWatch

Order = NDArray[np.int64]


def order(expression: Layout, orders: dict[str, Order]) -> Order:
    """Return the position of each unit if every atom is permuted: numpy on real indices."""
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
    """Draw an order for each atom, by its rank of appearance."""
    found: dict[str, Order] = {}
    for expression in expressions:
        for atom in atoms(expression):
            if atom.axis not in found:
                rng = np.random.default_rng(len(found))
                found[atom.axis] = rng.permutation(atom.size)
    return found


def same(one: Layout, other: Layout) -> bool:
    """Return whether two expressions of the same atoms put units in the same positions."""
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
    """List the factorisations of a size."""
    if size == 1:
        return st.just([])
    divisors = [d for d in range(2, size + 1) if size % d == 0]
    return st.sampled_from(divisors).flatmap(
        lambda d: divisions(size // d).map(lambda rest: [d, *rest])
    )


def cuts(size: int) -> st.SearchStrategy[list[int]]:
    """List the partitions of a size into summands."""
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    """Make a plan and another one of equal size: an independent product or sum, or nested."""
    size = grown(plan)
    atom: Plan = ("atom", size)
    factors = divisions(size).map(
        lambda sizes: ("product", tuple(("atom", n) for n in sizes)) if sizes else atom
    )
    pieces = cuts(size).map(
        lambda sizes: ("concatenation", tuple(("atom", n) for n in sizes if n)) if size else atom
    )
    return st.tuples(st.just(plan), st.one_of(factors, pieces, st.just(atom), st.just(plan)))


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    with pytest.raises(ValueError, match=r"4 .*5: an addition"):
        algebra.unify(algebra.fresh(4), algebra.fresh(5), "an addition")
    with pytest.raises(ValueError, match=r"4 .*\[3, 2\].*: a view"):
        algebra.factor(algebra.fresh(4), [3, 2], "a view")
    with pytest.raises(ValueError, match=r"4 .*\[3, 2\].*: a split"):
        algebra.pieces(algebra.fresh(4), [3, 2], "a split")


def show(expression: Layout, names: dict[str, str]) -> str:
    if isinstance(expression, FixedPart):
        return str(expression.size)
    if isinstance(expression, Along):
        return names.setdefault(expression.axis, f"?{expression.size}")
    sign = "*" if isinstance(expression, Product) else "+"
    return sign.join(
        f"({show(p, names)})" if isinstance(p, Product | Concatenation) else show(p, names)
        for p in expression.parts
    )


def apply(function: Callable[..., Tensor], *shapes: str) -> tuple[str, ...]:
    """Return the dimensions of a result, for operands such as "b:2 c:3 5" (names and sizes)."""
    record, made, names = Record(), [], {}
    known: dict[str, Layout] = {}
    for shape in shapes:
        dimensions: list[Layout] = []
        for entry in shape.split():
            name, _, size = entry.rpartition(":")
            if name and name not in known:
                known[name] = record.algebra.fresh(int(size))
            dimensions.append(known[name] if name else FixedPart(int(size)))
        tensor = torch.rand([d.size for d in dimensions])
        record.add(tensor, dimensions)
        made.append(tensor)
    for name, expression in known.items():
        if isinstance(expression, Along):
            names[expression.axis] = name
    with torch.no_grad(), OperatorWatch(record):
        result = function(*made)
    return tuple(show(record.algebra.resolve(d), names) for d in record.of(result).dimensions)


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (torch.add, ["a:4 b:3", "b:3"], ["a", "b"]),
        (torch.add, ["a:4 1", "b:3"], ["a", "b"]),
        (torch.add, ["a:4", "b:4"], ["a"]),
        (torch.mul, ["a:4", "4"], ["4"]),
        (lambda x: x.relu_().masked_fill_(x > 0, 1), ["a:4"], ["a"]),
        (lambda c, x, y: torch.where(c > 0, x, y), ["a:4 1", "1 b:3", "a:4 b:3"], ["a", "b"]),
        (lambda x: x.sum(1), ["a:4 b:3"], ["a"]),
        (lambda x: x.mean(0, keepdim=True), ["a:4 b:3"], ["1", "b"]),
        (lambda x: x.var((0, 2)), ["a:4 b:3 c:5"], ["b"]),
        (lambda x: x.sum(), ["a:4 b:3"], []),
        (lambda x: x.max(), ["a:4 b:3"], []),
        (lambda x: x.max(1).values, ["a:4 b:3"], ["a"]),
        (lambda x: x.argmax(), ["a:4 b:3"], []),
        (lambda x: x.softmax(1), ["a:4 b:3"], ["a", "b"]),
        (lambda x: x.cumsum(1), ["a:4 b:3"], ["a", "3"]),
        (lambda x: x.sort(0).indices, ["a:4 b:3"], ["4", "b"]),
        (lambda x: x.topk(2, 1).values, ["a:4 b:3"], ["a", "2"]),
        (lambda x: x.tril(), ["a:4 b:3 c:3"], ["a", "3", "3"]),
        (torch.mm, ["a:4 b:3", "b:3 c:5"], ["a", "c"]),
        (torch.matmul, ["n:2 a:4 b:3", "b:3 c:5"], ["n", "a", "c"]),
        (torch.matmul, ["n:2 a:4 b:3", "n:2 b:3 c:5"], ["n", "a", "c"]),
        (torch.mv, ["a:4 b:3", "b:3"], ["a"]),
        (torch.dot, ["b:3", "b:3"], []),
        (torch.baddbmm, ["c:5", "n:2 a:4 b:3", "n:2 b:3 c:5"], ["n", "a", "c"]),
        (functional.linear, ["a:4 b:3", "c:5 b:3", "c:5"], ["a", "c"]),
        (
            lambda x, y: torch.einsum("nhd,nkd->nhk", x, y),
            ["2 h:3 d:4", "2 k:5 d:4"],
            ["2", "h", "k"],
        ),
        (lambda x, y: torch.einsum("i,j->ij", x, y), ["a:4", "b:3"], ["a", "b"]),
        (lambda x: x.flatten(), ["a:4 b:3"], ["a*b"]),
        (lambda x: x.view(2, 2, 3), ["a:4 b:3"], ["?2", "?2", "b"]),
        (lambda x: x.view(4, 1, 3, 1), ["a:4 b:3"], ["a", "1", "b", "1"]),
        (lambda x: x.view(3, 4), ["a:4 b:3"], ["3", "4"]),
        (lambda x: x.t().reshape(-1), ["a:4 b:3"], ["b*a"]),
        (lambda x: x.transpose_(0, 1), ["a:4 b:3"], ["b", "a"]),
        (lambda x: x.permute(2, 0, 1), ["a:4 b:3 c:5"], ["c", "a", "b"]),
        (lambda x: x.movedim(-1, 0), ["a:4 b:3 c:5"], ["c", "a", "b"]),
        (lambda x: x[:, None].squeeze(), ["a:4"], ["a"]),
        (lambda x: x.expand(2, 4), ["a:4"], ["?2", "a"]),
        (lambda x: x.expand(4, 3), ["a:4 1"], ["a", "?3"]),
        (lambda x: x.repeat(2, 1), ["a:4 b:3"], ["?2*a", "b"]),
        (lambda x: x.repeat_interleave(2, 0), ["a:4"], ["a*?2"]),
        (lambda x: torch.stack([x, x], 1), ["a:4"], ["a", "2"]),
        (lambda x, y: torch.cat([x, y], 1), ["a:4 b:3", "a:4 c:5"], ["a", "b+c"]),
        (lambda x: torch.cat([x, torch.zeros(0)]), ["a:4"], ["a"]),
        (lambda x: x.split([1, 3])[1], ["a:4"], ["?3"]),
        (lambda x: x.chunk(2)[0], ["a:4"], ["?2"]),
        (lambda x: x[1:3], ["a:4"], ["?2"]),
        (lambda x: x[-3:], ["a:4"], ["?3"]),
        (lambda x: x[::2], ["a:4"], ["?2"]),
        (lambda x: x[1::3], ["a:5"], ["2"]),
        (lambda x: x[0], ["a:4 b:3"], ["b"]),
        (lambda x: x.unbind(1)[0], ["a:4 b:3"], ["a"]),
        (lambda x: functional.pad(x, (1, 2)), ["a:4"], ["1+a+?2"]),
        (lambda x: functional.pad(x, (-1, 0)), ["a:4"], ["?3"]),
        (lambda x: functional.glu(x), ["a:4"], ["?2"]),
        (lambda x: x[torch.tensor([0, 1, 1])], ["a:4 b:3"], ["3", "b"]),
        (lambda x: x[:, torch.tensor([0]), torch.tensor([1])], ["a:4 b:3 c:5"], ["a", "1"]),
        (lambda x: x[torch.tensor([0]), :, torch.tensor([1])], ["a:4 b:3 c:5"], ["1", "b"]),
        (lambda x: x.index_select(1, torch.tensor([0])), ["a:4 b:3"], ["a", "1"]),
        (lambda x: x.gather(1, torch.zeros(4, 2).long()), ["a:4 b:3"], ["a", "?2"]),
        (lambda x: functional.embedding(torch.tensor([[1]]), x), ["a:4 b:3"], ["1", "1", "b"]),
        (lambda x: x[torch.tensor([True, False, True, True])], ["a:4 b:3"], ["3", "b"]),
        (lambda x: x[:, torch.ones(3, 5).bool()], ["a:4 b:3 c:5 d:2"], ["a", "15", "d"]),
        (lambda x: x.index_put((torch.tensor([0, 1]),), x[:2]), ["a:4 b:3"], ["4", "b"]),
        (lambda x: x.masked_scatter(x > 0, x), ["a:4 b:3"], ["4", "3"]),
        (lambda x, y: x.index_add(0, torch.tensor([0, 1]), y), ["a:4 b:3", "2 c:3"], ["4", "b"]),
        (lambda x: x.scatter_add(0, torch.zeros(4, 3).long(), x), ["a:4 b:3"], ["4", "b"]),
        (
            lambda x: functional.grid_sample(x, torch.zeros(2, 4, 4, 2), align_corners=True),
            ["2 c:4 3 3"],
            ["2", "c", "4", "4"],
        ),
        (lambda x: functional.embedding_bag(torch.zeros(2, 3).long(), x), ["a:4 b:3"], ["2", "b"]),
        (lambda x: functional.avg_pool2d(x, (2, 1)), ["n:2 c:4 6 w:6"], ["n", "c", "3", "w"]),
        (lambda x: torch.view_as_complex(x).real, ["a:4 2"], ["a"]),
        (lambda x: x.unfold(1, 2, 1), ["a:4 b:3"], ["a", "2", "2"]),
        (lambda x: functional.unfold(x, 3), ["n:2 c:4 5 5"], ["n", "c*9", "9"]),
        (lambda x: functional.pixel_shuffle(x, 2), ["n:2 c:8 3 3"], ["n", "?2", "3*?2", "3*?2"]),
        (lambda x: functional.max_pool2d(x, 2), ["n:2 c:4 6 6"], ["n", "c", "3", "3"]),
        (lambda x: functional.avg_pool1d(x, 2), ["n:2 c:4 6"], ["n", "c", "3"]),
        (lambda x: functional.adaptive_avg_pool2d(x, 2), ["n:2 c:4 6 6"], ["n", "c", "2", "2"]),
        (
            lambda x: functional.interpolate(x, scale_factor=2),
            ["n:2 c:4 3 3"],
            ["n", "c", "6", "6"],
        ),
        (lambda x: functional.pad(x, (1, 1), mode="reflect"), ["n:2 c:4 5"], ["n", "c", "7"]),
        (lambda x, w: functional.conv1d(x, w), ["n:2 c:4 s:5", "o:3 c:4 1"], ["n", "o", "s"]),
        (lambda x, w: functional.conv1d(x, w), ["n:2 c:4 s:5", "o:3 c:4 2"], ["n", "o", "4"]),
        (
            lambda x, w: functional.conv1d(x, w, groups=2),
            ["n:2 c:4 5", "o:6 2 1"],
            ["n", "?2*?3", "5"],
        ),
        (lambda x: functional.layer_norm(x, (3,)), ["a:4 b:3"], ["a", "b"]),
        (lambda x: functional.rms_norm(x, (3,)), ["a:4 b:3"], ["a", "b"]),
        (lambda x: functional.group_norm(x, 2), ["n:2 c:4 3"], ["n", "?2*?2", "3"]),
        (lambda x: functional.instance_norm(x), ["n:2 c:4 3"], ["n", "c", "3"]),
        (lambda x: functional.normalize(x, dim=1), ["a:4 b:3"], ["a", "b"]),
        (torch.cdist, ["a:4 b:3", "c:5 b:3"], ["a", "c"]),
        (functional.bilinear, ["n:2 a:4", "n:2 b:3", "o:5 a:4 b:3", "o:5"], ["n", "o"]),
        (lambda x: torch.fft.rfft(x).real, ["a:4 b:6"], ["a", "4"]),
        (lambda x: torch.fft.irfft2(torch.fft.rfft2(x)), ["a:4 6 6"], ["a", "6", "6"]),
        (lambda x: torch.fft.fft(x, dim=0).abs(), ["a:4 b:6"], ["4", "b"]),
        (lambda x: torch.linalg.inv(x), ["a:4 a:4"], ["4", "4"]),
    ],
)
def test_rule(function: Callable[..., Tensor], shapes: list[str], expected: list[str]) -> None:
    torch.manual_seed(0)
    assert apply(function, *shapes) == tuple(expected)


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    return functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=grouped)


def test_attention_and_its_mask() -> None:
    shapes = ["n:2 h:4 s:5 d:8", "n:2 h:4 t:6 d:8", "n:2 h:4 t:6 e:8"]
    assert apply(attended, *shapes) == ("n", "h", "s", "e")
    assert apply(attended, *shapes, "1 4 5 6") == ("n", "4", "5", "e")
    shapes = ["n:2 h:4 s:5 d:8", "n:2 g:2 t:6 d:8", "n:2 g:2 t:6 e:8"]
    assert apply(attended, *shapes) == ("n", "g*?2", "s", "e")


def test_operators_without_a_rule_freeze_what_they_touch() -> None:
    record = Record()
    x = torch.rand(4, 3)
    record.add(x, [record.algebra.fresh(4), record.algebra.fresh(3)])
    with OperatorWatch(record):
        torch.linalg.svd(x)
    found = [record.algebra.resolve(d) for d in record.of(x).dimensions]
    assert found == [FixedPart(4), FixedPart(3)]
    assert found[0].reason == "read by _linalg_svd, which has no rule"  # type: ignore[union-attr]


def test_results_that_a_rule_does_not_describe_freeze_when_they_are_read() -> None:
    record = Record()
    x = torch.rand(4, 3)
    record.add(x, [record.algebra.fresh(4), record.algebra.fresh(3)])
    with OperatorWatch(record):
        _, mean, _ = torch.native_layer_norm(x, (3,), None, None, 1e-5)
        assert record.algebra.resolve(record.of(x).dimensions[0]).size == 4
        assert isinstance(record.algebra.resolve(record.of(x).dimensions[0]), Along)
        mean + 1
    assert record.algebra.resolve(record.of(x).dimensions[0]) == FixedPart(4)


def test_views_of_weights_are_weights() -> None:
    record = Record()
    weight = nn.Parameter(torch.rand(4, 3))
    record.add_weight(weight)
    x = torch.rand(4, 3)
    with OperatorWatch(record), torch.no_grad():
        view, moved, gated = weight.t().reshape(-1)[1:].clone(), weight + 2, weight.sigmoid()
        scaled, masked, square = weight / 3, x * weight, weight @ weight.t()
        added, inverse = square + square, x / weight
    assert all(record.of(t).weight for t in (view, scaled, masked, square, added))
    assert not any(record.of(t).weight for t in (x, moved, gated, inverse))
