"""Where the seconds of a round go: a bar for every way to train, a part for every phase."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from submodel.errors import SubmodelError
from submodel.presentation.figures import new_figure
from submodel.presentation.palette import LINES, shade
from submodel.presentation.style import with_style
from submodel.presentation.ticks import even_ticks
from submodel.report.plots.series import Series, is_drawable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PREFIX = "seconds."
_OTHERS = "others"
_LEAST_SHARE = 0.01  # of the longest bar: what is less cannot be seen


@with_style
def phases(series: Sequence[Series], width: float) -> Figure:
    """The mean seconds of a round by phase; evaluation is spread over all rounds.

    Args:
        series: What is compared: runs, as records keep no seconds of phases.
        width: Of the figure, in inches.
    """
    bars = [_mean_seconds(one) for one in series]
    if not all(bars):
        raise SubmodelError("phases: records keep no seconds of phases; give the folders of runs")
    longest = max(sum(bar.values()) for bar in bars)
    every = dict.fromkeys(phase for bar in bars for phase in bar)
    large = [p for p in every if max(bar.get(p, 0.0) for bar in bars) >= _LEAST_SHARE * longest]
    columns = 3 if width < 5 else 6
    legend_lines = -(-(len(large) + 1) // columns)
    figure = new_figure(width, 0.55 + 0.22 * len(series) + 0.16 * legend_lines)
    plot = figure.subplots()
    begins = [0.0] * len(bars)
    colours = [*LINES, *(shade((colour, "#ffffff"), 0.5) for colour in LINES)]
    for phase, colour in zip([*large, _OTHERS], colours, strict=False):
        values = [_part(bar, phase, large) for bar in bars]
        plot.barh(range(len(bars)), values, 0.62, begins, color=colour, label=phase)
        begins = [begin + value for begin, value in zip(begins, values, strict=True)]
    plot.set_yticks(range(len(bars)), [one.label for one in series])
    plot.tick_params(axis="y", length=0)
    plot.set_ylim(len(bars) - 0.5, -0.5)
    plot.grid(axis="y", visible=False)
    plot.set_xlabel("seconds per round (mean)")
    even_ticks(plot.xaxis, 5)
    figure.legend(loc="outside upper center", ncols=columns, columnspacing=1.2)
    return figure


def _mean_seconds(one: Series) -> dict[str, float]:
    rows: list[Mapping[str, Any]] = [row for run in one.runs for row in run]
    names = dict.fromkeys(key for row in rows for key in row if key.startswith(_PREFIX))
    return {key.removeprefix(_PREFIX): fmean(_seconds(row, key) for row in rows) for key in names}


def _seconds(row: Mapping[str, Any], key: str) -> float:
    value = row.get(key, 0.0)
    return value if is_drawable(value) and math.isfinite(value) else 0.0


def _part(bar: Mapping[str, float], phase: str, large: Sequence[str]) -> float:
    if phase == _OTHERS:
        return sum(value for name, value in bar.items() if name not in large)
    return bar.get(phase, 0.0)
