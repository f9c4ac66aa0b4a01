"""How good sub-models are by themselves: the table of a fit, and what is said of an export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from submodel.algorithm.score import Score
from submodel.amounts import si
from submodel.presentation.tables import text_table
from submodel.runs.open import Run

_NEAR = 0.99  # of the global model's score: nothing to be said


def fit_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """What fitting came to, a row for every capacity."""
    headline = results[0]["headline"]
    headings = (
        *("capacity", "parameters", f"test {headline} before", "fitted", "global model"),
        *("cut", "rounds", "bytes (down + up)", "FLOPs"),
    )
    rows = [
        (
            f"{r['capacity']:g}",
            f"{r['parameters']:,}",
            *(_value(headline, r[s]) for s in ("score_before", "score", "global_score")),
            r["cut"],
            f"{r['rounds']}",
            si(r["bytes_down"] + r["bytes_up"], "B"),
            si(r["flops"]),
        )
        for r in results
    ]
    return text_table("sub-models that stand by themselves", headings, rows, words=["cut"])


def _value(headline: str, entries: Mapping[str, float]) -> str:
    value = entries[headline]
    return f"{value:.1%}" if headline == "accuracy" else f"{value:.4f}"


def advice_of_export(run: Run, capacity: float, score: Score, is_fitted: bool) -> str:
    """What an exported sub-model is worth beside the global model, and what would make it better.

    Args:
        run: that it is of.
        capacity: its own.
        score: on the test part.
        is_fitted: whether it was trained for itself.
    """
    summary = run.summary or {}
    name = "accuracy" if score.accuracy is not None else "loss"
    whole, value = summary.get(f"test_{name}"), score.entries()[name]
    if whole is None or (value >= _NEAR * whole if name == "accuracy" else value <= whole / _NEAR):
        return ""
    text = f"the global model has test {name} {_value(name, {name: whole})}"
    if is_fitted:
        return f"{text}; more rounds ('submodel fit --rounds') or a larger --lr may help"
    command = f"submodel fit {run.folder.path} --capacity {capacity:g}"
    return f"{text}; '{command}' trains this sub-model for itself"
