"""Refusals name the line of the model's code to change, and what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import submodel
from submodel.data import dataset
from submodel.errors import ConfigError, SubmodelError
from submodel.model.axes import trace
from submodel.model.axes.declare import from_json, to_json
from submodel.model.axes.record import to_change
from submodel.model.build import build_module
from tests.model.axes.nets import VECTOR, Net, cut_by

TABLE = torch.linspace(0, 1, 8)


def flipped(m: Any, x: Tensor) -> Any:
    return m.out(m.up(x).flip(-1))


def constant(m: Any, x: Tensor) -> Any:
    return m.out(m.up(x) + TABLE)


def positions(m: Any, x: Tensor) -> Any:
    return m.out(m.up(x) * torch.arange(8.0))


def looked_up(m: Any, x: Tensor) -> Any:
    return m.out(m.up(x)[:, [1, 0, 3, 2, 5, 4, 7, 6]])


def unknown(m: Any, x: Tensor) -> Any:
    return m.out(torch.linalg.svd(m.up(x))[2])


def written(m: Any, x: Tensor) -> Any:
    return m.out(m.up(x).view(2, 8))


@pytest.mark.parametrize(
    ("forward", "reason", "instead"),
    [
        (flipped, "read by flip, by position", "do not tell its units apart"),
        (constant, "a constant that is no parameter and no buffer", "register the tensor"),
        (positions, "made by arange", "compute it once and register it"),
        (looked_up, "read by index, looked up by index", "split, chunk or slice"),
        (unknown, "read by _linalg_svd, which has no rule", "use operators that are known"),
        (written, "a number written in the code makes its size", "make it an attribute"),
    ],
)
def test_a_refusal_names_the_line_and_what_to_write(
    forward: Callable[[Any, Tensor], Any], reason: str, instead: str
) -> None:
    axes = trace(Net(forward, up=nn.Linear(6, 8), out=nn.Linear(8, 3)), VECTOR)
    assert not axes.cut_by_capacity
    line = inspect.getsourcelines(forward)[1] + 1
    place = f"axes/test_advice.py:{line} in {forward.__name__}"
    assert place in axes.lines.values()
    assert f"{reason}, at {place}" in axes.table()
    told = to_change(axes.frozen, axes.kept_whole, axes.lines)
    assert any(words.startswith(f"{place}: {reason}; {instead}") for words in told)
    assert from_json(to_json(axes)) == axes


def test_what_lies_in_the_nature_of_things_names_no_line() -> None:
    net = nn.Sequential(nn.Conv1d(2, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    axes = trace(net, torch.ones(1, 2, 3))
    assert axes.frozen
    assert not axes.lines


def test_a_model_that_cannot_be_cut_is_refused_by_its_line() -> None:
    net = Net(flipped, up=nn.Linear(6, 8), out=nn.Linear(8, 3))
    x, y = torch.randn(40, 6), torch.arange(40) % 3
    data = dataset((x, y), (x, y))
    with pytest.raises(ConfigError, match=r"test_advice.py:\d+ in flipped: read by flip, by"):
        submodel.train(net, data, {"clients": {"count": 2, "per_round": 2, "capacities": [1, 0.5]}})


def test_a_sub_model_that_does_not_run_names_the_line() -> None:
    def forward(m: Any, x: Tensor) -> Any:
        return m.out(m.up(x)[:, :4].repeat(1, 2))

    net = Net(forward, up=nn.Linear(6, 8), out=nn.Linear(8, 3))
    cut = cut_by(trace(net, VECTOR))
    with pytest.raises(SubmodelError, match=r"test_advice.py:\d+ in .*forward\. A size"):
        build_module(net, cut, example_inputs=VECTOR)
