"""Random nets: for any operators, permuting the found axes never changes the outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from submodel.model.axes import trace

Step = Callable[["Random", Tensor, int], Tensor]
WIDTHS = (4, 6, 8, 12, 24)


class Random(nn.Module):
    """A net that runs a list of drawn steps on (batch, width), then maps to two outputs.

    Steps make their layers in the first run, when widths become known.
    """

    def __init__(self, steps: list[tuple[int, int]]) -> None:
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleList()
        self.made: dict[object, nn.Module] = {}
        self.earlier: list[Tensor] = []

    def layer(self, key: object, make: Callable[[], nn.Module]) -> Any:
        if key not in self.made:
            self.made[key] = make()
            self.layers.append(self.made[key])
        return self.made[key]

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer("in", lambda: nn.Linear(5, 12))(x)
        self.earlier = [h]
        for number, (kind, choice) in enumerate(self.steps):
            self.number = number
            h = STEPS[kind % len(STEPS)](self, h, choice)
            if h.shape[1] > 48:
                h = self.linear(h, 12)
            self.earlier.append(h)
        return self.layer("out", lambda: nn.Linear(h.shape[1], 2))(h)  # type: ignore[no-any-return]

    def linear(self, h: Tensor, width: int) -> Tensor:
        made = self.layer(("linear", self.number), lambda: nn.Linear(h.shape[1], width))
        return made(h)  # type: ignore[no-any-return]

    def vector(self, size: int) -> Tensor:
        made = self.layer(("vector", self.number), lambda: nn.ParameterList([torch.randn(size)]))
        return made[0]  # type: ignore[no-any-return]


def divisor(n: int, choice: int) -> int:
    found = [d for d in range(1, n + 1) if n % d == 0]
    return found[choice % len(found)]


def swap_factors(_: Random, h: Tensor, c: int) -> Tensor:
    d = divisor(h.shape[1], c)
    return h.view(len(h), d, -1).transpose(1, 2).reshape(len(h), -1)


def join(net: Random, h: Tensor, c: int) -> Tensor:
    return torch.cat([h, net.earlier[c % len(net.earlier)]], 1)


def add_earlier(net: Random, h: Tensor, c: int) -> Tensor:
    other = net.earlier[c % len(net.earlier)]
    return h + (other if other.shape == h.shape else net.linear(other, h.shape[1]))


def halves(_: Random, h: Tensor, c: int) -> Tensor:
    if h.shape[1] % 2:
        return h
    a, b = h.chunk(2, 1)
    return torch.cat([b, a], 1) if c % 2 else a * b


def some(_: Random, h: Tensor, c: int) -> Tensor:
    start = c % max(h.shape[1] // 2, 1)
    return h[:, start : start + max(h.shape[1] // 2, 1)]


def groups(net: Random, h: Tensor, c: int) -> Tensor:
    d = divisor(h.shape[1], c)
    norm = net.layer(("norm", net.number), lambda: nn.GroupNorm(d, h.shape[1]))
    return norm(h)  # type: ignore[no-any-return]


def grouped_convolution(net: Random, h: Tensor, c: int) -> Tensor:
    d = divisor(h.shape[1], c)
    make = lambda: nn.Conv1d(h.shape[1], 2 * d, 1, groups=d)  # noqa: E731
    return net.layer(("conv", net.number), make)(h[..., None])[..., 0]  # type: ignore[no-any-return]


def attend(_: Random, h: Tensor, c: int) -> Tensor:
    d = divisor(h.shape[1], c)
    q = h.view(len(h), d, -1)
    return (torch.softmax(q @ q.transpose(1, 2), -1) @ q).reshape(len(h), -1)


def outer(_: Random, h: Tensor, c: int) -> Tensor:
    few = h[:, : 2 + c % 3]
    return torch.einsum("bi,bj->bij", few, h).flatten(1) if h.shape[1] <= 12 else h


def repeated(_: Random, h: Tensor, c: int) -> Tensor:
    return h.repeat(1, 2) if c % 2 else h.repeat_interleave(2, 1)


def pooled(_: Random, h: Tensor, c: int) -> Tensor:
    d = divisor(h.shape[1], c)
    v = h.view(len(h), d, -1)
    return v.sum(c % 2 + 1) if c % 3 else v.amax(c % 2 + 1)


def ordered(_: Random, h: Tensor, c: int) -> Tensor:
    d = divisor(h.shape[1], c)
    v = h.view(len(h), d, -1)
    return (v.cumsum(1) if c % 2 else v.flip(2)).flatten(1)


STEPS: list[Step] = [
    lambda net, h, c: net.linear(h, WIDTHS[c % len(WIDTHS)]),
    lambda _net, h, _c: h.tanh(),
    lambda net, h, _c: h * net.vector(h.shape[1]),
    lambda _net, h, c: functional.pad(h, (c % 3, c % 2)),
    lambda _net, h, _c: functional.layer_norm(h, (h.shape[1],)),
    swap_factors,
    join,
    add_earlier,
    halves,
    some,
    groups,
    grouped_convolution,
    attend,
    outer,
    repeated,
    pooled,
    ordered,
]


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=8))
def test_permuting_the_axes_found_never_moves_the_outputs(steps: list[tuple[int, int]]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Random(steps)
        x = torch.randn(3, 5)
        net(x)
    trace(net, x, capacities=())  # its branches depend on sizes, so its sub-models are other nets
