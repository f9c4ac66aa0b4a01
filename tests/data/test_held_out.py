"""Held-out training examples: their choice, their exclusion from training, and their scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import submodel
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.data import Dataset, Examples, digits, limit
from submodel.data.examples import hold_out
from submodel.data.facts import owners_of
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training

TINY: dict[str, Any] = {
    "model": {"name": "mlp", "width": 4},
    "data": {"examples": 200, "test_examples": 50, "held_out": 0.1},
    "clients": {"count": 10, "per_round": 2},
    "train": {"rounds": 1, "evaluate_capacities": False},
}


def test_the_parts_share_nothing_and_lose_nothing_and_follow_from_the_seed() -> None:
    data = limit(digits(), 200, 50)
    parts = [hold_out(data, 0.1, seed) for seed in (0, 0, 1)]
    for part in parts:
        assert part.held_out is not None
        assert (len(part.train), len(part.held_out)) == (180, 20)
        together = torch.cat([part.train.x, part.held_out.x]).flatten(1)
        assert sorted(together.tolist()) == sorted(data.train.x.flatten(1).tolist())
        assert part.test is data.test
    first, again, other = (part.held_out.x for part in parts if part.held_out)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_natural_clients_each_keep_theirs_and_somebody_with_one_example_trains_on_it() -> None:
    names = ["a"] * 10 + ["b"] * 5 + ["c"]
    x, y = torch.arange(16.0).reshape(-1, 1), torch.zeros(16, 1)
    owners = owners_of(names)
    data = hold_out(Dataset(Examples(x, y), Examples(x, y), None, owners=owners), 0.2, seed=3)
    assert data.owners is not None
    assert data.owners.names == ("a", "b", "c")
    assert np.bincount(data.owners.train).tolist() == [8, 4, 1]
    assert data.held_out is not None
    assert len(data.held_out) == 3


def test_a_run_trains_without_them_and_scores_them() -> None:
    config = parse(TINY)
    setup = prepare(config)
    held_out = setup.clients.dataset.held_out
    assert held_out is not None
    held_rows = {tuple(row) for row in held_out.x.flatten(1).tolist()}
    for client in range(10):
        rows = setup.clients.examples(client).x.flatten(1).tolist()
        assert not held_rows & set(map(tuple, rows))
    _, history = run_rounds(Training(config, setup))
    assert 0 <= history[-1]["held_out_accuracy"] <= 1
    assert {"held_out_loss", "test_loss"} <= history[-1].keys()


@pytest.mark.slow
def test_it_is_refused_where_it_means_nothing() -> None:
    few = parse({**TINY, "data": {"examples": 20, "held_out": 0.1}})
    with pytest.raises(ConfigError, match=r"^data\.held_out: 0\.1 .*20 "):
        prepare(few)
    with pytest.raises(ConfigError, match=r"^data\.held_out: devices"):
        prepare(parse({**TINY, "engine": {"name": "flower"}}))
    data = digits()
    with pytest.raises(ConfigError, match=r"^data\.held_out: the partition"):
        submodel.train(
            nn.Linear(64, 10),
            data,
            config={"data": {"held_out": 0.1}},
            clients=[[0, 1], [2, 3]],
        )
