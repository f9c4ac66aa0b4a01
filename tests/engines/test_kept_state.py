"""Optimisers that keep their state: torch's own over rounds, on both engines, resumed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import submodel
from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.execution import Engine
from submodel.algorithm.rounds import initial_state, step
from submodel.algorithm.types import Assignment, Setup, State
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import CheckpointError, ConfigError
from submodel.data import Dataset, dataset
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.serial import SerialEngine
from submodel.model.cost import CostModel
from submodel.model.cut import UnitCut
from submodel.runs.checkpoint import checkpoint_folders, model_sha256
from submodel.runs.folder import RunFolder
from tests.support.engines import setup_of

LR, STEPS, ROUNDS = 0.01, 4, 3
TORCHS: dict[str, tuple[dict[str, Any], Callable[[Any], torch.optim.Optimizer]]] = {
    "momentum": ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, LR, 0.9)),
    "nesterov": (
        {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
        lambda p: torch.optim.SGD(p, LR, 0.8, weight_decay=0.1, nesterov=True),
    ),
    "adam": ({"optimiser": "adam"}, lambda p: torch.optim.Adam(p, LR)),
    "adamw": (
        {"optimiser": "adamw", "weight_decay": 0.3},
        lambda p: torch.optim.AdamW(p, LR, weight_decay=0.3),
    ),
}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def numbers(count: int = 24) -> Dataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 6, generator=generator)
    y = torch.stack([x[:, 0] * x[:, 1], x.sum(1)], 1)
    return dataset((x, y), (x, y))


def settings(clients: int = 1, **local: Any) -> dict[str, Any]:
    return {
        "clients": {"count": clients, "per_round": clients, "capacities": [1]},
        "local": {"lr": LR, "steps": STEPS, "batch_size": 0, "optimiser_state": "kept", **local},
        "train": {"rounds": ROUNDS, "evaluate_every": ROUNDS},
        "engine": {"name": "local"},
    }


@pytest.mark.slow
@pytest.mark.parametrize("batching", ["never", "always"])
@pytest.mark.parametrize("case", TORCHS)
def test_rounds_of_one_client_are_torchs_steps_in_a_row(case: str, batching: str) -> None:
    keys, make = TORCHS[case]
    config = settings(**keys)
    config["engine"]["batching"] = batching
    data, module = numbers(), net()
    run = submodel.train(module, data, config, progress=False)
    reference = net()
    theirs = make(reference.parameters())
    for _ in range(ROUNDS * STEPS):
        theirs.zero_grad()
        loss = functional.mse_loss(reference(data.train.x), data.train.y)
        loss.backward()  # type: ignore[no-untyped-call]
        theirs.step()
    torch.testing.assert_close(run.state.tensors, reference.state_dict(), rtol=1e-6, atol=1e-6)
    config["local"]["optimiser_state"] = "fresh"
    other = submodel.train(net(), data, config, progress=False)
    weights = reference.state_dict()["0.weight"]
    assert not torch.allclose(other.state.tensors["0.weight"], weights, atol=1e-4)


def rounds(setup: Setup, engine: Engine, count: int = ROUNDS) -> list[State]:
    states, costs = [initial_state(setup)], CostModel(setup.module, setup.clients.dataset.example)
    for _ in range(count):
        states.append(step(setup, states[-1], engine, costs)[0])
    return states


KEPT = {"optimiser_state": "kept"}
SCHEMES: dict[str, dict[str, Any]] = {
    "rolling": {},
    "random": {"scheme": {"name": "random"}},
    "coordinates": {"scheme": {"name": "random", "granularity": "coordinate"}},
    "absent labels": {"local": {"absent_labels": "leave_out"}},
    "ordered": {"scheme": {"name": "ordered"}},
    "near": {"local": {"proximal": 0.1}},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SCHEMES)
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_stacks_keep_what_clients_keep_one_by_one(case: str, optimiser: str) -> None:
    sections = {**SCHEMES[case]}
    sections["local"] = {**sections.get("local", {}), **KEPT, "optimiser": optimiser, "lr": LR}
    setup = setup_of("mlp", **sections)
    one = rounds(setup, SerialEngine(setup))[-1]
    other = rounds(setup, BatchedEngine(setup, always=True))[-1]
    torch.testing.assert_close(other.tensors, one.tensors, rtol=1e-4, atol=1e-5)
    assert one.client_slots.keys() == other.client_slots.keys()
    assert len({key.partition("/")[0] for key in one.client_slots}) == 7
    torch.testing.assert_close(
        other.client_slots, one.client_slots, rtol=1e-4, atol=1e-5, equal_nan=True
    )


def linear_setup(granularity: str) -> Setup:
    """Make one layer of 4 units; a client of capacity 1/2 holds another window in every round."""
    module = nn.Sequential(nn.Linear(6, 4, bias=False), nn.Linear(4, 2, bias=False))
    config = settings(steps=1, momentum=0.5)
    config["clients"]["capacities"] = [0.5]
    config["scheme"] = {"name": "rolling", "granularity": granularity}
    config |= {"model": {"name": "own"}, "data": {"name": "own", "partition": "iid"}}
    return prepare(parse(config), module, numbers())


def test_units_get_back_what_they_had_and_new_ones_begin_afresh() -> None:
    """Two of four units in every round: m = g for new units, else m / 2 + g with the last m."""
    setup = linear_setup("unit")
    states = rounds(setup, SerialEngine(setup), 6)
    before = torch.full((4, 6), torch.nan)
    returns = 0
    for number, (state, after) in enumerate(pairwise(states)):
        cut = cut_of(setup, Assignment(number, 0, 0.5))
        assert isinstance(cut, UnitCut)
        (units,) = cut.units.values()
        held_rows = units.tolist()
        assert len(held_rows) == 2
        gradient = gradient_of(setup, state, held_rows)
        momentum = after.client_slots["0/0/0.weight"]
        for row in range(4):
            if row not in held_rows:
                assert torch.equal(momentum[row].nan_to_num(-9), before[row].nan_to_num(-9))
                continue
            returns += not bool(before[row].isnan().any())
            expected = 0.5 * before[row].nan_to_num(0) + gradient[row]
            torch.testing.assert_close(momentum[row], expected)
        before = momentum
    assert returns >= 4


def gradient_of(setup: Setup, state: State, rows: list[int]) -> Tensor:
    """Return the gradient of the first layer's weights in a model of some units."""
    first, last = (state.tensors[name].clone() for name in ("0.weight", "1.weight"))
    first.requires_grad_()
    data = setup.clients.dataset.train
    hidden = data.x @ first.T
    outputs = hidden[:, rows] @ last[:, rows].T
    (gradient,) = torch.autograd.grad(functional.mse_loss(outputs, data.y), [first])
    return gradient


def test_weights_that_are_not_held_stay_and_their_momenta_wait() -> None:
    setup = linear_setup("coordinate")
    states = rounds(setup, SerialEngine(setup), 6)
    waiting = 0
    for before, after in pairwise(states[1:]):
        for name in ("0.weight", "1.weight"):
            still = before.tensors[name] == after.tensors[name]
            old, new = (state.client_slots[f"0/0/{name}"] for state in (before, after))
            assert torch.equal(old[still].nan_to_num(), new[still].nan_to_num())
            waiting += int((still & ~old.isnan()).sum())
    assert waiting > 0


def digits_config(path_rounds: int) -> dict[str, Any]:
    config = settings(clients=4, optimiser="adam", steps=2, batch_size=5)
    config["clients"] |= {"per_round": 2, "capacities": [1, 0.5]}
    config["train"] = {"rounds": path_rounds, "evaluate_every": 2, "checkpoint_every": 1}
    return config


@pytest.mark.slow
@pytest.mark.parametrize("batching", ["never", "auto"])
def test_a_run_that_is_resumed_ends_with_the_same_bytes(batching: str, tmp_path: Path) -> None:
    def train(rounds: int, path: Path, resume: bool = False) -> str:
        config = digits_config(rounds)
        config["engine"]["batching"] = batching
        run = submodel.train(net(), numbers(), config, out=path, resume=resume, progress=False)
        assert run.state.client_slots
        return model_sha256(run.state.tensors) + model_sha256(run.state.client_slots)

    whole = train(5, tmp_path / "whole")
    train(3, tmp_path / "parts")
    assert train(5, tmp_path / "parts", resume=True) == whole


@pytest.mark.slow
def test_a_damaged_state_falls_back_to_the_checkpoint_before(tmp_path: Path) -> None:
    run = submodel.train(net(), numbers(), digits_config(3), out=tmp_path / "run", progress=False)
    newest, before = checkpoint_folders(RunFolder(tmp_path / "run").checkpoints)
    file = newest / "optimisers.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    again = submodel.train(
        net(), numbers(), digits_config(4), out=tmp_path / "run", resume=True, progress=False
    )
    whole = submodel.train(net(), numbers(), digits_config(4), progress=False)
    assert model_sha256(again.state.tensors) == model_sha256(whole.state.tensors)
    assert model_sha256(run.state.tensors) != model_sha256(whole.state.tensors)
    assert before.exists() or len(checkpoint_folders(newest.parent)) == 2
    for folder in checkpoint_folders(RunFolder(tmp_path / "run").checkpoints):
        (folder / "optimisers.safetensors").unlink()
    with pytest.raises(CheckpointError, match="usable checkpoint"):
        submodel.train(
            net(), numbers(), digits_config(5), out=tmp_path / "run", resume=True, progress=False
        )


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "adafactor": ({"local": {"optimiser": "adafactor"}}, "'adafactor'"),
    "nothing": ({"local": {"momentum": 0}}, "'sgd'"),
    "processes": ({"engine": {"name": "torchrun"}}, "another process"),
    "products": ({"model": {"factorised": True}, "merge": {"rule": "products"}}, "factors"),
    "devices": ({"engine": {"name": "flower"}}, "devices"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_where_nothing_can_be_kept_the_reason_is_told(case: str) -> None:
    sections, message = REFUSED[case]
    local = {**KEPT, **sections.get("local", {})}
    with pytest.raises(ConfigError, match=message):
        setup_of("mlp", **{**sections, "local": local})
