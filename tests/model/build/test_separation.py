"""A sub-model is separate from the full model, however the model's code accesses its layers."""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import submodel
from submodel.core.errors import SubmodelError
from submodel.engines.batched.forward import UnstackableError, WideForward
from submodel.engines.batched.vmap import MappedForward
from submodel.model.axes import trace
from submodel.model.build import build_module
from submodel.model.cut import WHOLE, UnitCut
from tests.model.nets import Entry, cut_by
from tests.model.zoo.battery import battery

REGISTRY: dict[str, Any] = {}
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Three layers and a scale; subclasses define the access to the middle one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.rand(8) + 0.5)
        self.prepare()

    def prepare(self) -> None:
        pass

    def through(self, x: Tensor) -> Any:
        return self.scale * self.middle(x)

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.relu(self.through(torch.relu(self.first(x)))))


class Attribute(Net):
    """The access is kept in ``self.accesses``."""

    way: Any

    def through(self, x: Tensor) -> Any:
        return self.way(x)


class Lambda(Attribute):
    def prepare(self) -> None:
        self.way = lambda x: self.scale * self.middle(x)


class Closure(Attribute):
    def prepare(self) -> None:
        layer, scale = self.middle, self.scale

        def way(x: Tensor) -> Any:
            return scale * layer(x)

        self.way = way


class Recursive(Attribute):
    def prepare(self) -> None:
        def way(x: Tensor, times: int = 2) -> Tensor:
            return self.middle(x) if not times else way(self.scale * x, times - 1)

        self.way = way


class InTuples(Net):
    def prepare(self) -> None:
        layers = {"middle": [self.middle]}
        self.accesses: Any = [((lambda x: self.scale * layers["middle"][0](x)),)]

    def through(self, x: Tensor) -> Any:
        return self.accesses[0][0](x)


class Partial(Attribute):
    def prepare(self) -> None:
        self.way = functools.partial(
            functional.linear, weight=self.middle.weight, bias=self.middle.bias
        )


class PartialOfLambda(Attribute):
    def prepare(self) -> None:
        self.way = functools.partial(lambda layer, x: self.scale * layer(x), self.middle)


class BoundMethods(Net):
    def prepare(self) -> None:
        self.way, self.times = self.middle.forward, self.scale.mul

    def through(self, x: Tensor) -> Tensor:
        return self.times(self.way(x))


class Hook(Net):
    def prepare(self) -> None:
        self.middle.register_forward_hook(lambda _layer, _inputs, out: out * self.scale)

    def through(self, x: Tensor) -> Any:
        return self.middle(x)


class OwnForward(Net):
    def prepare(self) -> None:
        plain = self.middle.forward

        @functools.wraps(plain)
        def scaled(x: Tensor) -> Tensor:
            return self.scale * plain(x)

        self.middle.forward = scaled  # type: ignore[method-assign, assignment]

    def through(self, x: Tensor) -> Any:
        return self.middle(x)


class Child(nn.Module):
    def __init__(self, parent: Net) -> None:
        super().__init__()
        self.parent = weakref.ref(parent)

    def forward(self, x: Tensor) -> Any:
        parent = self.parent()
        assert parent is not None
        return parent.scale * parent.middle(x)


class WeakParent(Attribute):
    def prepare(self) -> None:
        self.way = Child(self)


class Defaults(Attribute):
    def prepare(self) -> None:
        def way(x: Tensor, layer: nn.Module = self.middle, *, by: Tensor = self.scale) -> Any:
            return by * layer(x)

        self.way = way


class InObjects(Net):
    def prepare(self) -> None:
        self.kept = {
            "config": types.SimpleNamespace(layer=self.middle, by=lambda x: self.scale * x)
        }

    def through(self, x: Tensor) -> Any:
        return self.kept["config"].by(self.kept["config"].layer(x))


class Remembers(Net):
    """Keep an activation, which cannot be deep-copied."""

    seen: Tensor

    def through(self, x: Tensor) -> Tensor:
        self.seen = self.scale * self.middle(x)
        return self.seen


REBOUND: list[type[Net]] = [
    *(Lambda, Closure, Recursive, InTuples, Partial, PartialOfLambda, BoundMethods, Hook),
    *(OwnForward, WeakParent, Defaults, InObjects, Remembers),
]


@pytest.mark.parametrize("kind", REBOUND)
def test_what_code_holds_of_the_model_is_that_of_the_sub_model(kind: type[Net]) -> None:
    measured = battery(Entry(kind.__name__, lambda: (kind(), (X,))))
    assert measured.claimed
    assert measured.gap < 1e-12
    assert measured.axes.sizes == {"first": 8, "middle": 8}


def test_a_remembered_activation_does_not_stop_a_build() -> None:
    net = Remembers()
    net(X)
    assert not net.seen.is_leaf
    assert torch.equal(build_module(net, WHOLE, example_inputs=X)(X), net(X))


class Global(Net):
    def prepare(self) -> None:
        REGISTRY["net"] = self

    def through(self, x: Tensor) -> Any:
        return REGISTRY["net"].middle(x)


class OfTheClass(Net):
    layers: ClassVar[list[nn.Module]] = []

    def prepare(self) -> None:
        self.layers[:] = [self.middle]

    def through(self, x: Tensor) -> Any:
        return self.layers[0](x)


class Cached(Attribute):
    def prepare(self) -> None:
        scale = functools.lru_cache(lambda: self.scale)
        self.way = lambda x: scale() * self.middle(x)


class Keeper:
    """Refuse to be copied."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __deepcopy__(self, memo: object) -> Keeper:
        return self


class Uncopied(Net):
    def prepare(self) -> None:
        self.kept = [Keeper(self.middle)]

    def through(self, x: Tensor) -> Any:
        return self.kept[0].layer(x)


class WeakValues(Net):
    def prepare(self) -> None:
        self.kept = weakref.WeakValueDictionary({"middle": self.middle})

    def through(self, x: Tensor) -> Any:
        return self.kept["middle"](x)


class Shared(nn.Linear):
    def __deepcopy__(self, memo: object) -> Shared:
        return self


class SharedLayer(Net):
    def prepare(self) -> None:
        self.middle = Shared(8, 8)


class Second(Net):
    """A second tensor in the memory of a parameter; a copy would have separate memory."""

    def prepare(self) -> None:
        self.second = self.scale.data

    def through(self, x: Tensor) -> Any:
        return self.second * self.middle(x)


class SharedCache(Net):
    tables: ClassVar[dict[int, Tensor]] = {}

    def through(self, x: Tensor) -> Any:
        table = self.tables.setdefault(len(x), torch.ones(len(x), 1))
        return table * super().through(x)


class Proxy(Attribute):
    def prepare(self) -> None:
        self.way = weakref.proxy(self.middle)


class Generator(Net):
    def prepare(self) -> None:
        self.kept = (n for n in range(3))


REFUSED: dict[type[Net], str] = {
    Global: r" middle.*global REGISTRY\['net'\]\.middle",
    OfTheClass: r" middle.* OfTheClass\.layers\[0\]",
    Cached: r" scale.* way, .*'scale'",
    Uncopied: r"\(Uncopied\) .*middle.* kept\[0\]\.layer",
    WeakValues: r" middle.*kept\.data\['middle'\]",
    SharedLayer: "middle .*Shared ",
    Second: "second: .*memory with scale",
    SharedCache: r" SharedCache\.tables\[4\]",
    Proxy: r"^way \(CallableProxyType\): .*weakref\.proxy",
    Generator: r"\(Generator\): .*'kept', a generator",
}


@pytest.mark.parametrize("capacity", [0.5, 1])
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_redirected_is_named(kind: type[Net], capacity: float) -> None:
    net = kind()

    def attempt() -> None:
        if capacity == 1:  # without a trace
            build_module(net, WHOLE, example_inputs=X)
        else:
            cut = cut_by(trace(net, X), capacity)
            build_module(net, cut, example_inputs=X)

    try:
        with pytest.raises(SubmodelError, match=REFUSED[kind]):
            attempt()
        assert not any(p.grad is not None for p in net.parameters())
        assert not SharedCache.tables
    finally:
        REGISTRY.clear()


def train(net: nn.Module, **options: Any) -> dict[str, Tensor]:
    x, y = torch.randn(48, 6, generator=torch.Generator().manual_seed(1)), torch.arange(48) % 3
    config = {
        "clients": {"count": 4, "per_round": 2, "capacities": ["1", "1/2"]},
        "scheme": {"name": "static"},
        "data": {"partition": "iid"},
        "train": {"rounds": 1, "evaluate_capacities": True},
        **options,
    }
    return dict(submodel.train(net, submodel.dataset((x, y), (x, y)), config).model.state_dict())


@pytest.mark.parametrize("granularity", ["unit", "coordinate"])
def test_training_refuses_before_the_first_round(granularity: str) -> None:
    scheme = {"name": "static", "granularity": granularity}
    with pytest.raises(SubmodelError, match=r"\(Uncopied\) .*middle"):
        train(Uncopied(), scheme=scheme, clients={"count": 4, "per_round": 2, "capacities": ["1"]})


@pytest.mark.parametrize("kind", [Closure, Partial, Hook, OwnForward])
def test_both_engines_train_what_code_holds(kind: type[Net]) -> None:
    """A layer with a hook has no wide form, and vmap cannot replace a weight in a closure."""
    torch.manual_seed(0)
    net = kind()
    serial, stacked = (
        train(net, engine={"batching": batching}) for batching in ("never", "always")
    )
    assert all(p.grad is None for p in net.parameters())
    for name, value in serial.items():
        torch.testing.assert_close(stacked[name], value, rtol=1e-5, atol=1e-6)
        moved = not torch.equal(value, net.state_dict()[name])
        assert moved == (kind is not Partial or name != "scale"), name


def test_stacks_refuse_what_they_cannot_swap() -> None:
    hook, closure = Hook(), Closure()
    with pytest.raises(UnstackableError, match=r"Linear .*hooks"):
        WideForward(hook, X)
    with pytest.raises(UnstackableError, match=r"code .*scale "):
        MappedForward(build_module(closure, WHOLE), closure, X)


def test_functions_that_share_a_variable_still_do() -> None:
    """A counter in a closure is shared by both functions of the copy."""

    class Counting(Net):
        def prepare(self) -> None:
            calls = [self.scale.numel()]

            def more(x: Tensor) -> Tensor:
                nonlocal calls
                calls = [*calls, 1]
                return self.scale * x

            self.more, self.count = more, lambda: len(calls)

        def through(self, x: Tensor) -> Tensor:
            return self.more(self.middle(x))

    net: Any = Counting()
    small: Any = build_module(net, UnitCut(trace(net, X), {"middle": np.array([1, 2])}))
    small(X)
    assert (small.count(), net.count()) == (2, 1)
