"""Folders of runs, comparisons and studies, written without training anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from submodel.config import parse
from submodel.experiments.findings import Findings, WayRecord
from submodel.experiments.records import VariantRecord
from submodel.runs.folder import RunFolder

CAPACITIES = ("1", "0.5", "0.25")


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
    """A run whose accuracy is 0.5 + bonus + 0.01 seed + 0.3 round / rounds.

    `line` is laid over its first line.
    """
    folder = RunFolder(path)
    sections = {"seed": seed, "scheme": {"name": scheme}, "train": {"rounds": rounds}}
    folder.create(parse({**sections, **(settings or {})}))
    done_rounds = rounds if finished_rounds is None else finished_rounds
    lines = []
    noise = np.random.default_rng(seed).normal(size=rounds) * 0.01
    for number in range(1, done_rounds + 1):
        accuracy = 0.5 + bonus + 0.01 * seed + 0.3 * number / rounds
        entries: dict[str, Any] = {
            "round": number,
            "train_loss": 2.0 - number / rounds + float(noise[number - 1]),
            "clients": 10,
            "refused": {},
            "coverage": {"units": 1.0, "weights": 0.9 + 0.1 * number / rounds},
            "bytes_down": 1000 + seed,
            "bytes_up": 1000,
            "flops": 10**6,
            "seconds": {"plan": 0.001, "train": 0.1, "merge": 0.01},
        }
        if number % every == 0:
            entries |= {
                "test_loss": 1.0 - accuracy,
                "test_accuracy": accuracy,
                "capacity_accuracy": {c: accuracy * float(c) ** 0.5 for c in CAPACITIES},
            }
        lines.append({**entries, **(line or {})} if number == 1 else entries)
    folder.replace_metrics(lines)
    if done_rounds == rounds:
        last = {"test_loss": 1.0 - accuracy, "test_accuracy": accuracy}
        summary: dict[str, Any] = {"rounds": rounds, **last, "seconds": 0.111 * rounds}
        summary |= {"model_sha256": f"{seed:064x}"}
        folder.summary_file.write_text(json.dumps(summary), "utf-8")
    return folder


def make_comparison(path: Path, seeds: int = 3) -> Path:
    """Rolling, static and random; rolling is 0.2 ahead of both."""
    ways = []
    for scheme, bonus in (("rolling", 0.2), ("static", 0.0), ("random", 0.002)):
        folders = [
            make_run(path / "runs" / scheme / f"seed-{s}", s, scheme, bonus=bonus * (1 + s / 50))
            for s in range(seeds)
        ]
        ways.append(WayRecord(scheme, scheme, VariantRecord.of(scheme, folders)))
    Findings(ways, "12 rounds each", "submodel compare rolling,static,random").write(
        path / "records"
    )
    return path


def make_study(path: Path) -> Path:
    """A study of one theorem with two settings."""
    path.mkdir(parents=True)
    claim: dict[str, Any] = {
        "source": "Theorem 1",
        "parameter": "R",
        "case": "p=1",
        "quantity": "slope",
    }
    claim |= {"estimate": -1.0, "low": -1.1, "high": -0.9, "exact": -1.0, "relation": "<="}
    claim |= {"limit": -0.9, "verdict": "yes", "conditions": "met"}
    rows = [
        {"p": p, "R": r, "gap": 1 / r, "gap low": 0.9 / r, "gap high": 1.1 / r, "bound": 2 / r}
        for p in (1.0, 0.5)
        for r in (10, 20, 40)
    ]
    content: dict[str, Any] = {
        "study": "tiny",
        "title": "A tiny study",
        "version": "0",
        "settings": {"p": [1]},
    }
    content |= {"claims": [claim], "notes": ["a note"], "failures": [], "rows": rows}
    (path / "tiny.json").write_text(json.dumps(content), "utf-8")
    (path / "tiny-claims.csv").write_text("source\n", "utf-8")
    return path
