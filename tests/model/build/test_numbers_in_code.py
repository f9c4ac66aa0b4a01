"""Numbers in the code of a module: if they cannot follow a cut, it is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from submodel.core.errors import SubmodelError
from submodel.model.axes import trace
from submodel.model.build import build_module
from submodel.schemes import Draw, Random
from submodel.schemes.draw import draw_units
from tests.support.reference import masked

Forward = Callable[[Any, Tensor], Tensor]
X = torch.linspace(-1, 1, 20).view(4, 5)


class Net(nn.Module):
    """Some layers, some numbers, and a forward."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.heads, self.size, self.width, self.middle = 4, 6, 24, 12
        self.config, self.pair = SimpleNamespace(heads=4, size=6), (4, 6)
        self.lift, self.out = nn.Linear(5, 24), nn.Linear(24, 3)
        self.out12, self.out6 = nn.Linear(12, 3), nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.ones(24))
        self.kernel = nn.Parameter(torch.ones(24, 6, 1))
        self.function = forward
        torch.manual_seed(0)
        for parameter in self.parameters():
            nn.init.normal_(parameter, 0, 0.4)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def attend(y: Tensor) -> Tensor:
    """Attention over all positions, (batch, heads, size) -> (batch, heads * size)."""
    return (torch.tanh(y.unsqueeze(-1) * y.unsqueeze(-2)) @ y.unsqueeze(-1)).flatten(1)


EXACT: dict[str, tuple[Forward, list[int]]] = {
    "stored size": (lambda m, x: m.out(attend(m.lift(x).view(len(x), -1, m.size))), [6]),
    "stored count": (lambda m, x: m.out(attend(m.lift(x).view(len(x), m.heads, -1))), [6]),
    "size by both": (
        lambda m, x: m.out(attend(m.lift(x).view(len(x), -1, m.width // m.heads))),
        [6],
    ),
    "written size": (lambda m, x: m.out(attend(m.lift(x).view(len(x), -1, 6))), [4]),
    "written count": (lambda m, x: m.out(attend(m.lift(x).view(len(x), 4, -1))), [6]),
    "both written": (lambda m, x: m.out(attend(m.lift(x).view(len(x), 4, 6))), []),
    "from an object": (lambda m, x: m.out(attend(m.lift(x).view(-1, m.config.heads, 6))), []),
    "from a pair": (lambda m, x: m.out(attend(m.lift(x).view(len(x), *m.pair))), []),
    "from a shape": (lambda m, x: m.out(attend(quarters(m.lift(x)))), [6]),
    "maxout": (lambda m, x: m.out12(m.lift(x).view(-1, 12, 2).amax(-1)), []),
    "stored maxout": (lambda m, x: m.out12(m.lift(x).view(-1, m.middle, 2).amax(-1)), [12]),
    "group norm": (lambda m, x: m.out(functional.group_norm(m.lift(x), 4, m.scale)), []),
    "stored groups": (
        lambda m, x: m.out(
            functional.conv1d(m.lift(x)[..., None], m.kernel, groups=m.heads)[..., 0]
        ),
        [6, 6],
    ),
    "halves": (lambda m, x: m.out12(halves(m.lift(x), m.middle)), [12]),
    "halves of a shape": (lambda m, x: m.out12(halves(m.lift(x), None)), [12]),
    "written halves": (lambda m, x: m.out12(halves(m.lift(x), 12)), []),
    "written end": (lambda m, x: m.out12(m.lift(x)[:, 12:]), [12]),
    "written middle": (lambda m, x: m.out6(m.lift(x)[:, 6:12]), [12]),
    "chunks": (lambda m, x: m.out6(sum_of(m.lift(x).chunk(4, 1))), [6]),
    "stored parts": (lambda m, x: m.out6(sum_of(m.lift(x).split(m.size, 1))), [6]),
    "written parts": (lambda m, x: m.out6(sum_of(m.lift(x).split(6, 1))), []),
    "stored constants": (lambda m, x: m.out(m.lift(x) * torch.ones(m.width)), [24]),
    "a scale": (lambda m, x: m.out(m.lift(x) / m.width**0.5), [24]),
}


def quarters(h: Tensor) -> Tensor:
    return h.view(h.shape[0], 4, h.shape[1] // 4)


def halves(h: Tensor, half: int | None) -> Tensor:
    half = h.shape[1] // 2 if half is None else half
    return h[:, :half].tanh() * h[:, half:]


def sum_of(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.stack([part.tanh() for part in parts]).sum(0)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("sampling", ["fixed", "bernoulli"])
def test_what_is_cut_can_be_built_and_is_the_masked_model(name: str, sampling: Any) -> None:
    forward, sizes = EXACT[name]
    net = Net(forward)
    axes = trace(net, (X,))
    assert list(axes.cut_by_capacity.values()) == sizes
    for client in range(4):
        cut = draw_units(Random(sampling), axes, 0.5, Draw(0, 0, client))
        small = build_module(net, cut)
        with torch.no_grad():
            torch.testing.assert_close(small(X), masked(net, cut)(X), rtol=1e-4, atol=1e-4)


def test_a_size_that_comes_out_wrong_is_named() -> None:
    net = Net(lambda m, x: m.out(attend(m.lift(x).view(len(x), -1, m.heads + 2))))
    cut = draw_units(Random("fixed"), trace(net, (X,)), 0.5, Draw(0, 0, 0))
    words = r"\(Net\): .*heads .*6 .*3"
    with pytest.raises(SubmodelError, match=words):
        build_module(net, cut)
    with pytest.raises(SubmodelError, match=words):  # hooks are checked as well
        build_module(net, cut, resize=lambda *_: None)

    def settle(small: Any, _: object) -> None:
        small.heads = 1

    assert build_module(net, cut, resize=settle, example_inputs=(X,))(X).shape == (4, 3)


class Scaled(nn.Module):
    """Scale an input by a number that equals the width by coincidence."""

    def __init__(self) -> None:
        super().__init__()
        self.places = 24
        self.lift, self.out = nn.Linear(5, 24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Any:
        return self.out(torch.relu(self.lift(x * self.places)))


def test_a_number_that_may_be_a_size_is_in_doubt() -> None:
    net = Scaled()
    cut = draw_units(Random("fixed"), trace(net, (X,)), 0.5, Draw(0, 0, 0))
    with pytest.raises(SubmodelError, match=r"\(Scaled\): places = 24 "):
        build_module(net, cut)
    small: Any = build_module(net, cut, resize=lambda *_: None)
    assert small.places == 24


def test_a_number_of_places_is_no_size() -> None:
    """Like the shift of a Swin transformer, which may equal its number of heads."""
    net = Net(lambda m, x: m.out(m.lift(x.roll(m.width, 1))))
    cut = draw_units(Random("fixed"), trace(net, (X,)), 0.5, Draw(0, 0, 0))
    small: Any = build_module(net, cut)
    assert (small.width, small.lift.out_features) == (24, 12)


def test_a_count_of_copies_that_does_not_fit_is_found_by_running() -> None:
    net = Net(lambda m, x: m.out(m.lift(x)[:, :6].repeat(1, 4)))
    cut = draw_units(Random("fixed"), trace(net, (X,)), 0.5, Draw(0, 0, 0))
    with pytest.raises(SubmodelError, match=r"out \(Linear\) .*4x24 and 12x3"):
        build_module(net, cut, example_inputs=(X,))
