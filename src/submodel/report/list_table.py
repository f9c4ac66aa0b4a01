"""The table of runs and experiments, as wide as the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from submodel.amounts import duration, si
from submodel.errors import plain
from submodel.report.listing import ListRow

STATE_STYLES = {"running": "green", "stopped": "yellow", "finished": "", "failed": "red"}
"""How states are coloured."""

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
_WORDS = ("state", "scheme", "data", "model")
# left out where there is no room, the first one first
_DISPENSABLE = ("loss", "traffic", "model", "took", "data", "scheme", "changed", "accuracy")


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
    """How long ago a moment was.

    Args:
        moment: seconds since 1970; 0: never.
        now: likewise.

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
        side = "left" if heading in _WORDS else "right"
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
