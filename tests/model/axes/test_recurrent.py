"""Own loops and states, and experts that no example selects."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from submodel.model.axes import trace
from submodel.model.axes.tracer import longer_inputs
from submodel.model.build import build_module
from submodel.model.cut import UnitCut
from submodel.schemes import Draw, Random
from submodel.schemes.draw import draw_units
from tests.model.nets import SEQUENCE, Net, cut_by, layouts, parameter
from tests.support.reference import masked


def steps(count: int, seed: int = 0) -> Tensor:
    return torch.randn(2, count, 6, generator=torch.Generator().manual_seed(seed))


class Recurrent(Net):
    """Layers for a loop: input, recurrent, output, and a start."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], **more: Any) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers = {"i": nn.Linear(6, 8), "r": nn.Linear(8, 8), "o": nn.Linear(8, 3)}
            super().__init__(forward, **layers, **more)
        self.hidden = 8


def zeros(net: Any, x: Tensor) -> Any:
    h = torch.zeros(x.shape[0], net.hidden)
    for t in range(x.shape[1]):
        h = torch.tanh(net.i(x[:, t]) + net.r(h))
    return net.o(h)


def joined(net: Any, x: Tensor) -> Any:
    h = x.new_zeros(x.shape[0], net.w.shape[1] - 6)
    for x_t in x.unbind(1):
        h = torch.tanh(torch.cat([x_t, h], -1) @ net.w.t())
    return net.o(h)


def learned(net: Any, x: Tensor) -> Any:
    h = net.h0.expand(x.shape[0], -1)
    for t in range(x.shape[1]):
        h = torch.tanh(net.i(x[:, t]) + net.r(h))
    return net.o(h)


def from_input(net: Any, x: Tensor) -> Any:
    h = net.start(x[:, 0])
    for t in range(x.shape[1]):
        h = torch.tanh(net.i(x[:, t]) + net.r(h))
    return net.o(h)


def without_start(net: Any, x: Tensor) -> Any:
    h = None
    for x_t in x.unbind(1):
        h = torch.tanh(net.i(x_t) if h is None else net.i(x_t) + net.r(h))
    return net.o(h)


def time_first(net: Any, x: Tensor) -> Any:
    h = x.new_zeros(x.shape[0], net.hidden)
    for x_t in x.transpose(0, 1):
        h = torch.tanh(net.i(x_t) + net.r(h))
    return net.o(h)


def two_steps_back(net: Any, x: Tensor) -> Any:
    states = [torch.zeros(x.shape[0], net.hidden)] * 2
    for t in range(x.shape[1]):
        states.append(torch.tanh(net.i(x[:, t]) + net.r(states[-2])))
    return net.o(states[-1])


def every_third(net: Any, x: Tensor) -> Any:
    h = torch.zeros(x.shape[0], net.hidden)
    for t in range(x.shape[1]):
        h = torch.tanh(net.i(x[:, t]) + (net.r(h) if t % 3 == 2 else 0))
    return net.o(h)


LOOPS: dict[str, Callable[[], Recurrent]] = {
    "zeros": lambda: Recurrent(zeros),
    "joined": lambda: Recurrent(joined, w=parameter(8, 14)),
    "a learned start": lambda: Recurrent(learned, h0=parameter(8)),
    "a start from the input": lambda: Recurrent(from_input, start=nn.Linear(6, 8)),
    "no start": lambda: Recurrent(without_start),
    "time first": lambda: Recurrent(time_first),
    "two steps back": lambda: Recurrent(two_steps_back),
    "every third step": lambda: Recurrent(every_third),
}


def check(net: nn.Module, x: Tensor, longer: Tensor, calls: int = 1) -> None:
    """Check that a sub-model equals the masked model on longer inputs and in later calls."""
    axes = trace(net, x)
    assert axes.exact is True
    assert list(axes.cut_by_capacity.values()) == [8]
    for number, scheme in enumerate((Random("fixed"), Random("bernoulli"), Random("bernoulli"))):
        cut = draw_units(scheme, axes, 0.5, Draw(0, number, 0))
        small, reference = build_module(net, cut, example_inputs=x), masked(net, cut)
        with torch.no_grad():
            for _ in range(calls):
                torch.testing.assert_close(small(longer), reference(longer), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("count", [1, 2])
def test_a_loop_traced_on_few_steps_is_right_on_more(name: str, count: int) -> None:
    check(LOOPS[name](), steps(count), steps(7, seed=1))


def test_steps_that_come_first_in_the_input() -> None:
    def forward(net: Any, x: Tensor) -> Any:
        h = x.new_zeros(x.shape[1], net.hidden)
        for x_t in x:
            h = torch.tanh(net.i(x_t) + net.r(h))
        return net.o(h)

    check(Recurrent(forward), steps(1).transpose(0, 1), steps(7, seed=1).transpose(0, 1))


def test_steps_of_several_inputs() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.i, self.r, self.o = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor, gate: Tensor) -> Any:
            h = torch.zeros(x.shape[0], self.r.in_features)
            for t in range(x.shape[1]):
                h = gate[:, t, None] * torch.tanh(self.i(x[:, t]) + self.r(h))
            return self.o(h)

    axes = trace(Gated(), (steps(1), torch.ones(2, 1)))
    assert axes.cut_by_capacity == {"i": 8}


@pytest.mark.parametrize("count", [torch.tensor([1, 1]), 1])
def test_a_number_of_steps_that_is_an_input(count: Tensor | int) -> None:
    class Counted(Recurrent):
        def forward(self, x: Tensor, count: Any) -> Any:  # type: ignore[override]
            return learned(self, x[:, : int(torch.as_tensor(count).max())])

    axes = trace(Counted(learned, h0=parameter(8)), (steps(1), count))
    assert axes.cut_by_capacity == {"h0": 8}


def attribute(net: Any, x: Tensor) -> Any:
    h = getattr(net, "state", None)
    h = torch.zeros(x.shape[0], net.hidden) if h is None else h
    net.state = torch.tanh(net.i(x) + net.r(h))
    return net.o(net.state)


def listed(net: Any, x: Tensor) -> Any:
    h = net.memory[-1] if net.memory else torch.zeros(x.shape[0], net.hidden)
    net.memory.append(torch.tanh(net.i(x) + net.r(h)))
    return net.o(net.memory[-1])


def buffered(net: Any, x: Tensor) -> Any:
    net.state = torch.tanh(net.i(x) + net.r(net.state))
    return net.o(net.state)


def overwritten(net: Any, x: Tensor) -> Any:
    net.state.copy_(torch.tanh(net.i(x) + net.r(net.state)))
    return net.o(net.state)


@pytest.mark.parametrize("forward", [attribute, listed, buffered, overwritten])
def test_a_state_that_lives_from_call_to_call(forward: Callable[[Any, Tensor], Any]) -> None:
    net: Any = Recurrent(forward)
    net.memory = []
    if forward in (buffered, overwritten):
        net.register_buffer("state", torch.zeros(2, 8))
    x = steps(1)[:, 0]
    check(net, x, x, calls=3)
    assert net.memory == []
    assert getattr(net, "state", None) is None or not net.state.any()


def test_a_state_that_no_step_feeds_back_is_kept_whole() -> None:
    def forward(net: Any, x: Tensor) -> Any:
        h = torch.zeros(x.shape[0], net.hidden)
        for x_t in x[:, None].unbind(1):  # one step for any input
            h = torch.tanh(net.i(x_t) + net.r(h))
        return net.o(h)

    axes = trace(Recurrent(forward), steps(1)[:, 0])
    assert axes.cut_by_capacity == {"i": 8}
    assert "a state before its first step" in axes.kept_whole["r"]
    assert "r" in trace(Recurrent(forward), steps(1)[:, 0], cut=["r"]).cut_by_capacity


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_layers_of_torch_are_known(kind: Callable[..., nn.Module]) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.r, self.o = kind(6, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Any:
            return self.o(self.r(x)[0][:, -1])

    check(Layer(), steps(1), steps(7, seed=1))


def test_what_does_not_run_on_more_is_left_alone() -> None:
    image = torch.ones(2, 1, 9, 9)
    assert not list(longer_inputs(nn.Sequential(nn.Flatten(), nn.Linear(81, 2)), image, ()))
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(196, 2))
    assert not list(longer_inputs(net, image, ()))


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(12, 20), nn.Linear(20, 12)

    def forward(self, x: Tensor) -> Any:
        return self.down(functional.gelu(self.up(x)))


class Mixture(nn.Module):
    """Each token goes to one of many experts; few tokens leave most of them unused."""

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


@pytest.mark.slow
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
    with torch.no_grad():  # inputs for every expert
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
    """`Grouped` as a loop over groups."""

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
