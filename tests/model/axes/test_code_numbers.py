"""Numbers in the code of a module: the dimensions that they set, and sizes computed from one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from submodel.model.axes import trace
from submodel.model.axes.declare import from_json, to_json
from submodel.model.axes.layout import Along, Layout
from submodel.model.axes.number import Attribute, Number, NumberLog, Operation, SizeOf
from submodel.model.axes.number_watch import watch_numbers
from submodel.model.build import build_module
from submodel.model.inspect import axes_remarks
from submodel.schemes import Draw, Random
from submodel.schemes.draw import draw_units
from tests.model.nets import Entry, Net
from tests.model.zoo.battery import battery
from tests.support.reference import masked

Forward = Callable[[Any, Tensor], Any]
HEADS, SIZE, WIDTH = Attribute("heads"), Attribute("size"), Attribute("width")


def numbered(forward: Forward) -> Any:
    """A net that stores 4, 6 and 24."""
    return Net(forward, heads=4, size=6, width=24, inner=nn.LSTM(24, 4))


def part(d: int, size: int) -> Along:
    return Along(f"{d}:{size}", size)


def watched(forward: Forward) -> NumberLog:
    net, x = numbered(forward), torch.ones(2, 24)
    with watch_numbers(net, lambda t: [part(d, n) for d, n in enumerate(t.shape)]) as found:
        net(x)
    assert [type(value) for value in (net.heads, net.size, net.width)] == [int] * 3
    return found


def made(forward: Forward) -> list[tuple[Number, Layout]]:
    found = watched(forward)
    assert not found.elsewhere
    return list(dict.fromkeys((m.number, m.dimension) for m in found.sizings))


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: x.view(-1, m.heads, m.size),
        lambda m, x: x.view((-1, m.heads, m.size)),
        lambda m, x: x.unflatten(-1, (m.heads, m.size)),
        lambda m, x: x.new_zeros(1, m.heads, m.size),
        lambda m, x: torch.full((len(x) - 1, m.heads, m.size), 0.0),
        lambda m, x: x[:, None, :1].expand(-1, m.heads, m.size),
    ],
)
def test_shapes_name_dimensions_by_their_place(forward: Forward) -> None:
    assert made(forward) == [(HEADS, part(1, 4)), (SIZE, part(2, 6))]


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: x.split(m.size, dim=1)[0],
        lambda m, x: x.narrow(1, 0, m.size),
        lambda m, x: x[:, : m.size],
        lambda m, x: x[:, m.size :],
        lambda m, x: x[..., None, : -m.size],
        lambda m, x: functional.layer_norm(x[:, : m.size], (m.size,)),
    ],
)
def test_parts_name_the_dimension_that_is_split(forward: Forward) -> None:
    assert made(forward) == [(SIZE, part(1, 6))]


def test_both_ends_of_a_slice_count_what_lies_before_them() -> None:
    ends: list[tuple[Number, Layout]] = [(3, part(1, 3)), (Operation("add", SIZE, 3), part(1, 9))]
    assert made(lambda m, x: x[:, 3 : m.size + 3]) == ends
    assert made(lambda m, x: x.narrow(1, 3, m.size)) == [(3, part(1, 3)), (SIZE, part(1, 6))]


def test_sizes_that_tensors_tell_are_known_and_written_numbers_stand_out() -> None:
    found = watched(lambda m, x: x.reshape(*x.shape[:-1], x.size(1) // m.heads, 4))
    quotient = Operation("floordiv", SizeOf(part(1, 24)), HEADS)
    assert [(m.number, m.dimension) for m in found.sizings] == [
        (SizeOf(part(0, 2)), part(0, 2)),
        (quotient, part(1, 6)),
        (4, part(2, 4)),
    ]
    assert list(found.written_out()) == [part(2, 4)]


def test_groups_are_counted_along_the_channels() -> None:
    found = watched(lambda m, x: functional.group_norm(x, m.heads))
    assert [(m.number, m.dimension, m.groups) for m in found.sizings] == [
        (HEADS, part(1, 24), True)
    ]
    kernel = torch.ones(24, 6, 1)
    found = watched(lambda m, x: functional.conv1d(x[:, :, None], kernel, groups=m.heads))
    assert [(m.number, m.dimension, m.groups) for m in found.sizings] == [
        (HEADS, part(0, 24), True)
    ]


def test_numbers_that_make_no_dimension_are_no_sizes() -> None:
    assert made(lambda m, x: x * m.width**-0.5 if m.heads > 3 else x) == []


def test_other_arguments_are_noted_without_a_dimension() -> None:
    found = watched(lambda m, x: x.clamp(max=m.heads - 4))
    assert found.sizings == []
    assert found.elsewhere == {"heads"}


@pytest.mark.parametrize(
    "forward",
    [
        lambda _, x: x / x.shape[1],
        lambda _, x: x * x.size(-1) ** -0.5,
        lambda _, x: x / math.sqrt(x.shape[1] // 2),
        lambda m, x: x.view(-1, m.width) * (1 / m.width),
    ],
)
def test_sizes_that_become_values_are_noted(forward: Forward) -> None:
    assert list(watched(forward).scales()) == [part(1, 24)]


def test_the_layers_of_torch_are_not_watched() -> None:
    assert made(lambda m, x: m.inner(x)) == []


def test_equal_parts_and_dimensions_of_one_number_are_alike() -> None:
    assert list(watched(lambda _, x: x.chunk(2, 1)).alike()) == [[part(1, 12), part(1, 12)]]
    found = watched(lambda m, x: (x.view(-1, m.size), x.view(-1, 4, m.size)))
    assert list(found.alike()) == [[part(1, 6), part(2, 6)]]
    found = watched(lambda _, x: x.view(-1, x.shape[1] // 2))
    assert list(found.alike()) == [[part(1, 12)]]


def test_integers_are_restored_after_an_error() -> None:
    def fail(m: Any, x: Tensor) -> None:
        raise ValueError("no")

    net = numbered(fail)
    with pytest.raises(ValueError, match="no"), watch_numbers(net, lambda _: None):
        net(torch.ones(2, 24))
    assert type(net.heads) is int


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
    """Temporal shift: the first eighth of the channels moves forward, the next one back."""

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
    """The integer equals the previous width; its parts are other widths."""

    def forward(net: Any, x: Tensor) -> Any:
        x = torch.relu(net.a(x))
        gate = torch.sigmoid(net.gate(x)).view(-1, net.width // 8, 64)
        value = net.value(x).view(-1, net.width // 2, 64)
        return net.b(value) + net.d(gate)

    layers: dict[str, nn.Module] = {"a": nn.Conv2d(3, 16, 1), "gate": nn.Conv2d(16, 2, 1)}
    layers |= {"value": nn.Conv2d(16, 8, 1), "b": nn.Conv1d(8, 2, 1), "d": nn.Conv1d(2, 2, 1)}
    return Net(forward, **layers, width=16)


def shares_out() -> Any:
    """Four joined parts whose sum is in the code."""

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
    draws = [(sampling, share) for sampling in ("fixed", "bernoulli") for share in (0.3, 0.5, 0.8)]
    for number, (sampling, share) in enumerate(draws):
        cut = draw_units(Random(sampling), axes, share, Draw(1, number, 0))  # type: ignore[arg-type]
        with torch.no_grad():
            small = build_module(net, cut, example_inputs=x)(x)
            torch.testing.assert_close(small, masked(net, cut)(x), rtol=1e-4, atol=1e-5)


def test_a_choice_between_integers_is_said() -> None:
    axes = trace(two_integers(), NOISE)
    (note,) = axes.notes
    assert "computes a size from ratio, width; a cut changes width" in note
    assert f"in doubt: {note}" in axes_remarks(axes, is_verified=True)
    assert from_json(to_json(axes)).notes == axes.notes
    assert not trace(generator(), NOISE).notes


def test_shares_that_cannot_be_unequal_are_said_by_the_trace() -> None:
    def forward(net: Any, z: Tensor) -> Any:
        z = net.a(z)
        half = (z.shape[1] + 1) // 2  # not a multiple of the width
        return net.b(z[:, :half]) + net.d(z[:, half:])

    axes = trace(Net(forward, a=nn.Linear(6, 16), b=nn.Linear(8, 2), d=nn.Linear(8, 2)), NOISE)
    assert (axes.exact, axes.measured) == (True, (0.5, 0.25))
    assert any("unequal fractions of axes" in note for note in axes.notes)


PARTS: dict[str, Callable[[Tensor], Sequence[Tensor]]] = {
    "chunk": lambda x: x.chunk(2, -1),
    "unsafe_chunk": lambda x: torch.unsafe_chunk(x, 2, 1),
    "tensor_split": lambda x: x.tensor_split(2, -1),
    "tensor_split at": lambda x: torch.tensor_split(x, (x.shape[1] // 2,), dim=1),
    "tensor_split written out": lambda x: x.tensor_split((6,), 1),
    "hsplit": lambda x: x.hsplit(2),
    "hsplit at": lambda x: torch.hsplit(x, [x.shape[1] // 2]),
    "vsplit": lambda x: [part.t() for part in x.t().vsplit(2)],
    "dsplit": lambda x: [part[0] for part in torch.dsplit(x[None], 2)],
    "split": lambda x: x.split(x.shape[1] // 2, 1),  # type: ignore[no-untyped-call]
    "unbind": lambda x: x.view(len(x), 2, -1).unbind(1),
}


class Parts(nn.Module):
    """A net that reads only the first part, so that no other parts must be equal."""

    def __init__(self, parts: Callable[[Tensor], Sequence[Tensor]]) -> None:
        super().__init__()
        self.first, self.last, self.parts = nn.Linear(5, 12), nn.Linear(6, 3), parts

    def forward(self, x: Tensor) -> Any:
        one, _ = self.parts(torch.relu(self.first(x)))
        return self.last(one)


@pytest.mark.parametrize("kind", PARTS)
def test_equal_parts_stay_equal(kind: str) -> None:
    measured = battery(Entry(kind, lambda: (Parts(PARTS[kind]), (torch.randn(4, 5),))))
    assert measured.claimed
    assert measured.gap < 1e-12
