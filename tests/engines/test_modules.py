"""Modules of every kind: layers with computed weights, named inputs, another device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

import submodel
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.data import Dataset, Examples, dataset
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.serial import SerialEngine
from submodel.model.build import build_module
from submodel.tasks.training import train_module
from tests.model.nets import Net
from tests.support.engines import (
    EXACT_TOLERANCE,
    assert_equal_updates,
    own_setup,
    setup_of,
    tasks_of,
)

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


@pytest.mark.slow
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
    """Its weight is a computed tensor without a name."""
    made: Any = net(lambda layer: layer).double()
    del made[2].weight
    made[2].weight = made[0].bias.detach().outer(made[0].bias.detach())
    by_weight = {"granularity": "coordinate"}
    setup = setup_of(made, examples(), data={"partition": "iid"}, scheme=by_weight)
    assert_equal_updates(setup, EXACT_TOLERANCE)


@pytest.mark.slow
@old_tools
@pytest.mark.parametrize("scheme", ["rolling", "static"])
@pytest.mark.parametrize("norm", [parametrizations.spectral_norm, spectral_norm])
def test_a_trained_spectral_norm_is_one(norm: Norm, scheme: str) -> None:
    """The clients' singular vectors belong to other matrices than the merged one and its parts."""
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
            assert largest.item() == pytest.approx(1, abs=0.1)  # an iterative bound


def test_a_parametrised_recurrent_layer_is_refused_by_name() -> None:
    """Torch itself computes with the original weights of such a layer."""
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


VOCABULARY = 7


class Reader(nn.Module):
    """Add the mean over the masked-in tokens to every token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 6)
        self.hidden, self.outputs = nn.Linear(6, 8), nn.Linear(8, VOCABULARY)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.tokens(input_ids)
        share = attention_mask.to(x.dtype).unsqueeze(-1)
        mean = (x * share).sum(1, keepdim=True) / (share.sum(1, keepdim=True) + 1)
        logits: Tensor = self.outputs(torch.tanh(self.hidden(x + mean)))
        return logits


@pytest.mark.slow
@settings(
    deadline=None,
    max_examples=15,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    examples=st.integers(6, 30),
    length=st.integers(1, 6),
    clients=st.integers(2, 5),
    batch=st.integers(1, 5),
    padding=st.floats(0, 0.9),
    ignored=st.floats(0, 0.9),
    seed=st.integers(0, 2**31),
)
def test_named_inputs_in_stacks(
    caplog: pytest.LogCaptureFixture,
    examples: int,
    length: int,
    clients: int,
    batch: int,
    padding: float,
    ignored: float,
    seed: int,
) -> None:
    draws = torch.Generator().manual_seed(seed)
    shape = (examples, length)
    labels = torch.randint(VOCABULARY, shape, generator=draws)
    labels[torch.rand(shape, generator=draws) < ignored] = -100
    labels[:, 0] = labels[:, 0].clamp(min=0)  # all clients have targets
    part = {
        "input_ids": torch.randint(VOCABULARY, shape, generator=draws),
        "attention_mask": (torch.rand(shape, generator=draws) >= padding).long(),
        "labels": labels,
    }
    torch.manual_seed(seed)
    values = {
        "data": {"partition": "iid"},
        "clients": {"count": clients, "per_round": clients, "capacities": [1, 0.5]},
        "local": {"lr": 0.5, "batch_size": batch},
    }
    setup = prepare(parse(values), Reader().double(), dataset(part, part))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert_equal_updates(setup, EXACT_TOLERANCE)
    assert "one client after another" not in caplog.text  # trained in stacks


def test_serial_training_seeds_the_generator_of_a_device_and_puts_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(7)  # stands for the generator of a CUDA device in use
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    drawn: list[float] = []

    class Noise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            drawn.append(float(torch.rand(1, generator=generator)))
            return x

    setup = own_setup(nn.Sequential(nn.Flatten(), Noise(), nn.Linear(64, 10)))
    before = generator.get_state(), torch.random.get_rng_state()
    engine, (task, *_) = SerialEngine(setup), tasks_of(setup)
    runs = []
    for _ in range(2):
        drawn.clear()
        list(engine.run([task]))
        runs.append(list(drawn))
    assert runs[0] == runs[1] != []
    assert torch.equal(before[0], generator.get_state())
    assert torch.equal(before[1], torch.random.get_rng_state())


def test_batches_of_data_that_stays_on_the_host_go_to_the_module() -> None:
    module = nn.Linear(3, 2).to("meta")
    examples = Examples(torch.ones(4, 3), torch.zeros(4))
    seen = []

    def step(_: int, x: Any, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        seen.append((x.device.type, y.device.type, len(x)))
        return torch.zeros(()), [torch.zeros_like(p) for p in module.parameters()]

    work = setup_of("mlp").work
    order = iter([np.arange(3), np.arange(1)])
    train_module(module, examples, order, work, nn.functional.mse_loss, step=step)
    assert seen == [("meta", "meta", 3), ("meta", "meta", 1)]
    assert examples.y.device.type == "cpu"
