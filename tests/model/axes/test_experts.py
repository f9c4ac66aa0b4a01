"""Experts: those that no example chose, and products of groups at any width."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from submodel.model.axes import trace
from submodel.model.build import build_module
from submodel.model.cut import UnitCut
from tests.model.axes.nets import SEQUENCE, cut_by, layouts
from tests.support.reference import masked


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(12, 20), nn.Linear(20, 12)

    def forward(self, x: Tensor) -> Any:
        return self.down(functional.gelu(self.up(x)))


class Mixture(nn.Module):
    """Each token goes to one of many experts; few tokens leave most of them unseen."""

    def __init__(self, experts: int = 9) -> None:
        super().__init__()
        self.embed, self.gate = nn.Linear(6, 12), nn.Linear(12, experts)
        self.experts = nn.ModuleList([Expert() for _ in range(experts)])
        self.out = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Any:
        x = self.embed(x).flatten(0, 1)
        share, chosen = self.gate(x).softmax(-1).max(-1)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().flatten()
            if len(rows):
                mixed.index_add_(0, rows, expert(x[rows]) * share[rows, None])
        return self.out(x + mixed)


def halves(net: nn.Module, x: Tensor) -> UnitCut:
    return cut_by(trace(net, x))


def test_an_expert_that_no_example_chose_is_cut_like_one_that_was_chosen() -> None:
    torch.manual_seed(0)
    net = Mixture()
    few, many = SEQUENCE[:1, :2], torch.randn(8, 30, 6)
    axes = trace(net, few)
    assert not axes.unused_tensors
    for number in range(9):
        assert layouts(axes)[f"experts.{number}.up.weight"] == (f"experts.{number}.up", "embed")
        assert layouts(axes)[f"experts.{number}.down.weight"] == ("embed", f"experts.{number}.up")
    cut = halves(net, few)
    small = build_module(net, cut, example_inputs=few)
    with torch.no_grad():  # inputs that reach every expert
        torch.testing.assert_close(small(many), masked(net, cut)(many), rtol=1e-5, atol=1e-5)


def test_a_module_of_another_shape_is_not_taken_for_a_sibling() -> None:
    net = Mixture(2)
    net.experts.append(nn.Linear(12, 12))
    net.experts.append(nn.Linear(12, 5))
    axes = trace(net, SEQUENCE)
    assert set(axes.unused_tensors) >= {"experts.2.weight", "experts.3.weight"}
    assert axes.frozen["experts.3.weight[1]"] == "nothing reads it"


class Grouped(nn.Module):
    """Stacked experts, and a product of sorted runs of rows with a matrix each."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(6, 16), nn.Linear(16, 3)
        self.up = nn.Parameter(torch.randn(4, 16, 24) / 4)
        self.down = nn.Parameter(torch.randn(4, 24, 16) / 5)

    def product(self, rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
        return torch._grouped_mm(rows, matrices, offs=ends)

    def forward(self, x: Tensor) -> Any:
        x = self.embed(x).flatten(0, 1)
        ends = torch.tensor([3, 3, 7, 10], dtype=torch.int32)
        x = x + self.product(torch.relu(self.product(x, self.up, ends)), self.down, ends)
        return self.out(x)


class Looped(Grouped):
    """The same, group by group."""

    def product(self, rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
        parts = torch.tensor_split(rows, ends[:-1].tolist())
        return torch.cat([part @ matrix for part, matrix in zip(parts, matrices, strict=True)])


@pytest.mark.parametrize("draw", range(3))
def test_products_of_groups_run_and_train_at_any_width(draw: int) -> None:
    torch.manual_seed(0)
    net, plain = Grouped(), Looped()
    plain.load_state_dict(net.state_dict())
    axes = trace(net, SEQUENCE)
    assert set(axes.cut_by_capacity) == {"embed", "up"}
    cut = cut_by(axes, 0.5, draw, "bernoulli")
    assert any(len(units) % 4 for units in cut.units.values())
    small = build_module(net, cut, example_inputs=SEQUENCE)
    reference = build_module(plain, cut)
    copies: list[Any] = [small, copy.deepcopy(small), pickle.loads(pickle.dumps(small))]
    for module in (*copies, reference):
        module(SEQUENCE).square().sum().backward()
    for module in copies:
        torch.testing.assert_close(module(SEQUENCE), reference(SEQUENCE))
        for one, other in zip(module.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
    whole = build_module(net, UnitCut(axes, {}))
    assert "forward" not in vars(whole)
    assert torch.equal(whole(SEQUENCE), net(SEQUENCE))
