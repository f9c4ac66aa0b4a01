"""The figure of a study: panels of curves with bands, the theorem's slope, and exact levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from submodel.presentation.figures import new_figure, save_figure
from submodel.theory.measures import Measure, interval
from submodel.theory.problems import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot


_ROOM = 0.06  # of an axis, between two ticks
_FEW_DECADES = 300.0  # of y; over more of them powers of ten are enough


@dataclass(frozen=True)
class PlotLine:
    """One curve: a mean and its band, and the exact values as crosses."""

    label: str
    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    style: str = "-o"
    exact: Sequence[float] | None = None

    @classmethod
    def of(
        cls, label: str, x: Sequence[float], values: Sequence[FloatArray], style: str = "-o"
    ) -> PlotLine:
        """From the values of all trials at each x.

        Args:
            label: Its name in the legend.
            x: Where.
            values: Of every trial, at each x.
            style: As matplotlib writes it.
        """
        return cls.of_measures(label, x, [Measure(*interval(v)) for v in values], style)

    @classmethod
    def of_measures(
        cls, label: str, x: Sequence[float], measures: Sequence[Measure], style: str = "-o"
    ) -> PlotLine:
        """From a measure at each x.

        Args:
            label: Its name in the legend.
            x: Where.
            measures: What was measured there.
            style: As matplotlib writes it.
        """
        exact_values = [m.exact for m in measures if m.exact is not None]
        return cls(
            label, x, [m.mean for m in measures], [m.low for m in measures],
            [m.high for m in measures], style,
            exact_values if len(exact_values) == len(measures) else None,
        )  # fmt: skip


@dataclass(frozen=True)
class Guide:
    """A slope that a statement gives, drawn through a point."""

    slope: float
    label: str
    x: float
    y: float


@dataclass(frozen=True)
class Panel:
    """One plot; its ticks are at the x that were run."""

    title: str
    xlabel: str
    ylabel: str
    lines: Sequence[PlotLine]
    guides: Sequence[Guide] = ()
    levels: Mapping[str, float] = field(default_factory=dict)
    log: tuple[bool, bool] = (True, True)


def guide_through(line: PlotLine, slope: float, label: str) -> Guide:
    """A slope through the first point of a curve.

    Args:
        line: The curve.
        slope: The stated slope.
        label: What states it.

    >>> guide_through(PlotLine("a", [2.0, 4.0], [8.0, 4.0]), -1.0, "Theorem 1").y
    8.0
    """
    return Guide(slope, label, float(line.x[0]), float(line.mean[0]))


def draw_panels(panels: Sequence[Panel], title: str, path: Path) -> None:
    """Write a figure of panels, two in a row.

    Args:
        panels: What to draw.
        title: Over all of them.
        path: The PNG.
    """
    height = -(-len(panels) // 2)
    figure = new_figure(12, 4.4 * height)
    plots = figure.subplots(height, 2, squeeze=False).ravel()
    for panel, plot in zip(panels, plots, strict=False):
        _draw(panel, plot)
    for plot in plots[len(panels) :]:
        plot.axis("off")
    figure.suptitle(title)
    save_figure(figure, path, dpi=90)


def _draw(panel: Panel, plot: Plot) -> None:
    for line in panel.lines:
        (curve,) = plot.plot(line.x, line.mean, line.style, label=line.label, markersize=4)
        if line.low is not None and line.high is not None:
            floor = 1e-300 if panel.log[1] else -np.inf
            low = np.maximum(line.low, floor)
            plot.fill_between(line.x, low, line.high, color=curve.get_color(), alpha=0.2, lw=0)
        if line.exact is not None:
            plot.plot(line.x, line.exact, "x", color=curve.get_color(), markersize=7)
    if any(line.exact is not None for line in panel.lines):
        plot.plot([], [], "x", color="0.4", label="exact")
    ticks = sorted({float(x) for line in panel.lines for x in line.x})
    for guide, dots in zip(panel.guides, (":", "--", "-."), strict=False):
        x = np.array([guide.x, ticks[-1]])
        y = guide.y * (x / guide.x) ** guide.slope
        plot.plot(x, y, f"k{dots}", lw=1.3, label=f"{guide.label}: slope {guide.slope:g}")
    for label, value in panel.levels.items():
        plot.axhline(value, color="0.4", ls="--", lw=1)
        plot.annotate(label, (0.99, value), xycoords=("axes fraction", "data"), ha="right",
                      va="bottom", fontsize=7, color="0.3")  # fmt: skip
    _set_ticks(panel, plot, ticks)
    plot.set_title(panel.title, fontsize=10)
    plot.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
    plot.grid(alpha=0.3)
    plot.legend(fontsize=7)


def _set_ticks(panel: Panel, plot: Plot, ticks: Sequence[float]) -> None:
    """Ticks at the x that were run, as far as there is room, and readable numbers at y."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if panel.log[0]:
        plot.set_xscale("log", base=2)
    places = np.log(ticks) if panel.log[0] else np.asarray(ticks)
    room = _ROOM * (places[-1] - places[0])
    apart: list[int] = []
    for number, place in enumerate(places):
        if not apart or place - places[apart[-1]] >= room:
            apart.append(number)
    values = [ticks[number] for number in apart]
    plot.set_xticks(values, [f"{x:.3g}" if x % 1 else f"{x:g}" for x in values], fontsize=8)
    if panel.log[0]:
        plot.minorticks_off()
    if panel.log[1]:
        plot.set_yscale("log")
        low, high = plot.get_ylim()
        if high < low * _FEW_DECADES:
            plot.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            plot.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
            plot.yaxis.set_minor_formatter(NullFormatter())
