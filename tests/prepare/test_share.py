"""A part of a model as a separate model, trained by the clients that can hold it (exclusive
training).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.rounds import plan
from submodel.algorithm.types import Assignment
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.data import Population
from submodel.model.build import tensors_of
from submodel.model.cut import gather
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training

TINY: dict[str, Any] = {
    "model": {"name": "cnn", "width": 8},
    "data": {"examples": 200, "test_examples": 50},
    "clients": {"count": 20, "per_round": 4, "capacities": [1, 0.5, 0.25]},
    "scheme": {"name": "full"},
    "train": {"rounds": 2, "evaluate_capacities": False},
}


def tiny(**sections: dict[str, Any]) -> dict[str, Any]:
    return {name: {**TINY.get(name, {}), **sections.get(name, {})} for name in {**TINY, **sections}}


@pytest.mark.parametrize("mode", ["fixed", "dynamic"])
def test_only_those_who_can_hold_enough_are_drawn_and_all_of_them_alike(mode: Any) -> None:
    clients = Population(30, 4, [1.0, 0.5, 0.25], [1, 1, 1], mode, seed=2, least=0.5)
    counts = torch.zeros(30)
    for round_ in range(600):
        sample = clients.sample(round_)
        assert len(set(sample)) == 4
        assert all(clients.capacity(client, round_) >= 0.5 for client in sample)
        counts[sample] += 1
    able = sum(clients.capacity(c, 0) >= 0.5 for c in range(30)) if mode == "fixed" else 30
    assert int((counts > 0).sum()) == able
    assert counts[counts > 0].std() < 3 * (600 * 4 / able) ** 0.5


def test_where_fewer_can_hold_it_all_of_them_take_part() -> None:
    clients = Population(9, 4, [1.0, 0.5], [1, 2], "fixed", seed=0, least=1.0)
    assert clients.sample(0) == [c for c in range(9) if clients.capacity(c, 0) == 1]


def test_a_share_has_the_shape_of_the_sub_model_that_static_gives() -> None:
    config = parse(tiny(scheme={"name": "static"}))
    setup = prepare(config)
    cut = cut_of(setup, Assignment(0, 0, 0.25, 0))
    wanted = {n: t.shape for n, t in gather(cut, tensors_of(setup.module)).items()}
    share = prepare(parse(tiny(model={"share": "1/4"}, clients={"least": "1/4"})))
    assert {n: t.shape for n, t in tensors_of(share.module).items()} == wanted
    again = prepare(parse(tiny(model={"share": "1/4"})))
    for name, tensor in tensors_of(share.module).items():
        assert torch.equal(tensor, tensors_of(again.module)[name])


def test_a_share_begins_as_a_model_of_its_size_does() -> None:
    def first(**model: Any) -> torch.Tensor:
        setup = prepare(parse(tiny(model=model)))
        weights = [p for p in setup.module.parameters() if p.dim() == 4]
        return weights[1].detach()

    assert torch.equal(first(width=8, share="1/4"), first(width=2))


def test_exclusive_training_runs_and_costs_what_its_clients_hold() -> None:
    config = parse(tiny(model={"share": 0.5}, clients={"least": 0.5, "capacity_mode": "dynamic"}))
    setup = prepare(config)
    _, history = run_rounds(Training(config, setup))
    parameters = sum(p.numel() for p in setup.module.parameters())
    for round_, line in enumerate(history):
        assert len(plan(setup, round_)) == 4
        assert 0 < line["bytes_down"] <= 4 * 4 * parameters
    assert 0 <= history[-1]["test_accuracy"] <= 1


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"clients": {"capacities": [0.5], "least": 1}}, "clients.least: .*1"),
        ({"model": {"share": 0.5, "factorised": True}}, "model.share: .*widths"),
        ({"model": {"share": 0.5}, "engine": {"name": "flower"}}, "model.share: devices"),
        ({"clients": {"least": 0.5}, "engine": {"name": "flower"}}, "clients.least: devices"),
        (
            {"clients": {"least": 0.5}, "train": {"output_step": 1.0}},
            "train.output_step: .*clients",
        ),
        (
            {"clients": {"count": 4, "proportions": [1, 100, 100], "least": 1}},
            "clients.least: no client",
        ),
    ],
)
def test_what_cannot_be_is_refused(sections: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^{problem}"):
        prepare(parse(tiny(**sections)))
