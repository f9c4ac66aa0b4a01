"""What a study found: rows, panels to draw, claims; written as CSV, JSON and PNG."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from submodel.presentation.figures import new_figure, save_figure
from submodel.randomness import generator
from submodel.theory.problems import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot

OnProgress = Callable[[int, int], None]
"""Hears of every step of a study: how many are behind it, and how many there are."""
_NORMAL = 1.96  # of a 95 % interval


def report_nothing(steps: int, total: int) -> None:
    """Let a study take its steps unheard."""


def interval(values: FloatArray) -> tuple[float, float, float]:
    """Mean over trials and its 95 % confidence interval.

    >>> interval(np.array([1.0, 1.0, 1.0]))
    (1.0, 1.0, 1.0)
    """
    mean = float(values.mean())
    half = _NORMAL * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return mean, mean - half, mean + half


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The least-squares slope in log-log axes; NaN where a value is not positive.

    >>> round(slope([1, 2, 4], [8, 4, 2]), 6)
    -1.0
    """
    if min(y) <= 0:
        return math.nan
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def slope_interval(
    x: Sequence[float], values: Sequence[FloatArray], divide: Sequence[float] | None = None
) -> tuple[float, float, float]:
    """The slope of the means over trials and its 95 % interval, by bootstrap over trials.

    NaN where too few trials were different from 0 for it.
    """
    factors = np.ones(len(x)) if divide is None else np.asarray(divide)
    rng = generator(0, "bootstrap")

    def fit_slope(draw: Callable[[FloatArray], FloatArray]) -> float:
        return slope(x, [float(draw(v).mean()) / f for v, f in zip(values, factors, strict=True)])

    resampled_slopes = [
        fit_slope(lambda v: v[rng.integers(len(v), size=len(v))]) for _ in range(200)
    ]
    usable = [one for one in resampled_slopes if not math.isnan(one)] or [math.nan]
    low, high = np.percentile(usable, [2.5, 97.5])
    return fit_slope(lambda v: v), float(low), float(high)


@dataclass(frozen=True)
class PlotLine:
    """One curve: a mean and its band."""

    label: str
    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    style: str = "-o"

    @classmethod
    def of(
        cls, label: str, x: Sequence[float], values: Sequence[FloatArray], style: str = "-o"
    ) -> PlotLine:
        """From the values of all trials at each x."""
        intervals = [interval(v) for v in values]
        mean, low, high = (list(column) for column in zip(*intervals, strict=True))
        return cls(label, x, mean, low, high, style)


@dataclass(frozen=True)
class Panel:
    """One plot; ``guide`` draws the theorem's slope through the first line's first point."""

    title: str
    xlabel: str
    ylabel: str
    lines: Sequence[PlotLine]
    guide: float | None = None
    levels: Mapping[str, float] = field(default_factory=dict)
    log: tuple[bool, bool] = (True, True)


@dataclass(frozen=True)
class Statement:
    """A statement, what was measured, what was expected, and whether that holds."""

    text: str
    measurement: str
    expectation: str
    holds: str

    def as_dict(self) -> dict[str, str]:
        """For JSON.

        >>> Statement("1 + 1", "2", "2", "yes").as_dict()
        {'text': '1 + 1', 'measured': '2', 'expected': '2', 'holds': 'yes'}
        """
        return {
            "text": self.text,
            "measured": self.measurement,
            "expected": self.expectation,
            "holds": self.holds,
        }


@dataclass(frozen=True)
class Study:
    """All that a study found."""

    name: str
    title: str
    settings: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    panels: Sequence[Panel]
    claims: Sequence[Statement]
    notes: Sequence[str] = ()

    def write(self, folder: Path) -> list[Path]:
        """CSV with every number, JSON with settings and claims too, the figure as PNG."""
        folder.mkdir(parents=True, exist_ok=True)
        table, record, picture = (folder / f"{self.name}.{e}" for e in ("csv", "json", "png"))
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        with table.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(self.rows)
        content = {
            "study": self.name,
            "title": self.title,
            "settings": dict(self.settings),
            "claims": [claim.as_dict() for claim in self.claims],
            "notes": list(self.notes),
            "rows": [dict(row) for row in self.rows],
        }
        record.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
        self.draw(picture)
        return [table, record, picture]

    def draw(self, path: Path) -> None:
        """The panels, two in a row."""
        height = -(-len(self.panels) // 2)
        figure = new_figure(12, 4.4 * height)
        plots = figure.subplots(height, 2, squeeze=False).ravel()
        for panel, plot in zip(self.panels, plots, strict=False):
            _draw(panel, plot)
        for plot in plots[len(self.panels) :]:
            plot.axis("off")
        figure.suptitle(self.title)
        save_figure(figure, path, dpi=100)

    def tables(self) -> list[Table]:
        """For the terminal: the numbers, then the claims."""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        numbers = Table(*names, title=self.title)
        for row in self.rows:
            numbers.add_row(*(_format_cell(row.get(name, "")) for name in names))
        claims = Table("statement", "measured", "expected", "holds", title=f"{self.name}: claims")
        for claim in self.claims:
            claims.add_row(claim.text, claim.measurement, claim.expectation, claim.holds)
        return [numbers, claims]


def _format_cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _draw(panel: Panel, plot: Plot) -> None:
    for line in panel.lines:
        (curve,) = plot.plot(line.x, line.mean, line.style, label=line.label, markersize=4)
        if line.low is not None and line.high is not None:
            floor = 1e-300 if panel.log[1] else -np.inf
            low = np.maximum(line.low, floor)
            plot.fill_between(line.x, low, line.high, color=curve.get_color(), alpha=0.2, lw=0)
    if panel.guide is not None:
        first = panel.lines[0]
        x = np.asarray(first.x, float)
        y = first.mean[0] * (x / x[0]) ** panel.guide
        plot.plot(x, y, "k:", lw=1.5, label=f"theorem: slope {panel.guide:g}")
    for label, value in panel.levels.items():
        plot.axhline(value, color="0.4", ls="--", lw=1)
        plot.annotate(label, (0.99, value), xycoords=("axes fraction", "data"), ha="right",
                      va="bottom", fontsize=7, color="0.3")  # fmt: skip
    if panel.log[0]:
        plot.set_xscale("log", base=2)
    if panel.log[1]:
        plot.set_yscale("log")
    plot.set_title(panel.title, fontsize=10)
    plot.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
    plot.grid(alpha=0.3)
    plot.legend(fontsize=7)
