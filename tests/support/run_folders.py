"""Folders of runs in the form of their processes, written quickly."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from submodel.config import parse
from submodel.runs.folder import RunFolder

CAPACITIES = ("1", "0.5", "0.25")


def round_entries(number: int, **more: Any) -> dict[str, Any]:
    """Make the line of a round."""
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
    """Make the line of an evaluated round."""
    scores = {"test_accuracy": accuracy, "test_loss": 1.0 - accuracy}
    return round_entries(number, **scores, **more)


def write_run(
    path: Path,
    lines: Sequence[Mapping[str, Any]],
    rounds: int = 4,
    sections: Mapping[str, Any] | None = None,
    is_finished: bool = False,
) -> RunFolder:
    """Write a run up to its last line."""
    folder = RunFolder(path)
    values = sections or {}
    folder.create(parse({**values, "train": {**values.get("train", {}), "rounds": rounds}}))
    folder.replace_metrics([dict(line) for line in lines])
    if is_finished:
        write_summary(folder, rounds, lines[-1])
    return folder


def write_summary(folder: RunFolder, rounds: int, last: Mapping[str, Any]) -> None:
    """Write the summary of a run that ends with this line."""
    summary = {
        "name": folder.path.name,
        "rounds": rounds,
        **{key: value for key, value in last.items() if key.startswith("test_")},
        "model_sha256": f"{folder.config().seed:064x}",
        "bytes_down": 1000 * rounds,
        "bytes_up": 500 * rounds,
        "seconds": 2.0 * rounds,
    }
    folder.summary_file.write_text(json.dumps(summary), "utf-8")


def make_run(
    path: Path,
    seed: int = 0,
    scheme: str = "rolling",
    rounds: int = 12,
    *,
    bonus: float = 0.0,
    every: int = 2,
    finished_rounds: int | None = None,
    settings: Mapping[str, Any] | None = None,
    line: Mapping[str, Any] | None = None,
) -> RunFolder:
    """Write a run whose accuracy is 0.5 + bonus + 0.01 seed + 0.3 round / rounds.

    `line` updates its first line.
    """
    done_rounds = rounds if finished_rounds is None else finished_rounds
    noise = np.random.default_rng(seed).normal(size=rounds) * 0.01
    lines = []
    for number in range(1, done_rounds + 1):
        accuracy = 0.5 + bonus + 0.01 * seed + 0.3 * number / rounds
        entries: dict[str, Any] = {
            "train_loss": 2.0 - number / rounds + float(noise[number - 1]),
            "clients": 10,
            "coverage": {"units": 1.0, "weights": 0.9 + 0.1 * number / rounds},
            "bytes_down": 1000 + seed,
            "bytes_up": 1000,
            "flops": 10**6,
            "seconds": {"plan": 0.001, "train": 0.1, "merge": 0.01},
        }
        if number % every == 0:
            sizes = {c: accuracy * float(c) ** 0.5 for c in CAPACITIES}
            lines.append(evaluated(number, accuracy, **entries, capacity_accuracy=sizes))
        else:
            lines.append(round_entries(number, **entries))
    lines[0] |= line or {}
    sections = {"seed": seed, "scheme": {"name": scheme}, **(settings or {})}
    return write_run(path, lines, rounds, sections, is_finished=done_rounds == rounds)
