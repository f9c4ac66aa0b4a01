"""Contracts 2 and 5: untouched weights keep their bits; the order of updates leaves no trace."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from submodel.algorithm.dispatch import Dispatcher
from submodel.algorithm.merge import (
    FILL_IN,
    LARGEST_WEIGHT_SUM,
    SELECTIVE,
    Accumulator,
    coverage,
    exact_weight,
    merge_rule,
)
from submodel.algorithm.rounds import initial_state, plan
from submodel.algorithm.server import Ball, Box
from submodel.model.axes import declare
from submodel.model.cut import CoordinateCut, Cut, UnitCut, gather
from tests.support.common import RULES, WIDTHS, tiny_setup
from tests.support.schemes import CASES, sections_of

WHOLE = {"w": torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), "b": torch.zeros(6)}
AXES = declare(WHOLE, {"w": ("out", "in"), "b": ("out",)})


def unit_cut(out: list[int], inputs: list[int]) -> UnitCut:
    return UnitCut(AXES, {"out": np.array(out), "in": np.array(inputs)})


def test_both_rules_on_numbers_done_by_hand() -> None:
    whole = {"w": torch.tensor([1.0, 1.0, 1.0])}
    first = (CoordinateCut({"w": torch.tensor([True, True, False])}), torch.tensor([3.0, 1.0, 0.0]))
    second = (CoordinateCut({"w": torch.tensor([True, False, False])}), torch.tensor([5.0, 0, 0]))
    results = {}
    for rule in RULES:
        accumulator = Accumulator(whole, merge_rule(rule))
        for cut, values in (first, second):
            accumulator.add(cut, {"w": values})
        results[rule] = accumulator.merge()["w"].tolist()
        assert coverage([accumulator]) == 2 / 3
    # fill_in: ((3 + 5) / 2, (1 + 1) / 2, 1); selective: those who held it
    assert results == {"fill_in": [4.0, 1.0, 1.0], "selective": [4.0, 1.0, 1.0]}

    weighted = Accumulator(whole, FILL_IN)
    weighted.add(first[0], {"w": first[1]}, 3.0)
    weighted.add(second[0], {"w": second[1]}, 1.0)
    assert weighted.merge()["w"].tolist() == [3.5, 1.0, 1.0]


def test_the_rules_differ_where_only_some_held_a_weight() -> None:
    whole = {"w": torch.tensor([0.0, 0.0])}
    cuts = [torch.tensor([True, True]), torch.tensor([True, False])]
    values = [torch.tensor([1.0, 1.0]), torch.tensor([0.0, 0.0])]
    outcome = {}
    for rule in RULES:
        accumulator = Accumulator(whole, merge_rule(rule))
        for mask, value in zip(cuts, values, strict=True):
            accumulator.add(CoordinateCut({"w": mask}), {"w": value})
        outcome[rule] = accumulator.merge()["w"].tolist()
    # two equal clients holding 1 and 0 average to 0.5, never 0.667
    assert outcome == {"selective": [0.5, 1.0], "fill_in": [0.5, 0.5]}


@pytest.mark.parametrize("model", WIDTHS)
@pytest.mark.parametrize(("scheme", "granularity"), CASES)
def test_gather_then_merge_untouched_changes_no_bit(
    model: str, scheme: str, granularity: str
) -> None:
    setup = tiny_setup(model, **sections_of(scheme, granularity))
    state = initial_state(setup)
    negative_zero = next(iter(state.tensors.values()))
    negative_zero.view(-1)[0] = -0.0
    dispatcher = Dispatcher(setup, state, setup.work)
    for rule in RULES:
        accumulator = Accumulator(state.tensors, merge_rule(rule))
        for assignment in plan(setup, 3):
            cut = dispatcher.cut(assignment, np.array([1, 4, 7]))
            held = gather(cut, state.tensors)
            assert accumulator.refusal(cut, held) is None
            accumulator.add(cut, held)
        for name, tensor in accumulator.merge().items():
            assert tensor.numpy().tobytes() == state.tensors[name].numpy().tobytes(), (rule, name)


Update = tuple[Cut, dict[str, Tensor], float]


def random_updates(seed: int, dtype: torch.dtype) -> tuple[dict[str, Tensor], list[Update]]:
    generator = torch.Generator().manual_seed(seed)
    whole = {n: torch.randn(t.shape, generator=generator, dtype=dtype) for n, t in WHOLE.items()}
    cuts = [unit_cut([0, 2, 5], [1, 3]), unit_cut([1, 2], [0, 1, 2, 3]), unit_cut([5], [2]),
            unit_cut([0, 1, 2, 3, 4, 5], [3])]  # fmt: skip
    updates: list[Update] = []
    for number, cut in enumerate(cuts):
        # magnitudes from 1e-9 to 1e3 make ordinary floating-point sums depend on the order
        values = {
            n: t + torch.randn(t.shape, generator=generator, dtype=dtype) * 10.0 ** (4 * number - 9)
            for n, t in gather(cut, whole).items()
        }
        updates.append((cut, values, exact_weight(1 + number / 3)))
    return whole, updates


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), rule=st.sampled_from(RULES))
def test_the_order_of_updates_changes_no_bit(seed: int, rule: str) -> None:
    for dtype in (torch.float32, torch.float64):
        whole, updates = random_updates(seed, dtype)
        results = set()
        for order in itertools.permutations(updates):
            accumulator = Accumulator(whole, merge_rule(rule))
            for cut, values, weight in order:
                accumulator.add(cut, values, weight)
            results.add(b"".join(t.numpy().tobytes() for t in accumulator.merge().values()))
        assert len(results) == 1


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), rule=st.sampled_from(RULES))
def test_the_merge_is_its_formula(seed: int, rule: str) -> None:
    whole, updates = random_updates(seed, torch.float64)
    accumulator = Accumulator(whole, merge_rule(rule))
    total = {n: np.zeros(t.shape) for n, t in whole.items()}
    held = {n: np.zeros(t.shape) for n, t in whole.items()}
    for cut, values, weight in updates:
        accumulator.add(cut, values, weight)
        assert isinstance(cut, UnitCut)
        rows = cut.units.get("out", np.arange(6))
        columns = cut.units.get("in", np.arange(4))
        for name, index in {"w": np.ix_(rows, columns), "b": (rows,)}.items():
            total[name][index] += weight * (values[name].numpy() - whole[name].numpy()[index])
            held[name][index] += weight
    everyone = sum(weight for _, _, weight in updates)
    for name, merged in accumulator.merge().items():
        divisor = np.maximum(held[name], 1e-9) if rule == "selective" else everyone
        expected = whole[name].numpy() + total[name] / divisor
        # float64 rounding of sums up to 1e3
        np.testing.assert_allclose(merged.numpy(), expected, rtol=1e-12, atol=1e-12)


def test_what_must_not_be_merged_is_refused_in_words() -> None:
    accumulator = Accumulator(WHOLE, SELECTIVE)
    cut = unit_cut([0, 1], [0, 1])
    good = gather(cut, WHOLE)
    assert accumulator.refusal(cut, good) is None
    bad = {
        "not finite": {**good, "b": torch.tensor([0.0, float("nan")])},
        "does not fit the cut": {**good, "w": torch.zeros(3, 3)},
        "missing or unknown": {"w": good["w"]},
        "training diverged": {**good, "b": torch.tensor([0.0, 1e6])},
    }
    for reason, tensors in bad.items():
        assert reason in (accumulator.refusal(cut, tensors) or "")
    assert "total weight" in (accumulator.refusal(cut, good, LARGEST_WEIGHT_SUM + 1) or "")


def test_projections_are_the_nearest_points() -> None:
    point = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[-4.0]])}
    on_ball = Ball(2.5)(point)
    assert torch.cat([t.flatten() for t in on_ball.values()]).tolist() == [1.5, 0.0, -2.0]
    assert Ball(5.0)(point)["a"] is point["a"]
    assert Box(2.0)(point)["b"].tolist() == [[-2.0]]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_small_tensors_are_merged_together_to_the_bits_of_one_by_one(rule: str, count: int) -> None:
    random = torch.Generator().manual_seed(count)
    cuts = [unit_cut([0, 2, 5], [3, 1]), unit_cut([5, 4], [0, 1, 2, 3]), unit_cut([1], [2])]
    updates = [
        (
            cut,
            {n: t + torch.randn(t.shape, generator=random) for n, t in gather(cut, WHOLE).items()},
        )
        for cut in (cuts * 2)[:count]
    ]
    together, apart = (Accumulator(WHOLE, merge_rule(rule)) for _ in range(2))
    for number, (cut, tensors) in enumerate(updates):
        together.add(cut, tensors, 1 + number / 4)
        masks = {n: torch.zeros(t.shape, dtype=torch.bool) for n, t in WHOLE.items()}
        whole_shapes = {n: torch.zeros(t.shape) for n, t in WHOLE.items()}
        for name, tensor in tensors.items():  # masks are merged tensor by tensor
            cut.put(name, masks[name], True)
            cut.put(name, whole_shapes[name], tensor)
        apart.add(CoordinateCut(masks), whole_shapes, 1 + number / 4)
    merged = apart.merge()
    assert coverage([together]) == coverage([apart])
    for name, tensor in together.merge().items():
        assert torch.equal(tensor, merged[name])
        assert tensor.untyped_storage().nbytes() == 4 * tensor.numel()  # in memory of its own
    assert coverage([together]) == coverage([apart])
