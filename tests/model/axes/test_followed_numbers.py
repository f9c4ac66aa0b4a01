"""Numbers that a trace follows to the layers and comparisons that use them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from submodel.core.errors import SubmodelError
from submodel.model.axes import trace
from submodel.model.axes.declare import from_json, to_json
from submodel.model.build import build_module
from submodel.model.cut import UnitCut
from tests.model.nets import IMAGE, SEQUENCE, VECTOR, Net, cut_by
from tests.support.reference import RestrictedStatistics, masked


def check(net: nn.Module, x: Tensor, *, mixes: bool = False) -> list[tuple[Any, UnitCut]]:
    """Check sub-models of several cuts against the full model without the dropped units."""
    torch.manual_seed(0)
    net.eval()
    axes = from_json(to_json(trace(net, x)))
    assert axes.cut_by_capacity
    found = []
    for number, capacity in enumerate((0.3, 0.5, 0.5, 0.7)):
        cut = cut_by(axes, capacity, number, "bernoulli")
        small = build_module(net, cut, example_inputs=x)
        with torch.no_grad():
            zeroed = masked(net, cut)
            if mixes:
                with RestrictedStatistics():
                    wanted = zeroed(x)
            else:
                wanted = zeroed(x)
            torch.testing.assert_close(small(x), wanted, rtol=1e-5, atol=1e-5)
        found.append((small, cut))
    return found


def checked_width(m: Any, x: Tensor) -> Any:
    h = m.up(x).relu()
    if h.shape[1] != m.width:
        raise ValueError("another width than that of the configuration")
    return m.down(h)


@pytest.mark.slow
def test_a_number_that_is_compared_with_a_size_follows_it() -> None:
    net = Net(checked_width, width=12, up=nn.Linear(6, 12), down=nn.Linear(12, 3))
    for small, cut in check(net, VECTOR):
        assert small.width == len(cut.units["up"])


def shortcut(m: Any, x: Tensor) -> Any:
    h = m.up(x).relu()
    skip = m.skip(h) if m.inputs != m.outputs else h
    return m.down((m.main(h).view(-1, m.outputs) + skip).relu())


@pytest.mark.parametrize("outputs", [8, 12])
def test_comparisons_of_stored_numbers_keep_their_outcome(outputs: int) -> None:
    """With 8 of 16 units left, both numbers would be 8, and the shortcut would be skipped."""
    layers = {"main": nn.Linear(8, outputs), "down": nn.Linear(outputs, 3)}
    if outputs != 8:
        layers["skip"] = nn.Linear(8, outputs)
    net = Net(shortcut, inputs=8, outputs=outputs, up=nn.Linear(6, 8), **layers)
    check(net, VECTOR)


def test_a_comparison_that_a_cut_must_change_is_refused_by_its_line() -> None:
    def forward(m: Any, x: Tensor) -> Any:
        h = m.up(x)
        return m.down(h.relu() if h.shape[1] != x.shape[0] * 3 else h)

    net = Net(forward, up=nn.Linear(6, 12), down=nn.Linear(12, 3))
    axes = trace(net, VECTOR)
    cut = cut_by(axes)
    with pytest.raises(SubmodelError, match=r"test_followed_numbers.py:\d+ in .*forward "):
        build_module(net, cut)


def test_a_size_written_into_a_comparison_keeps_its_axis_whole() -> None:
    def forward(m: Any, x: Tensor) -> Any:
        h = m.up(x)
        assert h.shape[-1] == 12
        return m.down(h)

    net = Net(forward, up=nn.Linear(6, 12), down=nn.Linear(12, 3))
    assert trace(net, VECTOR).kept_whole == {"up": "a number written in the code makes its size"}


def heads_by_batch(m: Any, x: Tensor) -> Any:
    """Heads folded into the batch: no dimension is `heads`, all are computed from it."""
    b, n, _ = x.shape
    qkv = m.qkv(x).transpose(1, 2)
    width = qkv.shape[1] // (3 * m.heads)
    q, k, v = qkv.reshape(b * m.heads, width * 3, n).split(width, dim=1)
    a = (torch.einsum("bct,bcs->bts", q, k) / math.sqrt(6)).softmax(-1)
    return m.out(torch.einsum("bts,bcs->bct", a, v).reshape(b, -1, n).transpose(1, 2))


def test_a_number_that_is_only_computed_with_is_solved_for() -> None:
    net = Net(heads_by_batch, heads=2, qkv=nn.Linear(6, 36), out=nn.Linear(12, 3))
    axes = trace(net, SEQUENCE)
    for draw in range(3):
        cut = cut_by(axes, 0.5, draw, "bernoulli")
        small = build_module(net, cut, example_inputs=SEQUENCE)
        assert small.heads == 2
        trace(small, SEQUENCE)  # its own permutations are verified


class Grouped(nn.Module):
    """A grouped convolution with a computed weight."""

    def __init__(self, computed: Callable[[nn.Conv2d], nn.Module]) -> None:
        super().__init__()
        self.up = nn.Conv2d(3, 8, 3)
        self.grouped = computed(nn.Conv2d(8, 12, 3, groups=4))
        self.down = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Any:
        h: Tensor = self.grouped(self.up(x).relu()).relu()
        return self.down(h.mean((2, 3)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "computed",
    [
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
    ],
)
def test_groups_of_a_computed_weight_are_known(computed: Any) -> None:
    torch.manual_seed(0)
    net = Grouped(computed).eval()
    axes = trace(net, IMAGE)
    for draw in range(3):
        cut = cut_by(axes, 0.5, draw)
        small: Any = build_module(net, cut, example_inputs=IMAGE)
        assert (small.grouped.groups, small.down.in_features) == (4, 8)
        trace(small, IMAGE)  # its own permutations are verified


@pytest.mark.slow
def test_a_norm_without_weights_takes_the_width_that_it_saw() -> None:
    """Among all widths near 12."""
    net = Net(
        lambda m, x: m.down(m.norm(m.up(x)) * (1 + m.scale(x)) + m.gate(x).relu()),
        up=nn.Linear(6, 12),
        scale=nn.Linear(6, 12),
        gate=nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12)),
        norm=nn.LayerNorm(12, elementwise_affine=False),
        down=nn.Linear(12, 3),
    )
    for small, cut in check(net, VECTOR, mixes=True):
        assert small.norm.normalized_shape == (len(cut.units["up"]),)


def test_groups_of_a_norm_without_weights_are_those_that_it_saw() -> None:
    net = Net(
        lambda m, x: m.down(m.norm(m.up(x)).relu().mean((2, 3))),
        up=nn.Conv2d(3, 12, 3),
        norm=nn.GroupNorm(4, 12, affine=False),
        down=nn.Linear(12, 3),
    )
    for small, _ in check(net, IMAGE):
        assert small.norm.num_channels == small.up.out_channels == 3 * small.norm.num_groups


def test_an_unflatten_is_corrected_by_what_it_makes() -> None:
    net = nn.Sequential(
        nn.Linear(6, 32),
        nn.Unflatten(1, (8, 2, 2)),
        nn.ConvTranspose2d(8, 4, 2),
        nn.Flatten(),
        nn.Linear(36, 3),
    )
    for small, _ in check(net, VECTOR):
        assert small[1].unflattened_size == (small[2].in_channels, 2, 2)


@pytest.mark.parametrize(
    "sum_up",
    [
        lambda h, m: torch.zeros_like(h).index_add_(0, torch.tensor([1, 0]), m),
        lambda h, m: m.clone().view_as(h),
        lambda h, m: m.sum(0, keepdim=True).expand_as(h),
    ],
)
def test_what_is_made_in_the_shape_of_another_tensor_is_cut_with_it(
    sum_up: Callable[[Tensor, Tensor], Tensor],
) -> None:
    net = Net(
        lambda m, x: m.down(sum_up(m.up(x), m.message(x)).relu()),
        up=nn.Linear(6, 12),
        message=nn.Linear(6, 12),
        down=nn.Linear(12, 3),
    )
    check(net, VECTOR)


def test_attention_as_a_function_is_followed() -> None:
    def forward(m: Any, x: Tensor) -> Any:
        h = m.up(x).transpose(0, 1)
        out, _ = functional.multi_head_attention_forward(
            h,
            h,
            h,
            m.width,
            m.heads,
            m.joined.weight,
            m.joined.bias,
            None,
            None,
            False,
            0.0,
            m.out.weight,
            m.out.bias,
            training=False,
            need_weights=False,
        )
        return m.down(out.transpose(0, 1))

    net = Net(
        forward,
        width=12,
        heads=3,
        up=nn.Linear(6, 12),
        joined=nn.Linear(12, 36),
        out=nn.Linear(12, 12),
        down=nn.Linear(12, 2),
    )
    for small, _ in check(net, SEQUENCE, mixes=True):
        assert (small.heads, small.width) == (3, small.up.out_features)


def test_a_bilinear_layer_and_distances_are_cut() -> None:
    net = Net(
        lambda m, x: torch.cdist(m.mix(m.a(x).relu(), m.b(x).tanh()).relu() @ m.last, m.points),
        a=nn.Linear(6, 8),
        b=nn.Linear(6, 10),
        mix=nn.Bilinear(8, 10, 12),
        last=nn.Parameter(torch.randn(12, 8)),
        points=nn.Parameter(torch.randn(5, 8)),
    )
    assert set(trace(net, VECTOR).cut_by_capacity) == {"a", "b", "mix", "last"}
    check(net, VECTOR)


class Fourier(nn.Module):
    """A Fourier layer: complex weights for the first frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.modes, self.width = 3, 10
        self.up = nn.Linear(6, 10)
        self.weight = nn.Parameter(torch.randn(10, 10, 3, dtype=torch.cfloat))
        self.down = nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Any:
        h = self.up(x).transpose(1, 2)
        f = torch.fft.rfft(h)
        out = torch.zeros(len(x), self.width, f.shape[-1], dtype=torch.cfloat)
        low = f[:, :, : self.modes]
        out[:, :, : self.modes] = torch.einsum("bim,iom->bom", low, self.weight)
        return self.down(torch.fft.irfft(out, n=h.shape[-1]).relu().transpose(1, 2))


def test_a_fourier_layer_with_complex_weights_is_cut() -> None:
    axes = trace(Fourier(), SEQUENCE)
    assert axes.exact
    assert axes.frozen["weight[2]"].startswith("frequencies")
    check(Fourier(), SEQUENCE)


def test_a_multiple_of_another_size_is_cut_with_it() -> None:
    """Values are twice as wide as keys, given by one number."""

    def forward(m: Any, x: Tensor) -> Any:
        h = m.qkv(x).view(*x.shape[:2], m.heads, -1)
        q, k, v = h.split([m.size, m.size, m.ratio * m.size], dim=3)
        a = torch.einsum("bnhd,bmhd->bhnm", q, k).softmax(-1)
        return m.out(torch.einsum("bhnm,bmhd->bnhd", a, v).flatten(2))

    numbers = {"heads": 3, "size": 4, "ratio": 2}
    net = Net(forward, **numbers, qkv=nn.Linear(6, 48), out=nn.Linear(24, 3))
    axes = trace(net, SEQUENCE)
    for draw in range(3):
        cut = cut_by(axes, 0.5, draw, "bernoulli")
        small: Any = build_module(net, cut, example_inputs=SEQUENCE)
        assert small.out.in_features == 3 * 2 * small.size
        trace(small, SEQUENCE)  # its own permutations are verified


def test_a_number_of_which_only_a_quotient_counts_may_be_any_that_gives_it() -> None:
    """One layer leaves 2 heads of 3 of 7 units, and the other reads 7."""

    def forward(m: Any, x: Tensor) -> Any:
        h = m.inner(m.up(x).relu())
        return m.out(h.view(*x.shape[:2], m.heads, m.width // m.heads).cos().flatten(2))

    layers = {"up": nn.Linear(6, 12), "inner": nn.Linear(12, 12), "out": nn.Linear(12, 2)}
    check(Net(forward, heads=2, width=12, **layers), SEQUENCE)
