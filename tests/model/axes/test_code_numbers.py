"""Numbers in the code of a module: which dimension each makes, in views, splits, arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from submodel.model.axes.layout import Along, Layout
from submodel.model.axes.number import Attribute, Number, NumberLog, Operation, SizeOf
from submodel.model.axes.number_watch import watch_numbers
from tests.model.axes.nets import Net

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
