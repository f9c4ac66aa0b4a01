"""Lines over seeds in their bands; of too many lines, the best few stand out, others are grey."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from submodel.presentation.palette import FAINT, line_style
from submodel.presentation.style import with_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot

MOST_LINES = 8
"""More lines than these cannot be followed by their colours."""
BEST_LINES = 5
"""How many of too many stand out."""


@dataclass(frozen=True)
class Band:
    """A line through means, and the values around it."""

    label: str
    x: Sequence[float]
    values: ArrayLike
    """A row for each seed."""
    colour: str
    dashes: str = "-"

    @property
    def last(self) -> float:
        """The mean at its end."""
        return float(np.asarray(self.values)[:, -1].mean())


@with_style
def draw_band(plot: Plot, band: Band, is_faint: bool = False) -> None:
    """A line through the means, in a band from the least to the most.

    Args:
        plot: What to draw in.
        band: The line; of one place, the point is drawn.
        is_faint: Whether it only stands behind others: grey, without its name and its band.
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


def styles_of(
    finals: Sequence[float], smaller_is_better: bool = False
) -> list[tuple[str, str] | None]:
    """The colour and dashes of each line, by what it ends with; None: grey, as there are too many.

    Args:
        finals: The value at the end of each line.
        smaller_is_better: As of losses.

    >>> styles_of([0.1, 0.9])
    [('#0b3f8c', '-'), ('#f4590a', '-')]
    >>> [style is not None for style in styles_of(range(10))]
    [False, False, False, False, False, True, True, True, True, True]
    """
    if len(finals) <= MOST_LINES:
        return [line_style(place) for place in range(len(finals))]
    sign = 1 if smaller_is_better else -1
    by_rank = sorted(range(len(finals)), key=lambda place: sign * finals[place])
    best = {place: rank for rank, place in enumerate(by_rank[:BEST_LINES])}
    return [line_style(best[place]) if place in best else None for place in range(len(finals))]


Curve = tuple[Sequence[float], Sequence[float]]


def shared_grid(
    curves: Sequence[Curve], *, to_the_last_end: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Curves over the stretch that all of them cover, in between interpolated: x, and y by curve.

    The same round costs different bytes with different seeds.

    Args:
        curves: x and y of each.
        to_the_last_end: go on to where the longest ends; others keep their last value from where
            they end.

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
