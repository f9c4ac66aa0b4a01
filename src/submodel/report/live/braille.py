"""Curves in a terminal: two by four dots a character, and bars for one line of text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.text import Text

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row, then column
_BLANK = 0x2800
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class DotCurve:
    """Points from left to right.

    Args:
        points: x and y; what is not finite is left out.
        style: the colour, as Rich calls it.
    """

    points: Sequence[tuple[float, float]]
    style: str = ""

    def finite_points(self) -> list[tuple[float, float]]:
        """Those that can be drawn."""
        return [(x, y) for x, y in self.points if math.isfinite(x) and math.isfinite(y)]


def range_of(curves: Sequence[DotCurve]) -> tuple[float, float] | None:
    """The smallest and the largest y; None: there is nothing to draw.

    Args:
        curves: any.
    """
    heights = [y for curve in curves for _, y in curve.finite_points()]
    return (min(heights), max(heights)) if heights else None


def draw_dots(curves: Sequence[DotCurve], width: int, height: int) -> list[Text]:
    """Curves as lines of text, from the first x to the last, from the smallest y to the largest.

    Args:
        curves: where they meet, the later is seen.
        width: characters.
        height: lines.

    >>> [line.plain for line in draw_dots([DotCurve([(0, 0), (1, 1)])], 2, 1)]
    ['⡠⠊']
    """
    some = range_of(curves)
    cells = [[_BLANK] * width for _ in range(height)]
    styles = [[""] * width for _ in range(height)]
    if some is not None:
        low, high = some
        places = [x for curve in curves for x, _ in curve.finite_points()]
        first_x, last_x = min(places), max(places)
        columns, rows = 2 * width - 1, 4 * height - 1
        for curve in curves:
            dots = [
                (_dot_of(x, first_x, last_x, columns), rows - _dot_of(y, low, high, rows))
                for x, y in curve.finite_points()
            ]
            for column, row in _joined_dots(dots):
                cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
                styles[row // 4][column // 2] = curve.style
    return [
        Text.assemble(*((_character(c), style) for c, style in zip(row, its_styles, strict=True)))
        for row, its_styles in zip(cells, styles, strict=True)
    ]


def _character(cell: int) -> str:
    """Blanks as spaces: some fonts draw the dots that are not there."""
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
    """A curve in one line: a bar for every value, or for the last of several.

    Args:
        values: from left to right; what is not finite is left out.
        width: at most so many characters.

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
