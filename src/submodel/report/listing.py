"""Runs and experiments as rows: which of them, in which order, as plain values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from submodel.errors import ConfigError, plain
from submodel.experiments.outline import ExperimentOutline
from submodel.runs.outline import RunOutline

_STATES = ("running", "failed", "stopped", "finished")


@dataclass(frozen=True)
class ListRow:
    """A run, or an experiment of many, as a list shows it; the names are those of ``--json``.

    Args:
        path: the folder.
        state: running, stopped, finished or failed.
        reason: why it failed or stopped, where that is known.
        count: rounds done; of an experiment, runs.
        planned_count: likewise, in the end; 0: nobody can tell.
        scores: after the last evaluation.
        traffic: bytes, down and up.
        seconds: what the rounds took; of an experiment, those of all its runs.
        changed_at: when something last happened, in seconds since 1970.
        outline: what it was read from; None: an experiment.
    """

    path: Path
    kind: str
    state: str
    reason: str
    count: int
    planned_count: int
    traffic: int
    seconds: float
    changed_at: float
    scores: Mapping[str, float] = field(default_factory=dict)
    outline: RunOutline | None = None

    def text(self, key: str) -> str:
        """What the configuration says for a key; empty: nothing.

        Args:
            key: as ``scheme.name``.
        """
        return "" if self.outline is None else self.outline.text(key)

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        units = "rounds" if self.kind == "run" else "runs"
        settings = {n: self.text(f"{n}.name") or None for n in ("scheme", "data", "model")}
        moment = datetime.fromtimestamp(self.changed_at, UTC).isoformat(timespec="seconds")
        return {
            "path": str(self.path),
            "kind": self.kind,
            "state": self.state,
            "reason": self.reason or None,
            units: self.count,
            f"{units}_planned": self.planned_count or None,
            **(settings if self.kind == "run" else {}),
            **{f"test_{n}": v if math.isfinite(v) else None for n, v in self.scores.items()},
            "traffic": self.traffic,
            "seconds": round(self.seconds, 3),
            "changed": moment if self.changed_at else None,
        }


def rows_of(outline: RunOutline | ExperimentOutline, with_runs: bool = False) -> Iterator[ListRow]:
    """The row of a run; that of an experiment, and those of its runs.

    Args:
        outline: of either.
        with_runs: whether the runs of an experiment have rows.
    """
    if isinstance(outline, RunOutline):
        yield ListRow(
            outline.path,
            "run",
            outline.phase,
            outline.reason,
            outline.rounds,
            outline.rounds_planned,
            outline.traffic,
            outline.seconds,
            outline.changed_at,
            outline.scores,
            outline,
        )
        return
    yield ListRow(
        outline.path,
        "experiment",
        outline.phase,
        outline.reason,
        outline.runs_ended,
        outline.runs_planned,
        sum(run.traffic for run in outline.runs),
        sum(run.seconds for run in outline.runs),
        outline.changed_at,
    )
    if with_runs:
        for run in outline.runs:
            yield from rows_of(run)


_ORDERS: dict[str, Callable[[ListRow], Any]] = {
    "name": lambda row: str(row.path),
    "state": lambda row: _STATES.index(row.state),
    "rounds": lambda row: -row.count / max(1, row.planned_count),
    "accuracy": lambda row: -_or(row.scores.get("accuracy"), -math.inf),
    "loss": lambda row: _or(row.scores.get("loss"), math.inf),
    "scheme": lambda row: row.text("scheme.name"),
    "data": lambda row: row.text("data.name"),
    "model": lambda row: row.text("model.name"),
    "traffic": lambda row: -row.traffic,
    "changed": lambda row: -row.changed_at,
    "took": lambda row: -row.seconds,
}
SORT_KEYS = tuple(_ORDERS)
"""What rows can be sorted by: the best, the most, the latest first."""


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None or math.isnan(value) else value


def sort_rows(rows: Sequence[ListRow], key: str, reverse: bool = False) -> list[ListRow]:
    """Rows in an order.

    Args:
        rows: any.
        key: one of `SORT_KEYS`.
        reverse: the other way round.
    """
    if key not in _ORDERS:
        raise ConfigError([f"--sort: {plain(key, 40)!r} is not one of {', '.join(SORT_KEYS)}"])
    return sorted(sorted(rows, key=_ORDERS["name"]), key=_ORDERS[key], reverse=reverse)


def select_rows(rows: Sequence[ListRow], conditions: Sequence[str]) -> list[ListRow]:
    """Those rows that meet all conditions.

    Args:
        rows: any.
        conditions: as ``state=stopped``, ``local.lr=0.1`` (any key of the configuration) or
            ``scheme=r*``; a word without ``=`` is looked for in the path and the names.
    """
    for condition in conditions:
        key, sign, pattern = condition.partition("=")
        if not sign:
            rows = [row for row in rows if condition.lower() in " ".join(_words(row)).lower()]
            continue
        values = [(row, _value(row, key.strip())) for row in rows]
        if rows and all(value is None for _, value in values):
            raise ConfigError(
                [
                    f"--where {plain(condition, 80)}: none of these runs has {plain(key, 40)!r}; "
                    "give state, kind, name, scheme, data, model, or a key of the configuration, "
                    "as local.lr"
                ]
            )
        rows = [
            row for row, value in values if value is not None and _meets(value, pattern.strip())
        ]
    return list(rows)


def _words(row: ListRow) -> list[str]:
    return [str(row.path), row.state, *(row.text(f"{n}.name") for n in ("scheme", "data", "model"))]


def _value(row: ListRow, key: str) -> object:
    """What a row has for the key of a condition; None: no such thing."""
    simple = {"state": row.state, "kind": row.kind, "name": row.path.name}
    if key in simple:
        return simple[key]
    if row.outline is None:
        return None
    is_section = key in ("scheme", "data", "model")
    return row.outline.value(f"{key}.name" if is_section else key)


def _meets(value: object, pattern: str) -> bool:
    """Whether a value is what a pattern asks for: a number, however it is spelt, or a text.

    >>> _meets(0.1, "1e-1"), _meets("rolling", "r*"), _meets(True, "true"), _meets(1, "10")
    (True, True, True, False)
    """
    if isinstance(value, bool):
        return pattern.lower() == str(value).lower()
    if isinstance(value, int | float):
        try:
            return float(value) == float(pattern)
        except (ValueError, OverflowError):
            return False
    return fnmatchcase(str(value), pattern)
