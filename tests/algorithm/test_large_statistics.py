"""Buffers have the scale of the data: merged exactly, judged by a bound of their own."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import submodel
from submodel.algorithm.merge import Accumulator, merge_rule
from submodel.model.axes import declare
from submodel.model.cut import UnitCut, gather
from tests.support.common import RULES
from tests.support.exchange import merge_all_updates, merge_in_threads

MODEL = {"w": torch.ones(4), "variance": torch.tensor([1.0, 2e6, 16000.0, 0.3])}
AXES = declare(MODEL, {"w": ("units",), "variance": ("units",)})
PARTS = ([0, 1, 2, 3], [1, 2], [0, 3], [2, 1, 0])


def sums_of(rule: str) -> Accumulator:
    sums = Accumulator(MODEL, merge_rule(rule))
    sums.expect_statistics({"variance"})
    return sums


def updates() -> list[tuple[UnitCut, dict[str, Tensor], float]]:
    """Variances from 0.01 to a billion: most of them were never sent so large."""
    random = torch.Generator().manual_seed(0)
    found = []
    for number, part in enumerate(PARTS):
        cut = UnitCut(AXES, {"units": np.array(part)})
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
    sums, cut = sums_of("selective"), UnitCut(AXES, {})
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
    """Attention with a mask of minus infinities, which a state dict holds."""

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
