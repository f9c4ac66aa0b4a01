"""Complete runs of a few rounds in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from submodel.algorithm.types import State
from submodel.config import Config
from submodel.config.setup import prepare
from submodel.data import Dataset
from submodel.runs.callbacks import OnRound, RoundCallback
from submodel.runs.loop import Interruption, RunFolder, run_rounds
from submodel.runs.training import Training

SMALL: dict[str, Any] = {
    "model": {"name": "mlp", "width": 16},
    "clients": {"count": 20, "per_round": 4},
    "train": {"rounds": 6, "evaluate_every": 2, "checkpoint_every": 2},
}


def run(
    path: Path, config: Config, resume: bool = False, on_round: OnRound = lambda _: None
) -> dict[str, Any]:
    folder = RunFolder(path)
    if not resume:
        folder.create(config)
    run_rounds(Training(config, prepare(config)), folder, [RoundCallback(on_round)], resume=resume)
    summary = folder.summary()
    assert summary is not None
    return summary


Ended = tuple[RunFolder, State, list[dict[str, Any]]]


def whole_and_resumed(
    path: Path, config: Config, stops: set[int], data: Dataset | None = None
) -> tuple[Ended, Ended]:
    """Train a run, and one that is stopped after each of these rounds and resumed; return both."""
    waiting = set(stops)

    def stop(line: dict[str, Any]) -> None:
        if line["round"] in waiting:
            waiting.remove(line["round"])
            raise KeyboardInterrupt

    whole, broken = RunFolder(path / "whole"), RunFolder(path / "broken")
    for folder in (whole, broken):
        folder.create(config)
    expected = run_rounds(Training(config, prepare(config, data=data)), whole)
    for again in range(len(stops)):
        training = Training(config, prepare(config, data=data))
        with pytest.raises(Interruption):
            run_rounds(training, broken, [RoundCallback(stop)], resume=again > 0)
    found = run_rounds(Training(config, prepare(config, data=data)), broken, resume=True)
    return (whole, *expected), (broken, *found)
