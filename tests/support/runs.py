"""Whole runs of a few rounds, in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from submodel.config import Config
from submodel.prepare.setup import prepare
from submodel.runs.loop import RunFolder, train

SMALL: dict[str, Any] = {
    "model": {"name": "mlp", "width": 16},
    "clients": {"count": 20, "per_round": 4},
    "train": {"rounds": 6, "evaluate_every": 2, "checkpoint_every": 2},
}


def run(path: Path, config: Config, resume: bool = False, **options: Any) -> dict[str, Any]:
    folder = RunFolder(path)
    if not resume:
        folder.create(config)
    train(config, prepare(config), folder, resume=resume, **options)
    summary = folder.summary()
    assert summary is not None
    return summary
