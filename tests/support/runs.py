"""Whole runs of a few rounds, in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from submodel.config import Config
from submodel.prepare.setup import prepare
from submodel.runs.callbacks import OnRound, Tell
from submodel.runs.loop import RunFolder, run_rounds
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
    run_rounds(Training(config, prepare(config)), folder, [Tell(on_round)], resume=resume)
    summary = folder.summary()
    assert summary is not None
    return summary
