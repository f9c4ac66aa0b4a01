"""Figures of results over seeds: lines with bands, and sorted rows of intervals.

With too many lines, the best few have colours and the others are grey.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from submodel.drawing.style import FAINT, INK, SMALL_TEXT, line_style, new_figure, with_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure

MOST_LINES = 8
"""Maximum number of lines that can be told apart by colour."""
ROW_HEIGHT = 0.145
"""Height of a row of small text, in inches."""
Curve = tuple[Sequence[float], Sequence[float]]
"""Ascending x values, and y values."""
_BEST_LINES = 5  # lines with colours, if there are too many
_BACKGROUND = "#6f6f6f"  # colour of rows in the background


@dataclass(frozen=True)
class Band:
    """A line through means, with the values of all seeds."""

    label: str
    x: Sequence[float]
    values: ArrayLike
    """A row for each seed."""
    colour: str
    dashes: str = "-"

    @property
    def last(self) -> float:
        """Mean at the end of the line."""
        return float(np.asarray(self.values)[:, -1].mean())


@with_style
def draw_band(plot: Plot, band: Band, is_faint: bool = False) -> None:
    """Draw a line through the means, in a band from the minimum to the maximum.

    Args:
        plot: plot to draw in.
        band: the line; a single x value is drawn as a point.
        is_faint: whether the line is in the background: grey, without name and band.
    """
    table = np.asarray(band.values)
    mark = "o" if len(band.x) == 1 else None
    if is_faint:
        plot.plot(band.x, table.mean(0), color=FAINT, linewidth=0.7, marker=mark, zorder=1.8)
        return
    plot.plot(band.x, table.mean(0), band.dashes, color=band.colour, label=band.label, marker=mark)
    if len(table) > 1:
        low, high = table.min(0), table.max(0)
        if mark:
            plot.vlines(band.x, low, high, color=band.colour, linewidth=0.8)
        else:
            plot.fill_between(band.x, low, high, color=band.colour, alpha=0.14, linewidth=0)


def draw_bands(
    plot: Plot,
    lines: Iterable[tuple[str, Sequence[Curve]]],
    styles: Sequence[tuple[str, str] | None],
) -> float:
    """Draw a band for every line, over the range common to its seeds; return the largest x.

    Args:
        plot: plot to draw in.
        lines: name of each line, and its curves by seed.
        styles: colour and dashes of each line; None: in the background.
    """
    most = 0.0
    for (label, curves), style in zip(lines, styles, strict=True):
        x, values = shared_grid(curves)
        band = Band(label, x.tolist(), values, *(style or (FAINT, "-")))
        draw_band(plot, band, is_faint=style is None)
        most = max(most, float(x[-1]))
    return most


def figure_with_list(width: float, height: float, rows: int) -> tuple[Figure, Any, Any]:
    """Make a figure with an upper part of the given height and a lower part for a list of rows."""
    list_height = ROW_HEIGHT * (rows + 3)
    figure = new_figure(width, height + list_height)
    upper, lower = figure.subfigures(2, 1, height_ratios=[height, list_height])  # type: ignore[misc]
    return figure, upper, lower


def styles_of(
    finals: Sequence[float], smaller_is_better: bool = False
) -> list[tuple[str, str] | None]:
    """Choose the colour and dashes of each line; None: grey, because there are too many.

    Args:
        finals: value at the end of each line.
        smaller_is_better: whether smaller values are better, as for losses.

    >>> styles_of([0.1, 0.9])
    [('#0b3f8c', '-'), ('#f4590a', '-')]
    >>> [style is not None for style in styles_of(range(10))]
    [False, False, False, False, False, True, True, True, True, True]
    """
    if len(finals) <= MOST_LINES:
        return [line_style(place) for place in range(len(finals))]
    sign = 1 if smaller_is_better else -1
    by_rank = sorted(range(len(finals)), key=lambda place: sign * finals[place])
    best = {place: rank for rank, place in enumerate(by_rank[:_BEST_LINES])}
    return [line_style(best[place]) if place in best else None for place in range(len(finals))]


def shared_grid(
    curves: Sequence[Curve], *, to_the_last_end: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Interpolate curves on the range that all of them cover; return x, and y by curve.

    The same round costs different bytes with different seeds, so the x values of curves differ.

    Args:
        curves: the curves.
        to_the_last_end: whether to extend to the end of the longest curve; others keep their last
            value.

    >>> curves = [([1, 3], [0.0, 1.0]), ([2, 4], [0.0, 1.0])]
    >>> x, y = shared_grid(curves)
    >>> x.tolist(), y.tolist()
    ([2.0, 3.0], [[0.5, 1.0], [0.0, 0.5]])
    >>> x, y = shared_grid(curves, to_the_last_end=True)
    >>> x.tolist(), y.tolist()
    ([2.0, 3.0, 4.0], [[0.5, 1.0, 1.0], [0.0, 0.5, 1.0]])
    """
    ends = [x[-1] for x, _ in curves]
    first, last = max(x[0] for x, _ in curves), max(ends) if to_the_last_end else min(ends)
    if first > last:  # one evaluation each, at different costs
        places = np.array([np.mean([x[-1] for x, _ in curves])])
    else:
        every = np.unique(np.concatenate([np.asarray(x, np.float64) for x, _ in curves]))
        places = every[(every >= first) & (every <= last)]
    return places, np.array([np.interp(places, x, y) for x, y in curves])


@dataclass(frozen=True)
class IntervalRow:
    """One result: its name, its values by seed, and numbers to write beside it."""

    label: str
    values: Sequence[float]
    colour: str | None = None
    """None: in the background."""
    cells: Sequence[str] = ()

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return float(np.mean(self.values))


def sorted_rows(rows: Sequence[IntervalRow], smaller_is_better: bool = False) -> list[IntervalRow]:
    """Sort rows from the best to the worst.

    >>> [row.label for row in sorted_rows([IntervalRow("a", [0.1]), IntervalRow("b", [0.3, 0.5])])]
    ['b', 'a']
    """
    return sorted(rows, key=lambda row: row.mean if smaller_is_better else -row.mean)


@with_style
def draw_intervals(plot: Plot, rows: Sequence[IntervalRow], headings: Sequence[str] = ()) -> None:
    """Draw a row for each result, the first on top: its seeds, their range and their mean.

    Args:
        plot: plot to draw in.
        rows: the rows, in order.
        headings: headings of the cells to the right; every row has one cell for each.
    """
    for place, row in enumerate(rows):
        colour = row.colour or _BACKGROUND
        plot.plot([min(row.values), max(row.values)], [place, place], color=colour, linewidth=1.0)
        plot.plot(row.values, [place] * len(row.values), "|", color=colour, markersize=4)
        plot.plot([row.mean], [place], "o", color=colour, markersize=3.5)
    plot.set_yticks(range(len(rows)), [row.label for row in rows])
    plot.tick_params(axis="y", length=0)
    plot.grid(axis="y", visible=False)
    for text, row in zip(plot.get_yticklabels(), rows, strict=True):
        text.set_color(row.colour or INK)
    plot.set_ylim(len(rows) - 0.4, -0.6)
    plot.spines["left"].set_visible(False)
    _write_cells(plot, rows, headings)


def _write_cells(plot: Plot, rows: Sequence[IntervalRow], headings: Sequence[str]) -> None:
    offset = 6.0
    for column, heading in enumerate(headings):
        cells = [row.cells[column] for row in rows]
        offset += 0.62 * SMALL_TEXT * max(len(text) for text in (heading, *cells))
        for place, text in [(-1, heading), *enumerate(cells)]:
            plot.annotate(
                text, (1.0, place), xycoords=("axes fraction", "data"), xytext=(offset, 0),
                textcoords="offset points", ha="right", va="center", fontsize=SMALL_TEXT,
                annotation_clip=False, color=INK,
            )  # fmt: skip
        offset += 5.0
