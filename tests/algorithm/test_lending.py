"""Modules that serve several evaluations: they score as fresh ones do, and only where they may."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.evaluation import evaluate_model
from submodel.algorithm.rounds import initial_state
from submodel.algorithm.score import lent_module
from submodel.algorithm.types import Assignment
from submodel.model.build import tensors_of
from submodel.model.cut import WHOLE
from submodel.model.norm import Statistics
from tests.support.common import tiny_images, tiny_setup


def lend(net: nn.Module, value: float = 1.0) -> nn.Module:
    tensors = {name: torch.full_like(t, value) for name, t in tensors_of(net).items()}
    with lent_module(net, tensors, WHOLE, "cpu") as module:
        return module


class Counter(nn.Module):
    """Remembers how often it ran: a second pass is not like the first."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        result: Tensor = self.layer(x) * self.calls
        return result


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 1))
    net[0].register_forward_pre_hook(lambda *_: None)
    return net


def overwritten() -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 1))
    net[0].forward = lambda x: x
    return net


@pytest.mark.parametrize("net", [Counter(), hooked(), overwritten(), nn.LSTM(2, 2)])
def test_a_module_that_may_remember_a_pass_is_built_for_each(net: nn.Module) -> None:
    assert lend(net) is not lend(net)


def test_large_weights_are_not_kept() -> None:
    net = nn.Linear(1 << 10, 1 << 11)
    assert lend(net) is not lend(net)


def test_nobody_shares_a_module_that_is_out() -> None:
    net = nn.Sequential(nn.Linear(2, 1, bias=False))
    ones, twos = ({"0.weight": torch.full((1, 2), value)} for value in (1.0, 2.0))
    with lent_module(net, ones, WHOLE, "cpu") as one, lent_module(net, twos, WHOLE, "cpu") as two:
        assert [m(torch.ones(1, 2)).tolist() for m in (one, two)] == [[[2.0]], [[4.0]]]


def test_a_module_is_not_lent_again_after_an_error() -> None:
    net = nn.Sequential(nn.Linear(2, 1))
    first = lend(net)
    with pytest.raises(ZeroDivisionError), lent_module(net, tensors_of(net), WHOLE, "cpu"):
        _ = 1 / 0
    assert lend(net) is not first


@pytest.mark.parametrize("model", ["cnn", "preresnet18"])
@pytest.mark.parametrize("capacity", [1.0, 0.5])
def test_later_evaluations_are_to_the_bit_those_of_fresh_modules(
    model: str, capacity: float
) -> None:
    """Other weights, another cut of the same shape, and other statistics in between."""
    setup = tiny_setup(model, tiny_images(60))
    state = initial_state(setup)
    cuts = [WHOLE if capacity == 1 else cut_of(setup, Assignment(r, 0, capacity)) for r in (0, 1)]
    other = replace(state, tensors={n: t * 1.5 for n, t in state.tensors.items()})
    by_batch = replace(setup, statistics=Statistics("test_batch"))
    before = [evaluate_model(setup, state, cuts[0]), evaluate_model(by_batch, state, cuts[0])]
    after = [evaluate_model(by_batch, other, cuts[1]), evaluate_model(setup, other, cuts[1])]
    fresh = tiny_setup(model, tiny_images(60))
    assert evaluate_model(fresh, other, cuts[1]) == after[1] != before[0]
    fresh = replace(tiny_setup(model, tiny_images(60)), statistics=by_batch.statistics)
    assert evaluate_model(fresh, other, cuts[1]) == after[0] != before[1]
