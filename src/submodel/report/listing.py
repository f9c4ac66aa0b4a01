"""The list of runs and experiments: which rows, in which order, and as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from submodel.comparison.outline import ExperimentOutline
from submodel.core.amounts import duration, si
from submodel.core.errors import ConfigError, plain
from submodel.runs.outline import RunOutline

STATE_STYLES = {"running": "green", "stopped": "yellow", "finished": "", "failed": "red"}
"""Colours of states."""
_STATES = ("running", "failed", "stopped", "finished")
_NAMED = ("scheme", "data", "model")


@dataclass(frozen=True)
class ListRow:
    """A run, or an experiment of many, in the list; the names are those of ``--json``."""

    path: Path
    kind: str  # run, experiment
    state: str  # running, stopped, finished, failed
    reason: str  # why it failed or stopped, where that is known
    count: int  # rounds done; of an experiment, runs
    planned_count: int  # likewise, in the end; 0 where unknown
    traffic: int  # bytes, down and up
    seconds: float  # of all rounds; of an experiment, of all its runs
    changed_at: float  # in seconds since 1970
    scores: Mapping[str, float] = field(default_factory=dict)  # after the last evaluation
    outline: RunOutline | None = None  # of a run

    def text(self, key: str) -> str:
        """The value of a key of the configuration, as ``scheme.name``; empty where it has none."""
        return "" if self.outline is None else self.outline.text(key)

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        units = "rounds" if self.kind == "run" else "runs"
        settings = {n: self.text(f"{n}.name") or None for n in _NAMED}
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
    """The row of a run; or the row of an experiment and, `with_runs`, those of its runs."""
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
}  # the best, the most, the latest first


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None or math.isnan(value) else value


def sort_rows(rows: Sequence[ListRow], key: str, reverse: bool = False) -> list[ListRow]:
    """Rows in the order of a key; an unknown one is refused."""
    if key not in _ORDERS:
        raise ConfigError(f"--sort: {plain(key, 40)!r} is not one of {', '.join(_ORDERS)}")
    return sorted(sorted(rows, key=_ORDERS["name"]), key=_ORDERS[key], reverse=reverse)


def select_rows(rows: Sequence[ListRow], conditions: Sequence[str]) -> list[ListRow]:
    """The rows that meet all conditions.

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
                f"--where {plain(condition, 80)}: none of these runs has {plain(key, 40)!r}; "
                "give state, kind, name, scheme, data, model, or a key of the configuration, "
                "as local.lr"
            )
        rows = [
            row for row, value in values if value is not None and _meets(value, pattern.strip())
        ]
    return list(rows)


def _words(row: ListRow) -> list[str]:
    return [str(row.path), row.state, *(row.text(f"{n}.name") for n in _NAMED)]


def _value(row: ListRow, key: str) -> object:
    """The value of the key of a condition; None where a row has none."""
    simple = {"state": row.state, "kind": row.kind, "name": row.path.name}
    if key in simple:
        return simple[key]
    if row.outline is None:
        return None
    return row.outline.value(f"{key}.name" if key in _NAMED else key)


def _meets(value: object, pattern: str) -> bool:
    """Whether a value matches a pattern: a number, however it is spelt, or a text.

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


_CELLS: dict[str, Callable[[ListRow, float], str]] = {
    "state": lambda row, _: row.state,
    "rounds": lambda row, _: (
        f"{row.count}/{row.planned_count or '?'}{' runs' if row.kind == 'experiment' else ''}"
    ),
    "accuracy": lambda row, _: _headline(row.scores),
    "loss": lambda row, _: f"{row.scores['loss']:.4f}" if "loss" in row.scores else "",
    "scheme": lambda row, _: row.text("scheme.name"),
    "data": lambda row, _: row.text("data.name"),
    "model": lambda row, _: row.text("model.name"),
    "traffic": lambda row, _: si(row.traffic, "B"),
    "changed": lambda row, now: ago(row.changed_at, now),
    "took": lambda row, _: duration(row.seconds),
}
# left out where there is no room, the first one first
_DISPENSABLE = ("loss", "traffic", "model", "took", "data", "scheme", "changed", "accuracy")


def score_text(name: str, value: float) -> str:
    """The value of a score: of an accuracy in percent.

    >>> score_text("accuracy", 0.5), score_text("loss", 1.5)
    ('50.0%', '1.5000')
    """
    return f"{value:.1%}" if name == "accuracy" else f"{value:.4f}"


def _headline(scores: Mapping[str, float]) -> str:
    """The accuracy or, of a task that has none, its own metric.

    >>> _headline({"loss": 1.5, "accuracy": 0.5}), _headline({"loss": 1.5, "perplexity": 4.25})
    ('50.0%', 'perplexity 4.25')
    """
    if "accuracy" in scores:
        return f"{scores['accuracy']:.1%}"
    others = (f"{plain(n, 20)} {v:.4g}" for n, v in scores.items() if n != "loss")
    return next(others, "").replace("_", " ")


def ago(moment: float, now: float) -> str:
    """How long ago a moment was, both in seconds since 1970; empty for 0.

    >>> ago(1000.0, 1075.0), ago(1000.0, 1000.5)
    ('75 s ago', 'now')
    """
    if not moment:
        return ""
    return "now" if now - moment < 1 else f"{duration(now - moment)} ago"


def list_table(rows: Sequence[ListRow], base: Path, now: float, console: Console) -> Table:
    """A table as wide as the console, without the columns that it has no room for.

    Args:
        rows: any.
        base: paths are shown from here.
        now: seconds since 1970.
        console: where it will be shown.
    """
    cells = {h: [cell(row, now) for row in rows] for h, cell in _CELLS.items()}
    headings = [h for h, column in cells.items() if any(column) or h in ("state", "rounds")]
    names = [_name(row.path, base) for row in rows]
    longest = max(map(len, ["run", *names]))
    for heading in _DISPENSABLE:
        widths = [max(map(len, [h, *cells[h]])) for h in headings]
        if min(longest, 40) + sum(widths) + 2 * len(widths) <= console.width:
            break
        if heading in headings:
            headings.remove(heading)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("run", no_wrap=True, overflow="ellipsis", ratio=None)
    for heading in headings:
        side = "left" if heading in ("state", *_NAMED) else "right"
        table.add_column(heading, justify=side, no_wrap=True)  # type: ignore[arg-type]
    for place, row in enumerate(rows):
        style = STATE_STYLES[row.state]
        texts = [Text(cells[h][place], style if h == "state" else "") for h in headings]
        table.add_row(Text(names[place], "bold" if row.kind == "experiment" else ""), *texts)
    return table


def _name(path: Path, base: Path) -> str:
    return plain(
        path.relative_to(base) if path.is_relative_to(base) and path != base else path, 200
    )
