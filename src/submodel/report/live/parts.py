"""What the screens of a run and of an experiment are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from submodel.amounts import duration
from submodel.report.list_table import STATE_STYLES
from submodel.report.live.braille import DotCurve, draw_dots, range_of

COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")
"""Of the curves of one plot, in this order."""
_LABEL = 7  # characters left of a plot


def title_line(names: Sequence[str], state: str, width: int) -> Table:
    """What is watched, and at the right how it stands.

    Args:
        names: of it; shown as they are.
        state: running, stopped, finished or failed.
        width: characters.
    """
    grid = Table.grid(expand=True)
    grid.width = width
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    text = Text(names[0], "bold")
    for name in names[1:]:
        if name:
            text.append("  ").append(name)
    grid.add_row(text, Text(state, STATE_STYLES.get(state, "") or "bold"))
    return grid


def progress_line(words: str, amount: float, whole: float, rest: str, width: int) -> Table:
    """A bar between how much is done and what is said of the rest.

    Args:
        words: as "round 3/10".
        amount: how much is done.
        whole: of how much.
        rest: as "2 min left".
        width: characters.
    """
    share = min(1.0, amount / whole) if whole > 0 else 0.0
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.width = width
    for ratio in (None, 1, None, None):
        grid.add_column(ratio=ratio, no_wrap=True)
    bar = ProgressBar(total=1.0, completed=share, width=None)
    grid.add_row(Text(words), bar, Text(f"{share:.0%}"), Text(rest))
    return grid


def plot(title: str, curves: Sequence[DotCurve], width: int, height: int, form: str) -> Group:
    """Curves with a title and the range of their values.

    Args:
        title: stands above.
        curves: what is drawn.
        width: characters, with the labels.
        height: lines of the drawing.
        form: how values are written, as ".1%".
    """
    some = range_of(curves)
    labels = [""] * height
    if some is not None:
        labels[0] = format(some[1], form)
        labels[-1] = format(some[0], form) if some[0] < some[1] else labels[-1]
    rows = draw_dots(curves, max(1, width - _LABEL - 1), height)
    lines = [Text(title, "bold", no_wrap=True, overflow="ellipsis")]
    for label, row in zip(labels, rows, strict=True):
        lines.append(Text(f"{label:>{_LABEL}} ", "dim").append_text(row))
    return Group(*lines)


def side_by_side(parts: Sequence[RenderableType], width: int) -> Table:
    """Parts of equal width, one beside the other.

    Args:
        parts: any.
        width: characters of all.
    """
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in parts:
        grid.add_column(width=width // len(parts) - 2)
    grid.add_row(*parts)
    return grid


def facts_table(facts: Sequence[tuple[str, Text]], width: int) -> Table:
    """Names at the left, what there is to say of each beside it.

    Args:
        facts: what is empty is left out.
        width: characters.
    """
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.width = width
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold", ratio=1)
    for name, text in facts:
        if text.plain:
            grid.add_row(Text(name), text)
    return grid


def time_left(seconds: float | None) -> str:
    """How long something still takes.

    Args:
        seconds: None: nobody can tell.

    >>> time_left(None), time_left(600)
    ('', '10 min left')
    """
    return "" if seconds is None or not math.isfinite(seconds) else f"{duration(seconds)} left"


def screen_size(console: Console) -> tuple[int, int]:
    """Characters and lines that a screen may have.

    Args:
        console: where it is shown. A file or a pipe has no height: then 24 lines are enough.
    """
    height = console.height if console.is_terminal else 24
    return max(40, min(console.width, 200)), max(12, height)
