"""Folders of runs as their processes leave them, written in a moment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from submodel.config import parse
from submodel.runs.folder import RunFolder


def round_entries(number: int, **more: Any) -> dict[str, Any]:
    """The line of a round."""
    line: dict[str, Any] = {
        "round": number,
        "train_loss": 2.0 / number,
        "clients": 4,
        "refused": {},
        "coverage": {"units": 1.0, "weights": 1.0},
        "bytes_down": 1000,
        "bytes_up": 500,
        "flops": 7,
        "seconds": {"train": 1.5, "merge": 0.5},
    }
    return {**line, **more}


def evaluated(number: int, accuracy: float, **more: Any) -> dict[str, Any]:
    """The line of an evaluated round."""
    scores = {"test_accuracy": accuracy, "test_loss": 1.0 - accuracy}
    return round_entries(number, **scores, **more)


def write_run(
    path: Path,
    lines: Sequence[Mapping[str, Any]],
    rounds: int = 4,
    sections: Mapping[str, Any] | None = None,
    is_finished: bool = False,
) -> RunFolder:
    """A run that has come as far as its lines say."""
    folder = RunFolder(path)
    values = {"name": path.name, **(sections or {})}
    folder.create(parse({**values, "train": {**values.get("train", {}), "rounds": rounds}}))
    folder.replace_metrics([dict(line) for line in lines])
    if is_finished:
        scores = {k: v for k, v in lines[-1].items() if k.startswith("test_")}
        summary = {
            "name": path.name,
            "rounds": rounds,
            **scores,
            "model_sha256": "0" * 64,
            "bytes_down": 1000 * rounds,
            "bytes_up": 500 * rounds,
            "seconds": 2.0 * rounds,
        }
        folder.summary_file.write_text(json.dumps(summary), "utf-8")
    return folder
