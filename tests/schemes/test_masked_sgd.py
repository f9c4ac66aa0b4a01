"""Masked training on one machine: its iterates, and its alignment against direct computation."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn

from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.rounds import initial_state, step
from submodel.algorithm.types import Assignment, Setup
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.data import dataset
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.serial import SerialEngine
from submodel.model.cost import CostModel
from submodel.report.tables import history_table
from submodel.runs.loop import RunFolder, run_rounds
from submodel.runs.training import Training
from submodel.schemes import (
    MaskedSgd,
    Observation,
    Rolling,
)
from submodel.schemes.builtin_schemes import SCHEMES
from submodel.tasks.training import batches
from tests.support.common import tiny_images
from tests.support.nets import Joined, six
from tests.support.rounds import step_of

D, EXAMPLES, BATCH, ETA = 6, 20, 4, 0.1
Vector = NDArray[np.float64]


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).square().mean() / 2


def linear(sequence: str, capacity: float = 0.5) -> Setup:
    """Make least squares on one machine, one step of four examples per round, weight by weight."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(EXAMPLES, D))
    y = x @ rng.normal(size=D)
    data = dataset(*[(torch.from_numpy(x), torch.from_numpy(y))] * 2)
    model = nn.Linear(D, 1, bias=False).double()
    nn.init.ones_(model.weight)
    config: dict[str, Any] = {
        "seed": 2, "data": {"partition": "iid"},
        "clients": {"count": 1, "per_round": 1, "capacities": [capacity]},
        "scheme": {"name": "masked-sgd", "sequence": sequence, "granularity": "coordinate"},
        "local": {"steps": 1, "batch_size": BATCH, "lr": ETA, "absent_labels": "keep"},
    }  # fmt: skip
    return prepare(parse(config), model, data, loss=squared_error)


@pytest.mark.parametrize("sequence", ["random", "rolling", "static"])
def test_iterates_and_alignment_are_the_definitions(sequence: str) -> None:
    setup = linear(sequence)
    own = setup.clients.examples(0)
    x, y = own.x.numpy(), own.y.numpy()

    def gradient(w: Vector, rows: Any = slice(None)) -> Vector:
        found: Vector = x[rows].T @ (x[rows] @ w - y[rows]) / len(x[rows])
        return found

    engine, costs = SerialEngine(setup), CostModel(setup.module, own.x)
    state, w = initial_state(setup), np.ones(D)
    masks = set()
    for t in range(8):
        cut = cut_of(setup, Assignment(t, 0, 0.5))
        mask = cut.mask("weight")
        assert mask is not None
        m = mask.numpy().ravel().astype(float)
        masks.add(m.tobytes())
        state, report = step(setup, state, engine, costs)
        masked = m * gradient(m * w)
        alpha = (m * gradient(w)) @ masked / (masked @ masked)
        assert report.observations["alignment"] == pytest.approx(alpha, rel=1e-9)  # by differences
        (rows,) = batches(EXAMPLES, setup.work, setup.seed, t, 0)
        w = w - ETA * m * gradient(m * w, rows)
        np.testing.assert_allclose(state.tensors["weight"].numpy().ravel(), w, rtol=0, atol=1e-12)
    assert (len(masks) == 1) == (sequence == "static")


def test_the_full_mask_is_sgd_with_alignment_one() -> None:
    setup = linear("rolling", 1.0)
    plain = replace(setup, scheme=Rolling(D))
    states = []
    for own in (setup, plain):
        engine, costs = SerialEngine(own), CostModel(own.module, own.clients.dataset.example)
        state = initial_state(own)
        for _ in range(3):
            state, report = step(own, state, engine, costs)
            assert report.observations == ({"alignment": 1.0} if own is setup else {})
        states.append(state.tensors["weight"])
    assert torch.equal(*states)
    assert not torch.equal(states[0], torch.ones(1, D, dtype=torch.float64))


@pytest.mark.parametrize("engine", [SerialEngine, BatchedEngine])
def test_alignment_of_sub_models_of_a_net(engine: Any) -> None:
    """At unit granularity: gradients of the full net with dropped units zeroed, by autograd."""
    torch.manual_seed(0)
    config: dict[str, Any] = {
        "data": {"partition": "iid"},
        "clients": {"count": 1, "per_round": 1, "capacities": [0.5]},
        "scheme": {"name": "masked-sgd", "sequence": "random"},
        "local": {"steps": 2, "absent_labels": "keep"},
    }  # fmt: skip
    setup = prepare(parse(config), Joined().double(), six())
    state = initial_state(setup)
    _, report = step(
        setup, state, engine(setup), CostModel(setup.module, setup.clients.dataset.example)
    )
    cut, own = cut_of(setup, Assignment(0, 0, 0.5)), setup.clients.examples(0)
    masks = {n: torch.zeros_like(t) for n, t in state.tensors.items()}
    for name, mask in masks.items():
        cut.add(name, mask, 1.0)

    def gradients(point: dict[str, Tensor]) -> Tensor:
        leaves = {n: t.clone().requires_grad_() for n, t in point.items()}
        z = torch.func.functional_call(setup.module, leaves, (own.x,))
        found = torch.autograd.grad(setup.loss(z, own.y), list(leaves.values()))
        return torch.cat([(masks[n] * g).view(-1) for n, g in zip(leaves, found, strict=True)])

    masked = gradients({n: masks[n] * t for n, t in state.tensors.items()})
    alpha = gradients(dict(state.tensors)) @ masked / (masked @ masked)
    assert report.observations["alignment"] == pytest.approx(float(alpha), rel=1e-9)
    assert abs(float(alpha) - 1) > 1e-3


def test_a_zero_gradient_has_no_alignment() -> None:
    zero = {"w": torch.zeros(2)}
    assert MaskedSgd(Rolling(2)).observe(Observation({"w": torch.ones(2)}, zero)) == {}


@pytest.mark.slow
def test_measuring_is_in_the_metrics_and_costs_no_traffic(tmp_path: Path) -> None:
    common: dict[str, Any] = {
        "model": {"name": "mlp", "width": 8}, "data": {"partition": "iid"},
        "clients": {"count": 1, "per_round": 1, "capacities": [0.5]},
        "local": {"steps": 1}, "train": {"rounds": 3, "evaluate_every": 1},
        "engine": {"name": "local"},
    }  # fmt: skip
    lines = {}
    for scheme in ({"name": "masked-sgd", "sequence": "static"}, {"name": "static"}):
        config = parse({**common, "scheme": scheme})
        folder = RunFolder(tmp_path / scheme["name"])
        folder.create(config)
        setup = prepare(config, data=tiny_images())
        state, _ = run_rounds(Training(config, setup), folder)
        lines[scheme["name"]] = folder.metrics(), state.tensors
    (masked, ours), (plain, theirs) = lines.values()
    for a, b in zip(masked, plain, strict=True):
        assert (a["flops"], a["bytes_up"]) == (b["flops"], b["bytes_up"])
        assert isinstance(a["observed"]["alignment"], float)
        assert "observed" not in b
        assert a["seconds"]["observe"] > 0
    assert all(torch.equal(t, theirs[n]) for n, t in ours.items())
    console = Console(width=200)
    with console.capture() as shown:
        console.print(history_table(masked, "run"))
    assert "alignment" in shown.get()
    assert f"{masked[-1]['observed']['alignment']:.4f}" in shown.get()


@pytest.mark.parametrize("granularity", ["unit", "coordinate"])
@pytest.mark.parametrize("name", [name for name in SCHEMES.entries if name != "masked-sgd"])
def test_a_round_sends_what_a_round_of_the_sequence_does(name: str, granularity: str) -> None:
    """Values, masks that the client cannot compute itself, and the cost of an adaptation."""

    def setup(scheme: dict[str, Any]) -> Setup:
        keys: dict[str, Any] = {"granularity": granularity}
        if name == "hierarchical":
            keys |= {"cells": 1, "every": 1}
        config = {
            "model": {"name": "mlp", "width": 8}, "data": {"partition": "iid"},
            "clients": {"count": 1, "per_round": 1, "capacities": [0.5]},
            "local": {"steps": 1, "absent_labels": "keep"}, "scheme": {**keys, **scheme},
        }  # fmt: skip
        return prepare(parse(config), data=tiny_images())

    masked = {"name": "masked-sgd", "sequence": name}
    try:
        plain = setup({"name": name})
    except ConfigError as error:
        with pytest.raises(ConfigError, match=re.escape(str(error))):
            setup(masked)
        return
    totals = []
    for own in (plain, setup(masked)):
        state, report = step_of(own)
        shapes = {key: tensor.shape for key, tensor in state.memory.items()}
        totals.append((report.bytes_down, report.bytes_up, shapes))
    assert totals[0] == totals[1]


@pytest.mark.slow
def test_what_is_not_defined_is_refused() -> None:
    def refused(scheme: dict[str, Any], **clients: Any) -> None:
        one = {"count": 1, "per_round": 1, "capacities": [0.5]} | clients
        config = {"scheme": {"name": "masked-sgd"} | scheme, "clients": one}
        prepare(parse({**config, "model": {"name": "mlp", "width": 8}}), data=tiny_images())

    with pytest.raises(ConfigError, match=r"^clients\.count: 4 "):
        refused({}, count=4)
    with pytest.raises(ConfigError, match=r"^scheme\.sequence: 'masked-sgd' "):
        refused({"sequence": "masked-sgd"})
    with pytest.raises(ConfigError, match=r"^scheme\.sequence: 'roling'"):
        refused({"sequence": "roling"})
    with pytest.raises(ConfigError, match=r"^scheme\.windows: "):
        refused({"sequence": "rolling", "windows": 3})
