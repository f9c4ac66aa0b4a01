"""Integers of modules: which dimension each makes, through views, splits, slices, arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from submodel.axes.stored import Uses, Watched, watch_integers

Forward = Callable[[Any, Tensor], Any]


class Net(nn.Module):
    """Stores 4, 6 and 24 and does what it is told."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.heads, self.size, self.width = 4, 6, 24
        self.told = forward

    def forward(self, x: Tensor) -> Any:
        return self.told(self, x)


def watched(forward: Forward) -> Watched[str]:
    net = Net(forward)
    with watch_integers(net, lambda t: [f"{d}:{n}" for d, n in enumerate(t.shape)]) as found:
        net(torch.ones(2, 24))
    assert [type(value) for value in (net.heads, net.size, net.width)] == [int] * 3
    return found


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: x.view(2, m.heads, m.size),
        lambda m, x: x.view((-1, m.heads, m.size)),
        lambda m, x: torch.reshape(x, (*x.shape[:-1], m.heads, m.size)),
        lambda m, x: x.unflatten(-1, (m.heads, m.size)),
        lambda m, x: x.new_zeros(2, m.heads, m.size),
        lambda m, x: torch.zeros(x.shape[0], m.heads, m.size),
        lambda m, x: torch.full((len(x), m.heads, m.size), 0.0),
        lambda m, x: x[:, None, :1].expand(2, m.heads, m.size),
    ],
)
def test_shapes_name_dimensions_by_their_place(forward: Forward) -> None:
    assert watched(forward).uses == {"heads": Uses(["1:4"]), "size": Uses(["2:6"])}


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: x.split(m.size, dim=1)[0],
        lambda m, x: torch.split(x, [m.size, 18], 1),
        lambda m, x: x.narrow(1, 3, m.size),
        lambda m, x: x[:, : m.size],
        lambda m, x: torch.nn.functional.layer_norm(x[:, :6], (m.size,)),
    ],
)
def test_parts_name_the_dimension_that_is_split(forward: Forward) -> None:
    (uses,) = watched(forward).uses.values()
    assert set(uses.exact) == {"1:6"}
    assert not uses.computed
    assert not uses.elsewhere


def test_arithmetic_is_followed_but_not_inverted() -> None:
    found = watched(lambda m, x: x.view(-1, m.heads * m.size).view(2, m.width // m.heads, -1))
    assert found.uses["heads"] == Uses(computed=["1:24", "1:6"])
    assert found.uses["size"] == Uses(computed=["1:24"])
    assert found.uses["width"] == Uses(computed=["1:6"])


def test_numbers_that_make_no_dimension_are_no_sizes() -> None:
    assert watched(lambda m, x: x * m.width**-0.5 if m.heads > 3 else x).uses == {}


def test_other_arguments_are_noted_without_a_dimension() -> None:
    found = watched(lambda m, x: x.view(1, 1, 2, 24).squeeze(m.heads - 4))
    assert found.uses == {"heads": Uses(elsewhere=True)}


def test_equal_parts_and_one_number_for_two_dimensions_are_alike() -> None:
    found = watched(lambda _, x: x.chunk(2, 1))
    assert list(found.alike()) == [["1:12", "1:12"]]
    found = watched(lambda m, x: (x.view(-1, m.size), x.view(2, m.size, 4)))
    assert list(found.alike()) == [["1:6", "1:6"]]


def test_integers_are_restored_after_an_error() -> None:
    def fail(m: Any, x: Tensor) -> None:
        raise ValueError("no")

    net = Net(fail)
    with pytest.raises(ValueError, match="no"), watch_integers(net, lambda _: None):
        net(torch.ones(2, 24))
    assert type(net.heads) is int
