"""A forward that catches the error of a layer: what runs afterwards is not taken for that layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from submodel.engines.lone import refusal
from submodel.errors import SubmodelError
from submodel.model.axes import trace
from submodel.model.build import build_module
from submodel.model.build.checks import OutputCheck
from submodel.model.cost import count_flops
from submodel.model.cut import UnitCut
from tests.model.axes.nets import cut_by
from tests.model.zoo.net import Net

X = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))


def tries(m: Any, x: Tensor) -> Any:
    """`first` fails on what has one dimension only."""
    h = m.up(x).relu()
    try:
        h = h + m.first(h[None, None])
    except RuntimeError:
        h = m.then(m, h)
    return m.down(h)


def in_parts(m: Any, h: Tensor) -> Tensor:
    h = m.middle(h).relu()
    return h.view(h.shape[0], 2, m.width // 2).transpose(1, 2).reshape(-1, m.width)


def net(then: Callable[[Any, Tensor], Tensor] = in_parts, middle: nn.Module | None = None) -> Net:
    torch.manual_seed(0)
    return Net(
        tries,
        first=nn.Conv1d(8, 8, 1),
        up=nn.Linear(6, 8),
        middle=middle or nn.Linear(8, 8),
        down=nn.Linear(8, 3),
        then=then,
        width=8,
    )


def test_numbers_after_a_caught_error_are_those_of_the_code() -> None:
    """Read as torch's own, the 2 would be cut, and the sub-model would not run."""
    made = net()
    axes = trace(made, X)
    assert axes.cut_by_capacity == {"up": 8, "middle#2": 4}
    assert "written in the code" in axes.kept_whole["middle#1"]
    cut = cut_by(axes)
    assert build_module(made, cut, example_inputs=X)(X).shape == (2, 3)


def test_a_sub_model_that_does_not_run_names_the_layer_that_fails() -> None:
    made = net(lambda m, h: m.middle(h).view(-1, 8))
    axes = trace(made, X, verify=False)
    small = build_module(made, UnitCut(axes, {}))
    small.get_submodule("middle").register_forward_hook(lambda *_: torch.ones(2, 7))
    with pytest.raises(SubmodelError, match=r"the model \(Net\) does not run"):
        OutputCheck(made, X).check(small, UnitCut(axes, {}))


def test_operations_after_a_caught_error_are_not_those_of_its_layer() -> None:
    flops = count_flops(net(), X).by_layer
    assert flops["middle"] == 2 * 2 * 8 * 8
    assert flops["down"] == 2 * 2 * 8 * 3
    assert flops.get("first", 0) == 0
    assert flops[""] == 2 * 2 * (6 * 8 + 8 * 8 + 8 * 3)


def test_the_layer_that_cannot_take_one_example_is_named_after_a_caught_error() -> None:
    reason = refusal(net(middle=nn.BatchNorm1d(8)), X) or ""
    assert reason.startswith("middle (BatchNorm1d)")
