"""The last rounds under train.finish: nested sub-models, ranked once, resumed bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import submodel
from submodel.algorithm.rounds import initial_state, step
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.engines.serial import SerialEngine
from submodel.model.cost import CostModel
from submodel.model.cut import UnitCut
from submodel.runs.checkpoint import model_sha256
from submodel.runs.loop import Interruption
from submodel.schemes import Ordered
from submodel.schemes.ordered import FinishingCuts, NestedSteps

CONFIG: dict[str, Any] = {
    "clients": {"count": 8, "per_round": 4, "capacities": [1, "1/2", "1/4"]},
    "train": {"rounds": 6, "evaluate_every": 6, "checkpoint_every": 2},
}
FINISHED: dict[str, Any] = {**CONFIG, "train": {**CONFIG["train"], "finish": "1/3"}}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def data() -> Any:
    return submodel.data.limit(submodel.digits(), 200, 50)


def test_rounds_before_are_as_ever_and_those_behind_nest() -> None:
    plain = submodel.train(net(), data(), CONFIG, progress=False)
    result = submodel.train(net(), data(), FINISHED, progress=False)
    losses = [[line["train_loss"] for line in r.history] for r in (plain, result)]
    assert losses[0][:4] == losses[1][:4]
    assert losses[0][4] != losses[1][4]
    training, state = result.training, result.state
    cuts = {c: training.cut(state, c) for c in (0.25, 0.5)}
    assert all(isinstance(cut, UnitCut) for cut in cuts.values())
    small, large = (set(cut.units["1"].tolist()) for cut in cuts.values())  # type: ignore[attr-defined]
    assert (len(small), len(large)) == (4, 8)
    assert small < large
    ranking = state.recall("finish")["1"].numpy()
    assert small == set(ranking[:4].tolist())
    assert sorted(ranking.tolist()) == list(range(16))


@pytest.mark.slow
def test_a_run_that_is_stopped_while_finishing_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    whole = submodel.train(net(), data(), FINISHED, progress=False)

    class Stop(submodel.Callback):
        def after_round(self, before: Any, after: Any, line: Any) -> None:
            if line["round"] == 5:
                raise KeyboardInterrupt

    with pytest.raises(Interruption):
        submodel.train(
            net(), data(), FINISHED, out=tmp_path / "run", callbacks=[Stop()], progress=False
        )
    run = submodel.open(tmp_path / "run", model=net(), data=data())
    run.resume(progress=False)
    assert run.summary is not None
    assert run.summary["model_sha256"] == model_sha256(whole.state.tensors)
    shapes = [tuple(p.shape) for p in run.submodel("1/4").parameters()]
    assert shapes == [(4, 64), (4,), (10, 4), (10,)]
    with pytest.raises(ConfigError, match=r"train\.rounds: .*train\.finish"):
        run.resume({"train": {"rounds": 9}}, progress=False)


def test_in_the_order_of_places_it_is_ordered_dropout_bit_for_bit() -> None:
    config = parse({**CONFIG, "model": {"name": "own"}, "data": {"name": "own"}})
    setup = prepare(config, net(), data())
    by_place = {axis: np.arange(size) for axis, size in setup.axes.cut_by_capacity.items()}
    widths = (0.25, 0.5, 1.0)
    ends = []
    for scheme in (Ordered(widths, 1.0), FinishingCuts(by_place, widths, 1.0)):
        one = replace(setup, scheme=scheme)
        costs = CostModel(one.module, one.clients.dataset.example)
        state, report = step(one, initial_state(one), SerialEngine(one), costs)
        ends.append((model_sha256(state.tensors), report.flops, report.bytes_up))
    assert ends[0] == ends[1]


def test_targets_that_are_no_labels_are_finished_without_distillation() -> None:
    x = torch.linspace(-1, 1, 48).reshape(-1, 1)
    examples = x, x**2
    config = {**FINISHED, "task": {"loss": "squared-error"}}
    config["train"] = {**config["train"], "rounds": 3}
    module = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    result = submodel.train(module, submodel.dataset(examples, examples), config, progress=False)
    rule = result.training.setup_at(result.state).scheme.step_rule(1.0)
    assert isinstance(rule, NestedSteps)
    assert rule.distill == 0.0
    assert rule.widths == (0.25, 0.5, 1.0)


CELLS: dict[str, Any] = {
    "scheme": {"name": "hierarchical", "cells": 2},
    "clients": {"capacities": [0.5]},
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": {"finish": 0.5, "output_step": 2.0}}, r"^train\.finish: .*train\.output_step"),
        ({"train": {"finish": 0.5}, **CELLS}, r"^train\.finish: .*scheme\.name"),
        ({"train": {"finish": 1.5}}, r"^train\.finish: 1\.5 "),
    ],
)
def test_what_does_not_go_with_it_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(parse({"model": {"name": "mlp", "width": 8}, **change}))
