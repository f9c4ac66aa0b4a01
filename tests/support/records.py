"""Records of runs, comparisons and studies, written without training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from submodel.comparison.records import ArmRecord, SeedRun
from submodel.comparison.results import ArmResult, ComparisonResult
from tests.support.run_folders import make_run

Lines = Sequence[Mapping[str, float]]


def score_line(accuracy: float, number: int = 1, **more: float) -> dict[str, float]:
    """Make the line of an evaluated round with one accuracy for all measures."""
    keys = ("test_accuracy", "train_eval_accuracy", "capacity_accuracy.1", "capacity_accuracy.0.5",
            "client_accuracy.worst_quarter")  # fmt: skip
    costs = {"round": number, "bytes": 2e9, "flops": 3e12}
    losses = {"test_loss": 1 - accuracy, "train_eval_loss": 0.9 - accuracy}
    return {**costs, **losses, **dict.fromkeys(keys, accuracy), **more}


def record(
    slug: str, curves: Sequence[float | Lines], seconds: float = 1.0, **values: Any
) -> ArmRecord:
    """Make the record of an arm: lines of each seed, or the accuracy of its only line."""
    lines = [[score_line(c)] if isinstance(c, float) else [dict(x) for x in c] for c in curves]
    runs = [SeedRun(seed, x, seconds, "0" * 64, **values) for seed, x in enumerate(lines)]
    return ArmRecord(slug, {"name": slug}, runs)


def result_of(
    arms: Mapping[str, Sequence[float | Lines]], seconds: float = 1.0
) -> ComparisonResult:
    """Make the result of a comparison from the curves of each arm."""
    records = [
        ArmResult(name, name, record(name, curves, seconds)) for name, curves in arms.items()
    ]
    return ComparisonResult(records, "some budget", "a command")


def make_comparison(path: Path, seeds: int = 3) -> Path:
    """Write rolling, static and random with their runs; rolling is 0.2 ahead of both."""
    arms = []
    for scheme, bonus in (("rolling", 0.2), ("static", 0.0), ("random", 0.002)):
        folders = [
            make_run(path / "runs" / scheme / f"seed-{s}", s, scheme, bonus=bonus * (1 + s / 50))
            for s in range(seeds)
        ]
        arms.append(ArmResult(scheme, scheme, ArmRecord.of(scheme, folders)))
    ComparisonResult(arms, "12 rounds each", "submodel compare rolling,static,random").write(
        path / "records"
    )
    return path


def make_study(path: Path) -> Path:
    """Write a study of one theorem with two settings."""
    path.mkdir(parents=True)
    statement: dict[str, Any] = {
        "source": "Theorem 1",
        "parameter": "R",
        "case": "p=1",
        "quantity": "slope",
    }
    statement |= {"estimate": -1.0, "low": -1.1, "high": -0.9, "exact": -1.0, "relation": "<="}
    statement |= {"limit": -0.9, "verdict": "yes", "conditions": "met"}
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
    content |= {"claims": [statement], "notes": ["a note"], "failures": [], "rows": rows}
    (path / "tiny.json").write_text(json.dumps(content), "utf-8")
    (path / "tiny-claims.csv").write_text("source\n", "utf-8")
    return path
