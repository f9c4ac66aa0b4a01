"""Problems that only show in training mode are reported before the first round, with a remedy."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import submodel
from submodel.core.errors import ConfigError
from submodel.data import dataset
from tests.model.nets import Net, mlp

X, Y = torch.randn(24, 6, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3
CONFIG: dict[str, dict[str, Any]] = {
    "data": {"partition": "iid"},
    "clients": {"count": 2, "per_round": 2, "capacities": [0.5, 1]},
    "local": {"batch_size": 6},
    "train": {"rounds": 1},
}


def net(between: Callable[[Any, Tensor], Tensor], **parts: Any) -> Net:
    torch.manual_seed(0)
    return Net(
        lambda m, x: m.down(between(m, m.up(x).relu())),
        **{"up": nn.Linear(6, 8), "down": nn.Linear(8, 3), **parts},
    )


def auxiliary(m: Any, h: Tensor) -> Tensor:
    return h + m.aux(h) if m.training else h


def reentrant(m: Any, h: Tensor) -> Tensor:
    out: Tensor = checkpoint(m.middle, h, use_reentrant=True)
    return out


def in_place(m: Any, h: Tensor) -> Tensor:
    h = h.exp()
    if m.training:
        squares = h * h
        h.mul_(2)
        return squares
    return h * h


def running_maximum(m: Any, h: Tensor) -> Tensor:
    if m.training:
        m.most.copy_(torch.maximum(m.most, h.detach().amax()))
    return h


def by_complex(m: Any, h: Tensor) -> Tensor:
    out: Tensor = (h.to(torch.complex64) @ m.w).abs()
    return out


NETS: dict[str, tuple[Callable[[], nn.Module], *tuple[str, ...]]] = {
    "a layer of training mode": (
        lambda: net(auxiliary, aux=nn.Linear(8, 8)), "'aux' (Linear)", "aux.weight", "axes.whole"),
    "a reentrant checkpoint": (
        lambda: net(reentrant, middle=nn.Linear(8, 8)), "use_reentrant=False"),
    "a change in place": (lambda: net(in_place), "inplace operation"),
    "a statistic of infinity": (
        lambda: net(running_maximum, most=torch.tensor(-torch.inf)), "most", "finite value"),
    "complex weights": (
        lambda: net(by_complex, w=nn.Parameter(torch.ones(8, 8, dtype=torch.complex64))),
        "w is complex", "view_as_real"),
    "a tuple in training mode": (
        lambda: Net(lambda m, x: (m.net(x), x) if m.training else m.net(x), net=mlp(6, 8, 3)),
        "returns a tuple", "outputs="),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("granularity", ["unit", "coordinate"])
def test_what_fails_in_training_is_refused_before(kind: str, granularity: str) -> None:
    make, *words = NETS[kind]
    sections = {**CONFIG, "scheme": {"granularity": granularity}}
    if kind == "a layer of training mode" and granularity == "coordinate":
        expected: Any = contextlib.nullcontext()  # masks leave every layer its width
    else:
        expected = pytest.raises(ConfigError, match=".*".join(map(re.escape, words)))
    with expected:
        submodel.train(make(), dataset((X, Y), (X, Y)), sections, progress=False)


def test_a_layer_of_training_mode_is_trained_behind_a_whole_axis() -> None:
    made = net(auxiliary, aux=nn.Linear(8, 8))
    sections = {**CONFIG, "axes": {"whole": ["up"]}, "scheme": {"granularity": "unit"}}
    with pytest.raises(ConfigError, match="axes"):  # nothing else can be cut
        submodel.train(made, dataset((X, Y), (X, Y)), sections, progress=False)
    made = net(lambda m, h: m.middle(auxiliary(m, h)), aux=nn.Linear(8, 8), middle=nn.Linear(8, 8))
    result = submodel.train(made, dataset((X, Y), (X, Y)), sections, progress=False)
    assert not torch.equal(
        result.model.get_parameter("aux.weight"), made.get_parameter("aux.weight")
    )


def test_two_examples_are_not_too_few_where_a_batch_is_enough() -> None:
    def ghost(m: Any, h: Tensor) -> Tensor:
        return torch.cat([m.norm(part) for part in h.chunk(2)]) if m.training else m.norm(h)

    made = net(ghost, norm=nn.BatchNorm1d(8))
    result = submodel.train(made, dataset((X, Y), (X, Y)), CONFIG, progress=False)
    assert not result.history[-1]["refused"]
