"""Figures of studies: panels of curves with bands, slopes of theorems, and exact levels."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from submodel.drawing import (
    DOUBLE,
    INK,
    SMALL_TEXT,
    even_ticks,
    label_ends,
    line_style,
    log_scale,
    name_ticks,
    names_height,
    new_figure,
    plain_number,
    save_figure,
    with_style,
)
from submodel_lab.theory.measures import Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure

_PLOT_WIDTH = 135.0  # points of an axis, about
_NAME_WIDTH = 17  # characters
_LEAST_HEIGHT, _AROUND = 1.95, 0.7  # inches: of a panel; of its title and the numbers below
_QUIET = "#6f6f6f"  # of levels


@dataclass(frozen=True)
class PlotLine:
    """A curve of means with a band, and exact values as crosses."""

    label: str
    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    style: str = "-o"
    exact: Sequence[float] | None = None

    @classmethod
    def of_measures(
        cls, label: str, x: Sequence[float], measures: Sequence[Measure], style: str = "-o"
    ) -> PlotLine:
        """Make a line from a measure at each x."""
        exact_values = [m.exact for m in measures if m.exact is not None]
        return cls(
            label, x, [m.mean for m in measures], [m.low for m in measures],
            [m.high for m in measures], style,
            exact_values if len(exact_values) == len(measures) else None,
        )  # fmt: skip


@dataclass(frozen=True)
class Guide:
    """A stated slope, drawn through a point."""

    slope: float
    label: str
    x: float
    y: float


@dataclass(frozen=True)
class Panel:
    """A plot with ticks at the measured x."""

    title: str
    xlabel: str
    ylabel: str
    lines: Sequence[PlotLine]
    guides: Sequence[Guide] = ()
    levels: Mapping[str, float] = field(default_factory=dict)
    log: tuple[bool, bool] = (True, True)


def guide_through(line: PlotLine, slope: float, label: str) -> Guide:
    """Make a guide through the first point of a curve.

    >>> guide_through(PlotLine("a", [2.0, 4.0], [8.0, 4.0]), -1.0, "Theorem 1").y
    8.0
    """
    return Guide(slope, label, float(line.x[0]), float(line.mean[0]))


def draw_panels(panels: Sequence[Panel], title: str, path: Path) -> None:
    """Write a figure of panels, two in a row."""
    save_figure(panels_figure(panels, title), path)


@with_style
def panels_figure(panels: Sequence[Panel], title: str) -> Figure:
    """Draw a figure of panels, two in a row, with the name beside every line."""
    heights = [max(map(_height, panels[at : at + 2])) for at in range(0, len(panels), 2)]
    figure = new_figure(DOUBLE, 0.2 + sum(heights))
    ratios = {"height_ratios": heights}
    plots = figure.subplots(len(heights), 2, squeeze=False, gridspec_kw=ratios).ravel()
    for panel, plot in zip(panels, plots, strict=False):
        _draw(panel, plot)
    for plot in plots[len(panels) :]:
        plot.axis("off")
    has_exact = any(line.exact is not None for panel in panels for line in panel.lines)
    figure.suptitle(f"{title} (crosses: exact values)" if has_exact else title)
    label_ends(list(plots[: len(panels)]), width=_NAME_WIDTH)
    return figure


def _height(panel: Panel) -> float:
    """Return the height of a panel in inches, enough for the names of all its lines."""
    names = [line.label for line in panel.lines] + list(panel.levels)
    names += [_guide_name(guide) for guide in panel.guides]
    return max(_LEAST_HEIGHT, names_height(names, _NAME_WIDTH) + _AROUND)


def _guide_name(guide: Guide) -> str:
    return f"{guide.label}: slope {guide.slope:g}"


def _draw(panel: Panel, plot: Plot) -> None:
    ticks = sorted({float(x) for line in panel.lines for x in line.x})
    place = 0
    for line in panel.lines:
        colour, dashes = line_style(place)
        if line.style.startswith("k"):
            colour = INK
        else:
            place += 1
        _draw_line(plot, line, colour, "--" if "--" in line.style else dashes, panel.log[1])
    for guide, dots in zip(panel.guides, (":", "--", "-."), strict=False):
        x = np.array([guide.x, ticks[-1]])
        y = guide.y * (x / guide.x) ** guide.slope
        plot.plot(x, y, linestyle=dots, color=INK, linewidth=1.0, label=_guide_name(guide))
    for label, value in panel.levels.items():
        plot.plot(
            [ticks[0], ticks[-1]], [value] * 2, "--", color=_QUIET, linewidth=0.8, label=label
        )
    _set_ticks(panel, plot, ticks)
    plot.set_title(textwrap.fill(panel.title, 46))
    plot.set(xlabel=panel.xlabel, ylabel=textwrap.fill(panel.ylabel, 30))


def _draw_line(plot: Plot, line: PlotLine, colour: str, dashes: str, is_log: bool) -> None:
    mark = "s" if line.style.endswith("s") else "o" if line.style.endswith("o") else None
    plot.plot(line.x, line.mean, dashes, color=colour, marker=mark, label=line.label)
    if line.low is not None and line.high is not None:
        low = np.maximum(line.low, 1e-300 if is_log else -np.inf)
        plot.fill_between(line.x, low, line.high, color=colour, alpha=0.16, linewidth=0)
    if line.exact is not None:
        plot.plot(line.x, line.exact, "x", color=colour, markersize=4.5, label="_exact")


def _set_ticks(panel: Panel, plot: Plot, ticks: Sequence[float]) -> None:
    """Set ticks at the measured x, as far as there is space, and readable numbers at y."""
    if panel.log[0]:
        plot.set_xscale("log", base=2)
    name_ticks(plot.xaxis, _spaced_ticks(ticks, panel.log[0]))
    if panel.log[1]:
        log_scale(plot)
    else:
        even_ticks(plot.yaxis)


def _spaced_ticks(ticks: Sequence[float], is_log: bool) -> list[float]:
    """Select ticks from the left whose numbers do not overlap.

    >>> _spaced_ticks([1.0, 1.05, 2.0, 4.0], is_log=True)
    [1.0, 2.0, 4.0]
    """
    places = np.log(ticks) if is_log else np.asarray(ticks)
    points = (places - places[0]) * (_PLOT_WIDTH / ((places[-1] - places[0]) or 1.0))
    spaced_ticks: list[float] = []
    edge = -np.inf
    for tick, point in zip(ticks, points, strict=True):
        half = 0.32 * SMALL_TEXT * len(plain_number(tick))
        if point - half > edge:
            spaced_ticks.append(tick)
            edge = point + half + 3.0
    return spaced_ticks
