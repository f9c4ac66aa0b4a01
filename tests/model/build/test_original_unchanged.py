"""Tracing, building and training leave a model unchanged."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

import submodel
from submodel.core.errors import ConfigError
from submodel.model.axes import trace
from submodel.model.build import build_module
from submodel.model.cut import WHOLE
from tests.model.nets import cut_by
from tests.support.snapshot import changes, snapshot

SEEN: dict[object, object] = {}
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Three layers; state that a subclass stores in the forward must not remain."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.prepare()

    def prepare(self) -> None:
        pass

    def note(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Any:
        return self.last(self.note(torch.relu(self.middle(torch.relu(self.first(x))))))


class Sizes(Net):
    """Sizes and counts in attributes, one of them new."""

    def prepare(self) -> None:
        self.width, self.calls = 8, 0

    def note(self, x: Tensor) -> Tensor:
        self.width, self.new = x.shape[-1], x.shape
        self.calls += 1
        return x.view(-1, self.width)


class Containers(Net):
    """A list shared by two layers, a set, a queue, and their contents."""

    def prepare(self) -> None:
        self.sizes: Any = {"seen": []}
        self.first.sizes = self.sizes["seen"]
        self.kinds: set[object] = set()
        self.last_two: deque[object] = deque([0, 1], maxlen=2)

    def note(self, x: Tensor) -> Tensor:
        self.sizes["seen"].append(x.shape[-1])
        self.kinds.add(x.shape)
        self.last_two.append(x.shape[0])
        return x


class OfTheClass(Net):
    sizes: ClassVar[list[int]] = []

    def note(self, x: Tensor) -> Tensor:
        self.sizes.append(x.shape[-1])
        return x


class Global(Net):
    def note(self, x: Tensor) -> Tensor:
        SEEN[x.shape[-1]] = x
        return x


@dataclass
class Config:
    width: int = 8
    seen: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Slots:
    width: int = 8


class Objects(Net):
    def prepare(self) -> None:
        self.config, self.slots = Config(), Slots()

    def note(self, x: Tensor) -> Tensor:
        self.config.width = self.slots.width = x.shape[-1]
        self.config.seen.append(x.shape[0])
        return x


class Variable(Net):
    """A counter in the closure of a function."""

    def prepare(self) -> None:
        calls = 0

        def count(x: Tensor) -> Tensor:
            nonlocal calls
            calls = calls + x.shape[-1]
            return x

        self.count: Any = count

    def note(self, x: Tensor) -> Any:
        return self.count(x)


class Tensors(Net):
    """Buffers and plain tensors that are overwritten, replaced, and kept as a cache."""

    seen: Tensor

    def prepare(self) -> None:
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(8), persistent=False)
        self.steps, self.spread = torch.zeros(()), torch.ones(8)
        self.cache: dict[int, Tensor] = {}

    def note(self, x: Tensor) -> Tensor:
        self.steps += 1
        self.seen = self.seen + 1
        self.cache[len(x)] = x
        functional.batch_norm(x, self.steps.expand(8).clone(), self.spread, training=True)
        return x


class Clipped(Net):
    """Weights to which the forward writes."""

    def prepare(self) -> None:
        self.table = nn.Embedding(32, 8, max_norm=0.1)

    def note(self, x: Tensor) -> Any:
        with torch.no_grad():
            self.last.weight.clamp_(-0.01, 0.01)
        return x + self.table(torch.arange(len(x)))


class Hooks(Net):
    def note(self, x: Tensor) -> Tensor:
        self.last.register_forward_hook(lambda _layer, _inputs, out: out)
        return x


KINDS: list[type[Net]] = [
    *(Sizes, Containers, OfTheClass, Objects, Variable, Tensors, Clipped, Hooks, Global)
]


def train(net: nn.Module, scheme: str) -> None:
    x, y = torch.randn(24, 6), torch.arange(24) % 3
    config = {
        "clients": {"count": 4, "per_round": 2, "capacities": ["1", "1/2"]},
        "scheme": {"name": scheme},
        "data": {"partition": "iid"},
        "train": {"rounds": 1},
        "engine": {"batching": "never"},
    }
    submodel.train(net, submodel.dataset((x, y), (x, y)), config)


@pytest.mark.parametrize("ran", [False, True], ids=["fresh", "used"])
@pytest.mark.parametrize("kind", KINDS)
def test_tracing_and_building_leave_no_trace(kind: type[Net], ran: bool) -> None:
    SEEN.clear()
    OfTheClass.sizes.clear()
    net = kind()
    if ran:
        net(X)
    before, seen = snapshot(net), list(SEEN.items())
    axes = trace(net, X)
    assert changes(before, snapshot(net)) == []
    cut = cut_by(axes, sampling="bernoulli")
    for one in (cut, WHOLE):
        small = (
            build_module(net, one, example_inputs=X)
            if kind is not Global
            else build_module(net, one)
        )
        assert changes(before, snapshot(net)) == []
        mine = snapshot(small)
        assert not [path for path, what in mine.items() if "TracedInt" in str(what)]
    assert [(key, id(value)) for key, value in SEEN.items()] == [(k, id(v)) for k, v in seen]


@pytest.mark.parametrize("kind", [Sizes, Containers, Objects, Variable, Tensors, Clipped])
def test_training_leaves_no_trace(kind: type[Net]) -> None:
    net = kind()
    before = snapshot(net)
    train(net, "static")
    assert changes(before, snapshot(net)) == []


def test_reading_a_computed_weight_leaves_no_trace() -> None:
    """In training mode, every read of a spectral norm takes a step of its power iteration."""
    net = Net().train()
    parametrizations.spectral_norm(net.middle)
    before = snapshot(net)
    cut = cut_by(trace(net, X))
    small: Any = build_module(net, cut, example_inputs=X)
    assert small.middle.out_features == 4
    assert changes(before, snapshot(net)) == []

    grouped = nn.Sequential(nn.Conv1d(6, 8, 1), nn.Conv1d(8, 8, 1, groups=2), nn.Conv1d(8, 3, 1))
    parametrizations.spectral_norm(grouped[1])
    before = snapshot(grouped)
    cut = cut_by(trace(grouped, X[..., None]))
    small = build_module(grouped, cut, example_inputs=X[..., None])
    assert small[1].weight.shape == (4, 2, 1)
    assert changes(before, snapshot(grouped)) == []


def test_what_one_forward_notes_the_next_does_not_see() -> None:
    """Verification runs the model several times, each time from the given state."""

    class Once(Net):
        def prepare(self) -> None:
            self.calls = 0

        def note(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * self.calls

    assert trace(Once(), X).sizes == {"first": 8, "middle": 8}


def test_a_model_that_makes_its_layers_as_it_runs_is_refused() -> None:
    class Late(Net):
        def note(self, x: Tensor) -> Any:
            if not hasattr(self, "late"):
                self.late = nn.Linear(8, 8)
            return self.late(x)

    net = Late()
    with pytest.raises(ConfigError, match=r"^late\.weight: .*forward"):
        trace(net, X)
    assert not hasattr(net, "late")
    net(X)
    assert set(trace(net, X).sizes) == {"first", "middle", "late"}
