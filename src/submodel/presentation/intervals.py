"""Many results in one column: sorted, with the seeds of each, names and numbers beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from submodel.presentation.palette import INK
from submodel.presentation.style import SMALL_TEXT, with_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot

ROW_HEIGHT = 0.145
"""Inches of a row of small text."""
_BACKGROUND = "#6f6f6f"


@dataclass(frozen=True)
class IntervalRow:
    """One result: its name, its values by seed, and numbers that stand beside it."""

    label: str
    values: Sequence[float]
    colour: str | None = None
    """None: one of many in the background."""
    cells: Sequence[str] = ()

    @property
    def mean(self) -> float:
        """Over seeds."""
        return float(np.mean(self.values))


def sorted_rows(rows: Sequence[IntervalRow], smaller_is_better: bool = False) -> list[IntervalRow]:
    """The rows from the best to the worst.

    Args:
        rows: In any order.
        smaller_is_better: As of losses.

    >>> [row.label for row in sorted_rows([IntervalRow("a", [0.1]), IntervalRow("b", [0.3, 0.5])])]
    ['b', 'a']
    """
    return sorted(rows, key=lambda row: row.mean if smaller_is_better else -row.mean)


@with_style
def draw_intervals(plot: Plot, rows: Sequence[IntervalRow], headings: Sequence[str] = ()) -> None:
    """A row for each result, the first on top: its seeds, from least to most, and their mean.

    Args:
        plot: What to draw in.
        rows: In their order.
        headings: Of the cells to the right, which every row has as many of.
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
    """Columns of numbers to the right of the plot, each as wide as its longest."""
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
