"""Figures that reports share: matplotlib where it is installed, bands over seeds, whole files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from submodel.extras import needs_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure


def new_figure(width: float, height: float, margins: dict[str, float] | None = None) -> Figure:
    """An empty figure of so many inches; raises `MissingExtraError` without matplotlib.

    Args:
        width: In inches.
        height: In inches.
        margins: As matplotlib's `subplots_adjust` takes them; by default, room is made for whatever
            is drawn, which takes three times as long.

    >>> new_figure(4, 3).get_size_inches().tolist()
    [4.0, 3.0]
    """
    with needs_extra("server", "a figure"):  # half a second that only figures need
        from matplotlib.figure import Figure

    if margins is None:
        return Figure(figsize=(width, height), layout="constrained")
    figure = Figure(figsize=(width, height))
    figure.subplots_adjust(**margins)
    return figure


def save_figure(figure: Figure, path: Path, dpi: int = 110) -> None:
    """Write a PNG, of which nobody sees a half.

    Args:
        figure: What to write.
        path: Where; its folder is made.
        dpi: Dots per inch.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    figure.savefig(partial, dpi=dpi, format="png")
    partial.replace(path)


def plain_log_scale(plot: Plot) -> None:
    """Values on a logarithmic scale, told as 0.5 and 2, not as powers of ten.

    Setting a formula takes a third of the time of a small figure.

    Args:
        plot: Whose values; they are drawn already.
    """
    from matplotlib.ticker import LogFormatter

    plot.set_yscale("log")
    plot.yaxis.set_major_formatter(LogFormatter())
    plot.yaxis.set_minor_formatter(LogFormatter())


def draw_band(
    plot: Plot, x: Sequence[float], values: ArrayLike, label: str, style: str = "-"
) -> None:
    """A line through the means, in a band from the least to the most.

    Args:
        plot: What to draw in.
        x: Where the values are; of one place, the point is drawn.
        values: A row for each seed.
        label: The line's name in the legend.
        style: The line's style, as matplotlib writes it.
    """
    table = np.asarray(values)
    mark = "o" if len(x) == 1 else None
    (line,) = plot.plot(x, table.mean(0), style, label=label, marker=mark)
    color = line.get_color()
    plot.fill_between(x, table.min(0), table.max(0), color=color, alpha=0.15, linewidth=0)
