"""Verification catches wrong couplings, names them, and leaves the module as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from submodel.model.axes import CLASSES, AxesError, Dimension, declare, verify
from submodel.model.axes.forward import isolate, weights_of

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
    """A residual branch that starts with next to no weight."""

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
    """Each group of one unit normalises rounding errors: float32 alone would complain."""
    torch.manual_seed(0)
    norm = nn.GroupNorm(8, 8, eps=1e-9)
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), norm, nn.Linear(8, 2))
    check(net, {"0.weight": ("h",), "0.bias": ("h",), "1.weight": (None, "h")})


def test_outputs_that_are_not_finite_cannot_be_verified() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 2))
    with pytest.raises(AxesError, match="no output is finite"):
        check(net, {"0.weight": ("h",), "1.weight": (None, "h")}, X * float("nan"))
