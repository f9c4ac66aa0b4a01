"""Layers that compute their weights: every engine trains them, and cuts what they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

import submodel
from submodel.data import Dataset
from submodel.engines.batched.engine import BatchedEngine
from submodel.model.build import build_module
from tests.model.zoo.net import Net
from tests.support.engines import EXACT_TOLERANCE, assert_equal_updates, setup_of

Norm = Callable[[nn.Linear], Any]
KINDS: dict[str, tuple[Norm, bool]] = {  # whether clients train together
    "weight norm": (parametrizations.weight_norm, True),
    "orthogonal": (parametrizations.orthogonal, True),
    "spectral norm": (parametrizations.spectral_norm, False),
    "weight norm by hook": (weight_norm, True),
    "spectral norm by hook": (spectral_norm, False),
}
old_tools = pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")


def net(norm: Norm) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        norm(nn.Linear(6, 8)), nn.ReLU(), norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 3)
    )


def examples() -> Dataset:
    x = torch.randn(60, 6, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % 3
    return submodel.dataset((x, y), (x, y))


@old_tools
@pytest.mark.parametrize("kind", KINDS)
def test_engines_agree_on_parametrised_layers(kind: str) -> None:
    norm, stacks = KINDS[kind]
    setup = setup_of(net(norm).double(), examples(), data={"partition": "iid"})
    assert_equal_updates(setup, EXACT_TOLERANCE)
    engine = BatchedEngine(setup)
    cut = engine._estimate.cut(0.5)
    assert (engine._mapped_forward(cut) is not None) == stacks


def test_a_layer_that_reads_the_tensor_of_another_is_trained() -> None:
    """Its weight is a result, which no name leads to."""
    made: Any = net(lambda layer: layer).double()
    del made[2].weight
    made[2].weight = made[0].bias.detach().outer(made[0].bias.detach())
    by_weight = {"granularity": "coordinate"}
    setup = setup_of(made, examples(), data={"partition": "iid"}, scheme=by_weight)
    assert_equal_updates(setup, EXACT_TOLERANCE)


@old_tools
@pytest.mark.parametrize("scheme", ["rolling", "static"])
@pytest.mark.parametrize("norm", [parametrizations.spectral_norm, spectral_norm])
def test_a_trained_spectral_norm_is_one(norm: Norm, scheme: str) -> None:
    """The clients' singular vectors are of other matrices than the merged one and parts of it."""
    config: dict[str, dict[str, Any]] = {
        "data": {"partition": "iid"},
        "clients": {"count": 4, "per_round": 4, "capacities": [0.25, 0.5]},
        "scheme": {"name": scheme},
        "local": {"lr": 0.1, "batch_size": 5},
        "train": {"rounds": 4},
    }
    x, y = examples().train.x, examples().train.y
    data = submodel.dataset((x.float(), y), (x.float(), y))
    result = submodel.train(net(norm), data, config, progress=False)
    for capacity in (1, 0.5, 0.25):
        model: Any = result.submodel(capacity).eval()
        model(x[:2].float())
        for layer in (model[0], model[2]):
            largest = torch.linalg.matrix_norm(layer.weight.detach(), 2)
            assert largest.item() == pytest.approx(1, abs=0.1)  # a bound that is iterated


def test_a_parametrised_recurrent_layer_is_refused_by_name() -> None:
    """Torch itself computes with the weights that such a layer had before."""
    layer = parametrizations.weight_norm(nn.LSTM(6, 8, batch_first=True), "weight_hh_l0")
    made = Net(
        lambda m, x: m.down(m.layer(x[:, None])[0][:, -1]), layer=layer, down=nn.Linear(8, 3)
    )
    with pytest.raises(submodel.SubmodelError, match=r"layer \(.*LSTM\).*weight_hh_l0.*LSTMCell"):
        setup_of(made.double(), examples(), data={"partition": "iid"})


def test_a_spectral_norm_at_full_capacity_keeps_its_bits() -> None:
    made = net(parametrizations.spectral_norm).eval()
    whole = build_module(made, submodel.model.cut.WHOLE)
    x = examples().train.x.float()
    assert torch.equal(whole(x), made(x))
