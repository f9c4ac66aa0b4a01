"""List of runs and experiments: selection, order and table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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

Outline = RunOutline | ExperimentOutline
"""Row of the list."""
STATE_STYLES = {"running": "green", "stopped": "yellow", "finished": "", "failed": "red"}
"""Colours of states."""
_STATES = ("running", "failed", "stopped", "finished")
_NAMED = ("scheme", "data", "model")


def rows_of(outline: Outline, with_runs: bool = False) -> list[Outline]:
    """Return the row of a run or an experiment, `with_runs` followed by its runs."""
    if isinstance(outline, RunOutline) or not with_runs:
        return [outline]
    return [outline, *outline.runs]


def _text(row: Outline, key: str) -> str:
    """Return the value of a configuration key; empty if there is none."""
    return row.text(key) if isinstance(row, RunOutline) else ""


def _kind(row: Outline) -> str:
    return "run" if isinstance(row, RunOutline) else "experiment"


def _counts(row: Outline) -> tuple[int, int]:
    """Return finished and planned rounds, of an experiment runs; planned is 0 if unknown."""
    if isinstance(row, RunOutline):
        return row.rounds, row.rounds_planned
    return row.runs_ended, row.runs_planned


def plain_row(row: Outline) -> dict[str, Any]:
    """Return a run or an experiment as plain values for ``--json``."""
    is_run = isinstance(row, RunOutline)
    units = "rounds" if is_run else "runs"
    done, planned = _counts(row)
    moment = datetime.fromtimestamp(row.changed_at, UTC).isoformat(timespec="seconds")
    return {
        "path": str(row.path),
        "kind": _kind(row),
        "state": row.phase,
        "reason": row.reason or None,
        units: done,
        f"{units}_planned": planned or None,
        **({name: _text(row, f"{name}.name") or None for name in _NAMED} if is_run else {}),
        **{f"test_{n}": v if math.isfinite(v) else None for n, v in row.scores.items()},
        "traffic": row.traffic,
        "seconds": round(row.seconds, 3),
        "changed": moment if row.changed_at else None,
    }


_ORDERS: dict[str, Callable[[Outline], Any]] = {
    "name": lambda row: str(row.path),
    "state": lambda row: _STATES.index(row.phase),
    "rounds": lambda row: -_share_done(row),
    "accuracy": lambda row: -_or(row.scores.get("accuracy"), -math.inf),
    "loss": lambda row: _or(row.scores.get("loss"), math.inf),
    "scheme": lambda row: _text(row, "scheme.name"),
    "data": lambda row: _text(row, "data.name"),
    "model": lambda row: _text(row, "model.name"),
    "traffic": lambda row: -row.traffic,
    "changed": lambda row: -row.changed_at,
    "took": lambda row: -row.seconds,
}  # best, most and latest first


def _share_done(row: Outline) -> float:
    done, planned = _counts(row)
    return done / max(1, planned)


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None or math.isnan(value) else value


def sort_rows(rows: Sequence[Outline], key: str, reverse: bool = False) -> list[Outline]:
    """Sort rows by a key; raise `ConfigError` for an unknown one."""
    if key not in _ORDERS:
        raise ConfigError(f"--sort: {plain(key, 40)!r} is not one of {', '.join(_ORDERS)}")
    return sorted(sorted(rows, key=_ORDERS["name"]), key=_ORDERS[key], reverse=reverse)


def select_rows(rows: Sequence[Outline], conditions: Sequence[str]) -> list[Outline]:
    """Return the rows that meet all conditions.

    A condition is like ``state=stopped``, ``local.lr=0.1`` (any key of the configuration) or
    ``scheme=r*``; a text without ``=`` is searched for in the path and the names.
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
                "such as local.lr"
            )
        rows = [
            row for row, value in values if value is not None and _meets(value, pattern.strip())
        ]
    return list(rows)


def _words(row: Outline) -> list[str]:
    return [str(row.path), row.phase, *(_text(row, f"{n}.name") for n in _NAMED)]


def _value(row: Outline, key: str) -> object:
    """Return the value of a condition's key in a row; None if there is none."""
    simple = {"state": row.phase, "kind": _kind(row), "name": row.path.name}
    if key in simple or not isinstance(row, RunOutline):
        return simple.get(key)
    return row.value(f"{key}.name" if key in _NAMED else key)


def _meets(value: object, pattern: str) -> bool:
    """Whether a value matches a pattern: a number in any notation, or a text.

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


_CELLS: dict[str, Callable[[Outline, float], str]] = {
    "state": lambda row, _: row.phase,
    "rounds": lambda row, _: _progress(row),
    "accuracy": lambda row, _: _headline(row.scores),
    "loss": lambda row, _: f"{row.scores['loss']:.4f}" if "loss" in row.scores else "",
    "scheme": lambda row, _: _text(row, "scheme.name"),
    "data": lambda row, _: _text(row, "data.name"),
    "model": lambda row, _: _text(row, "model.name"),
    "traffic": lambda row, _: si(row.traffic, "B"),
    "changed": lambda row, now: ago(row.changed_at, now),
    "took": lambda row, _: duration(row.seconds),
}
# columns to omit from a narrow table, in this order
_DISPENSABLE = ("loss", "traffic", "model", "took", "data", "scheme", "changed", "accuracy")


def _progress(row: Outline) -> str:
    done, planned = _counts(row)
    return f"{done}/{planned or '?'}{'' if isinstance(row, RunOutline) else ' runs'}"


def score_text(name: str, value: float) -> str:
    """Format a score; an accuracy is in percent.

    >>> score_text("accuracy", 0.5), score_text("loss", 1.5)
    ('50.0%', '1.5000')
    """
    return f"{value:.1%}" if name == "accuracy" else f"{value:.4f}"


def _headline(scores: Mapping[str, float]) -> str:
    """Return the accuracy or, for a task without accuracy, its own metric.

    >>> _headline({"loss": 1.5, "accuracy": 0.5}), _headline({"loss": 1.5, "perplexity": 4.25})
    ('50.0%', 'perplexity 4.25')
    """
    if "accuracy" in scores:
        return f"{scores['accuracy']:.1%}"
    others = (f"{plain(n, 20)} {v:.4g}" for n, v in scores.items() if n != "loss")
    return next(others, "").replace("_", " ")


def ago(moment: float, now: float) -> str:
    """Describe the time since a moment, both in seconds since 1970; empty for 0.

    >>> ago(1000.0, 1075.0), ago(1000.0, 1000.5)
    ('75 s ago', 'now')
    """
    if not moment:
        return ""
    return "now" if now - moment < 1 else f"{duration(now - moment)} ago"


def list_table(rows: Sequence[Outline], base: Path, now: float, console: Console) -> Table:
    """Return a table as wide as the console, without columns that do not fit.

    Paths are relative to `base`; `now` is in seconds since 1970.
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
        style = STATE_STYLES[row.phase]
        texts = [Text(cells[h][place], style if h == "state" else "") for h in headings]
        table.add_row(Text(names[place], "" if isinstance(row, RunOutline) else "bold"), *texts)
    return table


def _name(path: Path, base: Path) -> str:
    return plain(
        path.relative_to(base) if path.is_relative_to(base) and path != base else path, 200
    )
