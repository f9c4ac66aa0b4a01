"""Contracts 2 and 5: untouched weights keep their bits; the order of updates does not matter.

Buffers have the scale of the data: they are merged exactly, and have a separate bound.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import submodel
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
from tests.support.exchange import merge_all_updates, merge_in_threads
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
    # fill_in: ((3 + 5) / 2, (1 + 1) / 2, 1); selective: over the holders
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


@pytest.mark.every(3)
@pytest.mark.slow
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


@pytest.mark.slow
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
    total_weight = sum(weight for _, _, weight in updates)
    for name, merged in accumulator.merge().items():
        divisor = np.maximum(held[name], 1e-9) if rule == "selective" else total_weight
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
        assert tensor.untyped_storage().nbytes() == 4 * tensor.numel()  # in separate memory
    assert coverage([together]) == coverage([apart])


MODEL = {"w": torch.ones(4), "variance": torch.tensor([1.0, 2e6, 16000.0, 0.3])}
STATISTICS_AXES = declare(MODEL, {"w": ("units",), "variance": ("units",)})
PARTS = ([0, 1, 2, 3], [1, 2], [0, 3], [2, 1, 0])


def sums_of(rule: str) -> Accumulator:
    sums = Accumulator(MODEL, merge_rule(rule))
    sums.expect_statistics({"variance"})
    return sums


def updates() -> list[tuple[UnitCut, dict[str, Tensor], float]]:
    """Make updates with variances from 0.01 to a billion, most of them never sent so large."""
    random = torch.Generator().manual_seed(0)
    found = []
    for number, part in enumerate(PARTS):
        cut = UnitCut(STATISTICS_AXES, {"units": np.array(part)})
        sent = gather(cut, MODEL)
        powers = 11 * torch.rand(len(part), generator=random) - 2
        values = {"w": sent["w"] + powers, "variance": 10**powers}
        found.append((cut, values, 1 + number / 4))
    return found


@pytest.mark.parametrize("rule", RULES)
def test_large_statistics_are_merged_without_order(rule: str) -> None:
    results = []
    for order in itertools.permutations(updates()):
        sums = sums_of(rule)
        for update in order:
            assert sums.refusal(*update) is None
            sums.add(*update)
        results.append(sums.merge())
    for result in results:
        assert torch.equal(result["variance"], results[0]["variance"])
        assert torch.equal(result["w"], results[0]["w"])
    change, held = (torch.zeros(4, dtype=torch.float64) for _ in range(2))
    for cut, values, weight in updates():
        units = torch.from_numpy(cut.units["units"])
        change[units] += weight * (values["variance"].double() - MODEL["variance"][units])
        held[units] += weight
    divisor = held if rule == "selective" else sum(weight for _, _, weight in updates())
    wanted = (MODEL["variance"] + change / divisor).float()
    torch.testing.assert_close(results[0]["variance"], wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize("merge", [merge_in_threads, merge_all_updates])
def test_several_processes_merge_large_statistics_to_the_same_bits(merge: Any) -> None:
    alone, apart = sums_of("selective"), [sums_of("selective") for _ in range(3)]
    for number, update in enumerate(updates()):
        alone.add(*update)
        apart[number % 2].add(*update)  # the third has none
    for result in merge(apart):
        assert torch.equal(result["variance"], alone.merge()["variance"])


def test_statistics_are_bounded_and_weights_as_before() -> None:
    sums, cut = sums_of("selective"), UnitCut(STATISTICS_AXES, {})
    for name, value, is_sound in (
        ("w", 2e4, False),
        ("variance", 2e4, True),
        ("variance", 1e17, True),
        ("variance", 1e19, False),
        ("variance", float("nan"), False),
        ("variance", float("inf"), False),
    ):
        update = {**MODEL, name: torch.full((4,), value)}
        assert (sums.refusal(cut, update) is None) == is_sound, (name, value)


def test_what_did_not_change_is_not_judged() -> None:
    model = {"w": torch.ones(2), "mask": torch.tensor([0.0, -3e38])}
    sums = Accumulator(model, merge_rule("fill_in"))
    sums.expect_statistics({"mask"})
    cut = UnitCut(declare(model, {}), {})
    assert sums.refusal(cut, model) is None
    assert sums.refusal(cut, {**model, "mask": torch.tensor([0.0, -2e38])}) is not None
    sums.add(cut, {**model, "w": torch.zeros(2)})
    assert torch.equal(sums.merge()["mask"], model["mask"])


class Causal(nn.Module):
    """Attention with a mask of minus infinities, which a state dict contains."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 2)
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        attention = (h @ h.transpose(1, 2) + self.mask).softmax(-1)
        out: Tensor = self.down((attention @ h).mean(1))
        return out


def normed() -> nn.Module:
    return nn.Sequential(
        nn.BatchNorm1d(4), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)
    )


@pytest.mark.parametrize("batching", ["always", "never"])
@pytest.mark.parametrize("kind", ["features", "mask"])
def test_raw_features_and_infinite_masks_are_trained(kind: str, batching: str) -> None:
    torch.manual_seed(0)
    shape, scale = (
        ((40, 4), torch.tensor([1, 1e2, 1e4, 1e6]))
        if kind == "features"
        else ((40, 3, 4), torch.ones(4))
    )
    x = torch.randn(shape) * scale
    data = submodel.dataset((x, torch.arange(40) % 2), (x, torch.arange(40) % 2))
    config: dict[str, dict[str, Any]] = {
        "data": {"partition": "iid"},
        "clients": {"count": 4, "per_round": 4, "capacities": [0.5, 1]},
        "train": {"rounds": 2},
        "engine": {"name": "local", "batching": batching},
    }
    net = normed() if kind == "features" else Causal()
    result = submodel.train(net, data, config, progress=False)
    assert not any(line["refused"] for line in result.history)
    if kind == "mask":
        assert torch.equal(result.model.get_buffer("mask"), net.get_buffer("mask"))
    else:
        assert result.model.get_buffer("0.running_var").max() > 1e10
