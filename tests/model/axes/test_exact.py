"""`axes.exact` against measurements; verification detects wrong couplings; large models as well."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from submodel.model.axes import CLASSES, AxesError, Dimension, declare, keep, trace, verify
from submodel.model.axes.declare import from_json, to_json
from submodel.model.axes.forward import isolate, weights_of
from submodel.model.axes.measure import measure
from submodel.model.axes.verify import Example, NotOnDemandError, OnDemand, distance
from submodel.model.build import build_module, tensors_of
from submodel.model.cut import UnitCut
from submodel.model.inspect import axes_remarks
from submodel.schemes import Draw, Random
from submodel.schemes.draw import draw_units
from tests.model.nets import IMAGE, SEQUENCE, VECTOR, Net, parameter
from tests.support.reference import masked

Middle = Callable[[Any, Tensor], Tensor]


class Hidden(Net):
    """Two layers with anything in between; with a sigmoid, a dropped unit is not zero there."""

    def __init__(self, middle: Middle, **layers: nn.Module | nn.Parameter) -> None:
        def forward(self: Any, x: Tensor) -> Any:
            return self.b(middle(self, torch.sigmoid(self.a(x))))

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            super().__init__(forward, a=nn.Linear(6, 8), b=nn.Linear(8, 3), **layers)
        self.width, self.by_name = 8, {f"of {n}": 1 / n for n in range(1, 9)}


class PerInput(nn.Linear):
    """A net that divides by a number stored in torch's own layer."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x / self.in_features, self.weight, self.bias)


def loop(_: Any, z: Tensor) -> Tensor:
    for _unit in range(z.shape[-1]):
        z = z * 1.1
    return z


NOT_EXACT: dict[str, Middle] = {
    "numel": lambda _, z: z / z[0].numel(),
    "nelement of a weight": lambda net, z: z * net.a.weight.nelement() ** -0.5,
    "len": lambda _, z: z / len(z[0]),
    "len of a bias": lambda net, z: z / len(net.a.bias),
    "float": lambda _, z: z / float(z.shape[-1]),
    "a float on the left": lambda _, z: z * (0.5 * z.shape[-1]),
    "a float on the right": lambda _, z: z * (z.shape[-1] * 0.5),
    "math.sqrt": lambda _, z: z / math.sqrt(z.shape[-1]),
    "math.log": lambda _, z: z * math.log(z.shape[-1]),
    "math.prod": lambda _, z: z / math.prod(z.shape[1:]),
    "a power": lambda _, z: z * z.shape[-1] ** -0.5,
    "an attribute that is a size": lambda net, z: z.view(-1, net.width) / math.sqrt(net.width),
    "out_features": lambda net, z: z / net.a.out_features,
    "in_features": lambda net, z: z * net.b.in_features**-0.5,
    "NumPy, one size": lambda _, z: z / np.sqrt(z.shape[-1]),
    "NumPy, a shape": lambda _, z: z / float(np.prod(z.shape[1:])),
    "Size.numel": lambda _, z: z / z.shape[1:].numel(),
    "strides": lambda _, z: z / z.stride(0),
    "torch.tensor": lambda _, z: z / torch.tensor(z.shape[-1]),
    "new_tensor": lambda _, z: z / z.new_tensor(float(z.shape[-1])),
    "ones and a sum": lambda _, z: z / torch.ones(z.shape[-1]).sum(),
    "full and a sum": lambda _, z: z / torch.full((len(z[0]),), 1.0).sum(),
    "ones_like and a sum": lambda _, z: z / torch.ones_like(z).sum(-1, keepdim=True),
    "a mean by hand": lambda _, z: z - z.sum(-1, keepdim=True) / z.shape[-1],
    "a mean by ones": lambda _, z: z - z @ torch.ones(z.shape[-1], 1),
    "a list and NumPy": lambda _, z: z / np.mean(z.tolist()),
    "a key of a dict": lambda net, z: z * net.by_name[f"of {z.shape[-1]}"],
    "a branch": lambda _, z: z * 2 if z.shape[-1] > 6 else z,
    "a loop": loop,
    "all parameters": lambda net, z: z / sum(p.numel() for p in net.parameters()),
    "a softmax": lambda _, z: z.softmax(-1),
}
EXACT: dict[str, Middle] = {
    "nothing": lambda _, z: z,
    "a number in the code": lambda _, z: z / 8,
    "a stored number that is no size": lambda net, z: z / math.sqrt(net.width),
    "a view": lambda _, z: z.view(z.shape[0], z.shape[1]),
    "a written slice": lambda _, z: torch.zeros_like(z).index_copy(0, torch.arange(2), z),
    "squares": lambda _, z: z**2,
    "an assertion": lambda net, z: z if z.shape[-1] == net.a.out_features else z / 0,
}


def differs(net: nn.Module, x: Tensor) -> bool:
    """Return whether a sub-model differs from the masked model, by a separate computation."""
    axes = trace(net, x)
    found = []
    draws = [(Random("fixed"), 0.5), (Random("fixed"), 0.25), (Random("bernoulli"), 0.5)]
    for number, (scheme, capacity) in enumerate(draws):
        cut = draw_units(scheme, axes, capacity, Draw(1, number, 0))
        with torch.no_grad():
            small, reference = build_module(net, cut)(x), masked(net, cut)(x)
        found.append(not torch.allclose(small, reference, rtol=1e-5, atol=1e-5))
    return any(found)


@pytest.mark.parametrize("name", NOT_EXACT)
def test_exact_never_says_yes_where_a_size_becomes_a_value(name: str) -> None:
    net = Hidden(NOT_EXACT[name])
    axes = trace(net, VECTOR)
    assert axes.cut_by_capacity == {"a": 8}
    assert axes.exact is False
    assert differs(net, VECTOR)
    assert "not exact: " in str(axes)


@pytest.mark.parametrize("name", NOT_EXACT)
def test_without_measuring_it_does_not_say_yes_either(name: str) -> None:
    assert not trace(Hidden(NOT_EXACT[name]), VECTOR, verify=False).exact


@pytest.mark.parametrize("name", EXACT)
def test_exact_still_says_yes_where_it_is(name: str) -> None:
    net = Hidden(EXACT[name])
    axes = trace(net, VECTOR)
    assert axes.exact is True
    assert axes.measured == (0.5, 0.25)
    assert not differs(net, VECTOR)


def test_a_layer_derived_from_one_of_torch() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), PerInput(8, 3))
    assert trace(net, VECTOR).exact is False
    assert trace(net, VECTOR, verify=False).exact is False


def test_a_learned_query_that_has_no_such_units() -> None:
    """Copies of one value along the width are zero at no masked unit."""
    net = Hidden(lambda net, z: z + z @ net.q.expand(z.shape[-1], 1), q=parameter(1, 1))
    for verified in (False, True):
        axes = trace(net, VECTOR, verify=verified)
        assert axes.inexact["a"] == ("mm multiplies two activations",)
    assert differs(net, VECTOR)


def test_weights_that_are_expanded_over_the_batch_are_weights() -> None:
    net = Net(
        lambda net, x: torch.bmm(net.a(x), net.w.expand(x.shape[0], -1, -1)),
        a=nn.Linear(6, 8),
        w=parameter(8, 3),
    )
    assert trace(net, SEQUENCE).exact is True


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_a_table_stretched_to_the_width_keeps_it_whole(mode: str) -> None:
    net = Hidden(
        lambda net, z: z * functional.interpolate(net.t, size=z.shape[-1], mode=mode).view(-1),
        t=parameter(1, 1, 4),
    )
    assert not trace(net, VECTOR).cut_by_capacity


def test_a_masked_model_that_divides_by_zero_is_not_the_sub_model() -> None:
    net = Hidden(lambda net, z: z / net.t, t=nn.Parameter(torch.rand(8) + 1))
    assert trace(net, VECTOR).exact is False


def test_only_the_axis_that_differs_is_named() -> None:
    net = nn.Sequential(nn.Linear(6, 8), Hidden(NOT_EXACT["math.log"]), nn.Linear(3, 9))
    net[1].a = nn.Linear(8, 7)
    net[1].b = nn.Linear(7, 3)
    axes = trace(net, VECTOR)
    assert list(axes.inexact) == ["1.a"]
    assert "measured at capacity 0.5" in axes.inexact["1.a"][0]


def test_what_is_measured_is_said_and_kept() -> None:
    axes = trace(Hidden(EXACT["a view"]), VECTOR, capacities=(0.75,))
    kept = from_json(to_json(axes))
    assert (kept.measured, kept.doubt, kept.exact) == ((0.75,), "", True)
    assert "yes, exactly (measured at capacities 0.75)" in axes_remarks(axes, is_verified=True)


@pytest.mark.parametrize("capacities", [(0.375,), (0.375, 0.5), (0.5, 0.375)])
def test_every_capacity_is_measured_at_its_own_size(capacities: tuple[float, ...]) -> None:
    """Three of eight units; single draws hold other numbers of them."""
    net = Hidden(lambda _, z: z * 2 if len(z[0]) == 3 else z)
    axes = trace(net, VECTOR, capacities=capacities)
    assert (axes.exact, axes.measured) == (False, capacities)
    assert trace(net, VECTOR, capacities=(0.5, 0.25)).exact is True
    assert trace(net, VECTOR, capacities=(0.25,), least={"a": 0.375}).exact is False


def test_on_the_meta_device_yes_needs_code_that_has_no_size_in_hand() -> None:
    known = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    axes = trace(known.to("meta"), IMAGE.to("meta"))
    assert axes.exact is True
    assert "by its operators; not measured" in axes_remarks(axes, is_verified=False)
    for middle in (EXACT["a view"], NOT_EXACT["NumPy, a shape"]):
        axes = trace(Hidden(middle).to("meta"), VECTOR.to("meta"))
        assert axes.exact is None
        text = axes_remarks(axes, is_verified=False)
        assert "not known; not measured, and the code may compute with the size of a" in text


def test_declared_axes_are_not_known_to_be_exact_until_they_are_measured() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    table: dict[str, tuple[Dimension, ...]] = {
        "0.weight": ("h",),
        "0.bias": ("h",),
        "2.weight": (None, "h"),
    }
    axes = declare(tensors_of(net), table)
    assert axes.exact is None
    assert measure([Example(net, VECTOR)], axes).exact is True


def test_a_sub_model_that_depends_on_the_order_of_its_units_is_refused() -> None:
    """Only the sub-model depends on positions, not the full model."""

    def middle(_: Any, z: Tensor) -> Tensor:
        return z if z.shape[-1] > 7 else z * torch.arange(z.shape[-1])

    with pytest.raises(AxesError, match=r"axis 'a' .*0\.5 "):
        trace(Hidden(middle), VECTOR)


def test_a_sub_model_that_cannot_be_built_is_not_measured() -> None:
    net = Hidden(EXACT["nothing"])
    net.lock = (i for i in range(3))  # type: ignore[assignment] # nobody can copy it
    axes = trace(net, VECTOR)
    assert axes.exact is None
    assert "no sub-model could be built" in axes.doubt


def test_tracing_leaves_no_followed_number_behind() -> None:
    def remember(net: Any, z: Tensor) -> Tensor:
        net.width = z.shape[-1]
        net.by_name["last"] = z
        return z

    net: Any = Hidden(remember)
    before = copy.deepcopy(net.state_dict())
    trace(net, VECTOR)
    assert type(net.width) is int
    assert type(net.a.in_features) is int
    assert "last" not in net.by_name
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_at_capacity_one_nothing_is_dropped() -> None:
    net = Hidden(EXACT["nothing"])
    assert measure([Example(net, VECTOR)], trace(net, VECTOR), (1.0,)).exact is True
    with torch.no_grad():
        assert torch.equal(build_module(net, UnitCut(trace(net, VECTOR), {}))(VECTOR), net(VECTOR))


class OneNormTwice(nn.Module):
    """A norm under two names, whose scales are all equal at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.norm = self.again = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.again(torch.relu(self.norm(self.first(x)))))


def test_a_layer_with_two_names_has_one_value() -> None:
    axes = trace(OneNormTwice(), torch.randn(5, 6))
    assert axes.measured
    assert axes.cut_by_capacity == {"first": 8}


X = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))


def check(module: nn.Module, members: dict[str, tuple[Dimension, ...]], x: Tensor = X) -> None:
    verify(module, x, declare(weights_of(module), members))


class Flatten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.out = nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.conv(x).permute(0, 2, 3, 1).flatten(1))


def test_a_wrong_order_in_a_product_is_caught() -> None:
    conv: dict[str, tuple[Dimension, ...]] = {"conv.weight": ("c",), "conv.bias": ("c",)}
    image = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    check(Flatten(), {**conv, "out.weight": (None, (16, "c"))}, image)
    with pytest.raises(AxesError, match=r"axis 'c' \(conv.weight\[0\], conv.bias\[0\], out"):
        check(Flatten(), {**conv, "out.weight": (None, ("c", 16))}, image)


class Branch(nn.Module):
    """A residual branch that starts with a tiny weight."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8, bias=False), nn.Linear(8, 6, bias=False)
        self.scale = nn.Parameter(torch.full((6,), scale))

    def forward(self, x: Tensor) -> Any:
        return x + self.scale * self.down(self.up(x))


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0])
def test_a_branch_that_starts_at_nothing_hides_no_mistake(scale: float) -> None:
    check(Branch(scale), {"up.weight": ("h",), "down.weight": (None, "h")})
    with pytest.raises(AxesError, match="axis 'h'"):
        check(Branch(scale), {"up.weight": ("h",)})


def test_fresh_norms_hide_no_mistake() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    for name in ("1.weight", "1.bias", "1.running_mean", "1.running_var"):
        members: dict[str, tuple[Dimension, ...]] = {"2.weight": (None, "h")}
        for along in ("0.weight", "0.bias", "1.weight", "1.bias"):
            members[along] = ("h",)
        members |= {"1.running_mean": ("h",), "1.running_var": ("h",)}
        check(net, members)
        del members[name]
        with pytest.raises(AxesError, match="axis 'h'"):
            check(net, members)


@pytest.mark.parametrize("width", [2, 3])
def test_two_small_axes_that_should_be_one(width: int) -> None:
    net = nn.Sequential(nn.Linear(6, width, bias=False), nn.Linear(width, 2))
    with pytest.raises(AxesError):
        check(net, {"0.weight": ("one",), "1.weight": (None, "other")})


def test_only_the_guilty_axis_is_named() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 9), nn.Linear(9, 2))
    with pytest.raises(AxesError) as caught:
        check(
            net,
            {
                "0.weight": ("good",),
                "0.bias": ("good",),
                "1.weight": ("bad", "good"),
                "2.weight": (None, "bad"),
            },
        )
    assert "'bad' (1.weight[0], 2.weight[1])" in str(caught.value)
    assert "good" not in str(caught.value)


def test_classes_move_with_their_axis() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    check(net, {"1.weight": (CLASSES,), "1.bias": (CLASSES,)})
    with pytest.raises(AxesError):
        check(net, {"1.weight": (CLASSES,)})


def test_the_module_is_left_as_it_was_even_after_an_error() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2)).train()
    memory = {name: tensor.data_ptr() for name, tensor in weights_of(net).items()}
    values = {name: tensor.clone() for name, tensor in weights_of(net).items()}
    state = torch.random.get_rng_state()
    with pytest.raises(AxesError):
        check(net, {"0.weight": ("h",)})
    assert memory == {name: tensor.data_ptr() for name, tensor in weights_of(net).items()}
    assert all(torch.equal(values[name], tensor) for name, tensor in weights_of(net).items())
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(layer.training for layer in net.modules())
    assert torch.get_default_dtype() == torch.float32


def test_buffers_that_a_forward_replaces_come_back() -> None:
    class Counts(nn.Module):
        total: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.total += 1
            self.total = self.total + 1
            return x

    net = Counts()
    kept = net.total
    with isolate(net) as copied:
        copied(X)
    assert net.total is kept
    assert kept.item() == 0


def test_noise_that_a_net_amplifies_is_no_mistake() -> None:
    """Each group of one unit normalises rounding errors, which float32 alone would report."""
    torch.manual_seed(0)
    norm = nn.GroupNorm(8, 8, eps=1e-9)
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), norm, nn.Linear(8, 2))
    check(net, {"0.weight": ("h",), "0.bias": ("h",), "1.weight": (None, "h")})


def test_outputs_that_are_not_finite_cannot_be_verified() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 2))
    with pytest.raises(AxesError, match="finite"):
        check(net, {"0.weight": ("h",), "1.weight": (None, "h")}, X * float("nan"))


class Tied(nn.Module):
    """One tensor under two names, a counter in a buffer, and weights read as a product."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(6))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        self.count += 1
        return self.second(torch.relu(self.first(x))) * (self.scale.data + self.count)


class Clipping(nn.Linear):
    """A net that writes to its own weights, like models that clip them."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.clamp_(-0.1, 0.1)
        return super().forward(x)


NETS: dict[str, Callable[[], nn.Module]] = {
    "tied": Tied,
    "clipping": lambda: Clipping(6, 3),
    "attention": lambda: nn.TransformerEncoderLayer(6, 2, 8, batch_first=True),
    "recurrent": lambda: nn.Sequential(nn.LSTM(6, 4, batch_first=True)),
}


@pytest.mark.parametrize("name", NETS)
def test_large_models_compute_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = NETS[name](), torch.randn(2, 5, 6)
    before = [p.clone() for p in net.parameters()]
    expected = Example(net, x).plain.before
    monkeypatch.setattr(keep, "LARGE_MODEL", 0)
    example = Example(net, x)
    assert distance(expected, example.plain.before) < 1e-6
    assert {result.dtype for result in example.double.before} == {torch.float64}
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))


def test_axes_are_those_of_a_small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.Linear(16, 8), nn.Linear(8, 2))
    expected = trace(net, torch.ones(2, 4))
    monkeypatch.setattr(keep, "LARGE_MODEL", 0)
    assert trace(net, torch.ones(2, 4)) == expected


def test_what_cannot_be_done_on_demand_says_so() -> None:
    net = Clipping(6, 3)
    weights = {n: torch.ones_like(p) for n, p in net.named_parameters()}
    with isolate(net, in_place=True), OnDemand(dict(net.named_parameters()), weights.__getitem__):
        with pytest.raises(NotOnDemandError, match=r"^aten\.clamp_\.default "):
            net(torch.ones(1, 6))
        assert torch.equal(net.bias + 1, torch.full((3,), 2.0))
    assert net.weight.stride() == (6, 1)
