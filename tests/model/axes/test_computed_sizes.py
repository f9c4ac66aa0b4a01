"""Sizes that the code computes from one number: they stay in proportion, whatever is drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from submodel.model.axes import trace
from submodel.model.axes.declare import from_json, to_json
from submodel.model.build import build_module
from submodel.model.inspect import findings
from submodel.schemes import Draw, Random
from submodel.schemes.draw import draw_units
from tests.model.axes.nets import Net
from tests.support.reference import masked

NOISE, IMAGE, VIDEO = torch.randn(2, 6), torch.randn(2, 3, 8, 8), torch.randn(2, 3, 4)


def generator() -> Any:
    def forward(net: Any, z: Tensor) -> Any:
        image = torch.relu(net.fc(z)).view(-1, 2 * net.c, 4, 4)
        return net.last(torch.relu(net.norm(net.up(image))))

    up, last = nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.Conv2d(8, 3, 1)
    return Net(forward, fc=nn.Linear(6, 256), up=up, norm=nn.BatchNorm2d(8), last=last, c=8)


def discriminator() -> Any:
    def forward(net: Any, x: Tensor) -> Any:
        return net.fc(torch.relu(net.b(torch.relu(net.a(x)))).view(-1, 4 * 4 * 2 * net.c))

    a, b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 4, 2, 1)
    return Net(forward, a=a, b=b, fc=nn.Linear(256, 1), c=8)


def two_integers() -> Any:
    def forward(net: Any, z: Tensor) -> Any:
        return net.last(net.fc(z).view(-1, 2 * net.ratio * net.width, 4))

    return Net(forward, fc=nn.Linear(6, 96), last=nn.Conv1d(24, 2, 1), ratio=3, width=4)


def shift() -> Any:
    """A temporal shift: the first eighth of the channels forward, the next one back."""

    def forward(net: Any, x: Tensor) -> Any:
        x = torch.relu(net.a(x))
        fold, moved = x.shape[1] // net.parts, torch.zeros_like(x)
        moved[:, :fold, :-1] = x[:, :fold, 1:]
        moved[:, fold : 2 * fold, 1:] = x[:, fold : 2 * fold, :-1]
        moved[:, 2 * fold :] = x[:, 2 * fold :]
        return net.b(moved)

    return Net(forward, a=nn.Conv1d(3, 16, 1), b=nn.Conv1d(16, 2, 1), parts=8)


def spatial_shift() -> Any:
    def forward(net: Any, x: Tensor) -> Any:
        x = torch.relu(net.a(x))
        c, y = x.size(1), x.clone()
        y[:, : c // 4, 1:] = x[:, : c // 4, :-1]
        y[:, c // 4 : c // 2, :-1] = x[:, c // 4 : c // 2, 1:]
        y[:, c // 2 : c * 3 // 4, :, 1:] = x[:, c // 2 : c * 3 // 4, :, :-1]
        return net.b(y)

    return Net(forward, a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 2, 1))


def part_of_an_integer() -> Any:
    """The integer equals the width before; its parts are other widths."""

    def forward(net: Any, x: Tensor) -> Any:
        x = torch.relu(net.a(x))
        gate = torch.sigmoid(net.gate(x)).view(-1, net.width // 8, 64)
        value = net.value(x).view(-1, net.width // 2, 64)
        return net.b(value) + net.d(gate)

    layers: dict[str, nn.Module] = {"a": nn.Conv2d(3, 16, 1), "gate": nn.Conv2d(16, 2, 1)}
    layers |= {"value": nn.Conv2d(16, 8, 1), "b": nn.Conv1d(8, 2, 1), "d": nn.Conv1d(2, 2, 1)}
    return Net(forward, **layers, width=16)


def shares_out() -> Any:
    """Four joined parts, of which the code knows their sum."""

    def forward(net: Any, z: Tensor) -> Any:
        a = net.a(z)[:, : net.c]
        joined = torch.cat([a, net.b(a), net.d(a)], 1)
        return net.last(joined.view(-1, 3 * net.c))

    layers = {"b": nn.Linear(8, 8), "d": nn.Linear(8, 8), "last": nn.Linear(24, 2)}
    return Net(forward, a=nn.Linear(6, 8), **layers, c=8)


CASES: dict[str, tuple[Callable[[], Any], Tensor, dict[str, int]]] = {
    "a generator": (generator, NOISE, {"fc": 8, "up": 8}),
    "a discriminator": (discriminator, IMAGE, {"a": 8, "b": 8}),
    "two integers": (two_integers, NOISE, {"fc": 4}),
    "a temporal shift": (shift, VIDEO, {"a": 2}),
    "a spatial shift": (spatial_shift, IMAGE, {"a": 2}),
    "parts of an integer": (part_of_an_integer, IMAGE, {"a": 16, "gate": 2}),
    "joined parts": (shares_out, NOISE, {"a": 8}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_draw_is_built_and_is_the_masked_model(case: str) -> None:
    make, x, sizes = CASES[case]
    torch.manual_seed(0)
    net = make().eval()
    axes = trace(net, x)
    assert axes.cut_by_capacity == sizes
    assert axes.exact is True
    draws = [(way, share) for way in ("fixed", "bernoulli") for share in (0.3, 0.5, 0.8)]
    for number, (way, share) in enumerate(draws):
        cut = draw_units(Random(way), axes, share, Draw(1, number, 0))  # type: ignore[arg-type]
        with torch.no_grad():
            small = build_module(net, cut, example_inputs=x)(x)
            torch.testing.assert_close(small, masked(net, cut)(x), rtol=1e-4, atol=1e-5)


def test_a_choice_between_integers_is_said() -> None:
    axes = trace(two_integers(), NOISE)
    (note,) = axes.notes
    assert "computes a size from ratio, width; a cut changes width" in note
    assert f"in doubt: {note}" in findings(axes, is_verified=True)
    assert from_json(to_json(axes)).notes == axes.notes
    assert not trace(generator(), NOISE).notes


def test_shares_that_cannot_be_unequal_are_said_by_the_trace() -> None:
    def forward(net: Any, z: Tensor) -> Any:
        z = net.a(z)
        half = (z.shape[1] + 1) // 2  # no multiple of the width
        return net.b(z[:, :half]) + net.d(z[:, half:])

    axes = trace(Net(forward, a=nn.Linear(6, 16), b=nn.Linear(8, 2), d=nn.Linear(8, 2)), NOISE)
    assert (axes.exact, axes.measured) == (True, (0.5, 0.25))
    assert any("shares of the axes that are not equal" in note for note in axes.notes)
