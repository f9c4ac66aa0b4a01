"""Parts of a screen of text: lines, tables, bars, and curves of two by four dots a character."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from submodel.amounts import duration
from submodel.report.listing import STATE_STYLES

COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")
"""Colours of the curves of one plot, in this order."""
_LABEL = 7  # characters left of a plot
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row, then column
_BLANK = 0x2800
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class DotCurve:
    """Points (x, y) from left to right, and their colour as Rich calls it."""

    points: Sequence[tuple[float, float]]
    style: str = ""

    def finite_points(self) -> list[tuple[float, float]]:
        """The points that can be drawn."""
        return [(x, y) for x, y in self.points if math.isfinite(x) and math.isfinite(y)]


def draw_dots(curves: Sequence[DotCurve], width: int, height: int) -> list[Text]:
    """Draw curves as lines of text that span their range; where they meet, the later is seen.

    >>> [line.plain for line in draw_dots([DotCurve([(0, 0), (1, 1)])], 2, 1)]
    ['⡠⠊']
    """
    cells = [[_BLANK] * width for _ in range(height)]
    styles = [[""] * width for _ in range(height)]
    if points := _all_points(curves):
        (left, right), (low, high) = _ranges(points)
        columns, rows = 2 * width - 1, 4 * height - 1
        for curve in curves:
            dots = [
                (_dot_of(x, left, right, columns), rows - _dot_of(y, low, high, rows))
                for x, y in curve.finite_points()
            ]
            for column, row in _joined_dots(dots):
                cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
                styles[row // 4][column // 2] = curve.style
    return [
        Text.assemble(*((_character(c), style) for c, style in zip(row, its_styles, strict=True)))
        for row, its_styles in zip(cells, styles, strict=True)
    ]


def _all_points(curves: Sequence[DotCurve]) -> list[tuple[float, float]]:
    return [point for curve in curves for point in curve.finite_points()]


def _ranges(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The smallest and largest x, and the smallest and largest y."""
    return [(min(values), max(values)) for values in zip(*points, strict=True)]


def _character(cell: int) -> str:
    """A blank is a space: some fonts draw the dots that are not set."""
    return " " if cell == _BLANK else chr(cell)


def _dot_of(value: float, low: float, high: float, most: int) -> int:
    return round((value - low) / (high - low) * most) if high > low else 0


def _joined_dots(dots: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The dots, and those on the way from each to the next."""
    yield from dots[:1]
    for (x0, y0), (x1, y1) in pairwise(dots):
        steps = max(abs(x1 - x0), abs(y1 - y0))
        for step in range(1, steps + 1):
            yield x0 + round(step * (x1 - x0) / steps), y0 + round(step * (y1 - y0) / steps)


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw a curve in one line: a bar for every finite value, or for the last of several.

    >>> sparkline([0.0, 1.0, 2.0, 7.0], 4)
    '▁▂▃█'
    """
    finite_values = [value for value in values if math.isfinite(value)]
    if not finite_values:
        return ""
    count = min(width, len(finite_values))
    picks = [finite_values[(place + 1) * len(finite_values) // count - 1] for place in range(count)]
    low, high = min(picks), max(picks)
    return "".join(_BARS[_dot_of(value, low, high, len(_BARS) - 1)] for value in picks)


def plot(title: str, curves: Sequence[DotCurve], width: int, height: int, form: str) -> Group:
    """Draw curves with a title and the range of their values; `form` is a format, as ".1%"."""
    labels = [""] * height
    if points := _all_points(curves):
        low, high = _ranges(points)[1]
        labels[0] = format(high, form)
        labels[-1] = format(low, form) if low < high else labels[-1]
    rows = draw_dots(curves, max(1, width - _LABEL - 1), height)
    lines = [Text(title, "bold", no_wrap=True, overflow="ellipsis")]
    for label, row in zip(labels, rows, strict=True):
        lines.append(Text(f"{label:>{_LABEL}} ", "dim").append_text(row))
    return Group(*lines)


def title_line(names: Sequence[str], state: str, width: int) -> Table:
    """The names of a run or an experiment, and its state at the right."""
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
    """A progress bar between `words`, as "round 3/10", and `rest`, as "2 min left"."""
    share = min(1.0, amount / whole) if whole > 0 else 0.0
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.width = width
    for ratio in (None, 1, None, None):
        grid.add_column(ratio=ratio, no_wrap=True)
    bar = ProgressBar(total=1.0, completed=share, width=None)
    grid.add_row(Text(words), bar, Text(f"{share:.0%}"), Text(rest))
    return grid


def side_by_side(parts: Sequence[RenderableType], width: int) -> Table:
    """Parts of equal width, one beside the other."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in parts:
        grid.add_column(width=width // len(parts) - 2)
    grid.add_row(*parts)
    return grid


def facts_table(facts: Sequence[tuple[str, Text]], width: int) -> Table:
    """Names at the left, texts beside them; empty texts are left out."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.width = width
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold", ratio=1)
    for name, text in facts:
        if text.plain:
            grid.add_row(Text(name), text)
    return grid


def time_left(seconds: float | None) -> str:
    """The remaining time in words; empty where it is unknown.

    >>> time_left(None), time_left(600)
    ('', '10 min left')
    """
    return "" if seconds is None or not math.isfinite(seconds) else f"{duration(seconds)} left"


def screen_size(console: Console) -> tuple[int, int]:
    """Characters and lines of a screen; a file or a pipe has no height and gets 24 lines."""
    height = console.height if console.is_terminal else 24
    return max(40, min(console.width, 200)), max(12, height)
