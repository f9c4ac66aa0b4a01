"""Contracts 2, 5 and 7 where the new model is written over the old one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from submodel.algorithm.merge import Accumulator, accumulator, merge_rule
from submodel.algorithm.rounds import OneModel, initial_state, step
from submodel.config import parse
from submodel.engines.serial import SerialEngine
from submodel.model.cost import CostModel
from submodel.model.cut import CoordinateCut
from submodel.runs import loop, scoring
from submodel.runs.callbacks import Callback, CallbackGuard, Tell, standard
from submodel.runs.folder import RunFolder
from tests.algorithm.test_merge import Update, random_updates
from tests.support.common import RULES, tiny_setup
from tests.support.runs import SMALL, run


def masked(whole: dict[str, torch.Tensor]) -> list[Update]:
    masks = {n: torch.rand(t.shape) < 0.5 for n, t in whole.items()}
    values = {n: torch.where(masks[n], t + 1 / 3, t) for n, t in whole.items()}
    return [(CoordinateCut(masks), values, 1.0)] * 2


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("most", [None, 0])  # bytes that wait before they are summed
@pytest.mark.parametrize("which", ["one cut", "many cuts", "masks"])
def test_merged_in_place_it_has_the_same_bytes(
    rule: str, most: int | None, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if most is not None:
        monkeypatch.setattr(accumulator, "_LEAST_WAITING", most)
    whole, updates = random_updates(3, torch.float32)
    if which == "one cut":
        updates = updates[:1] * 3
    elif which == "masks":
        updates = masked(whole)
    results, addresses = [], [t.data_ptr() for t in whole.values()]
    for in_place in (False, True):
        sums = Accumulator(whole, merge_rule(rule))
        for cut, values, weight in updates:
            sums.add(cut, values, weight)
        merged = sums.merge(in_place=in_place)
        results.append([t.numpy().tobytes() for t in merged.values()])
        assert ([t.data_ptr() for t in merged.values()] == addresses) == in_place
        if in_place:
            assert sums.size == 0  # updates are let go as their tensors are merged
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("sections", "overwrites"),
    [
        ({}, True),
        ({"merge": {"projection": "box", "radius": 0.05}}, True),
        ({"server": {"name": "momentum"}}, False),
        ({"server": {"name": "plain", "lr": 0.5}}, False),
        ({"scheme": {"name": "hierarchical", "cells": 2}, "clients": {"capacities": [0.5]}}, False),
    ],
)
def test_only_where_nothing_looks_back(sections: dict[str, Any], overwrites: bool) -> None:
    setup = tiny_setup("mlp", **sections)
    costs = CostModel(setup.module, setup.clients.dataset.example)
    engine = SerialEngine(setup)
    first, second = initial_state(setup), initial_state(setup)
    expected, _ = step(setup, first, engine, costs)
    one_model = OneModel()
    state, _ = step(setup, second, engine, costs, one_model=one_model)
    assert one_model.is_torn == overwrites
    assert all(torch.equal(expected.tensors[n], t) for n, t in state.tensors.items())
    assert all(torch.equal(expected.memory[n], t) for n, t in state.memory.items())


def test_callbacks_of_others_keep_the_model_before_a_round() -> None:
    class Own(Callback):
        def after_round(self, before: Any, after: Any, line: Any) -> None:
            pass

    class AtTheEnd(Callback):
        def close(self) -> None:
            pass

    assert CallbackGuard(Own()).looks_back
    assert not AtTheEnd().looks_back
    assert not Tell(print).looks_back


def test_stopped_where_the_model_is_written_over_it_goes_on_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse(SMALL)
    expected = run(tmp_path / "whole", config)["model_sha256"]
    monkeypatch.setattr(loop, "_LARGE", 0)
    scores = scoring.scores

    def interrupted(training: Any, state: Any, *others: Any) -> Any:
        if state.round == 4:
            raise KeyboardInterrupt
        return scores(training, state, *others)

    monkeypatch.setattr(standard, "scores", interrupted)
    with pytest.raises(loop.Interruption, match=r"while round 4 of 6 .*; round 2 is saved"):
        run(tmp_path / "run", config)
    monkeypatch.setattr(standard, "scores", scores)
    assert run(tmp_path / "run", config, resume=True)["model_sha256"] == expected
    assert [line["round"] for line in RunFolder(tmp_path / "run").metrics()] == [1, 2, 3, 4, 5, 6]
