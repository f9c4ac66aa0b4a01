"""The figures of `submodel report`: one function each, from data and a width in inches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from statistics import fmean
from typing import TYPE_CHECKING, Any

from submodel.core.amounts import si
from submodel.core.errors import SubmodelError
from submodel.drawing.bands import (
    MOST_LINES,
    ROW_HEIGHT,
    IntervalRow,
    draw_bands,
    draw_intervals,
    figure_with_list,
    sorted_rows,
    styles_of,
)
from submodel.drawing.labels import (
    cost_ticks,
    even_ticks,
    label_ends,
    log_scale,
    whole_ticks,
)
from submodel.drawing.style import (
    LINES,
    NONE_TO_MANY,
    capacity_colours,
    new_figure,
    shade,
    with_style,
)
from submodel.report.plots.series import LabelShares, Series, is_drawable

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure

MOST_NAMES = 20
"""Maximum number of labels that are named one by one."""
_NAMES = {"test_accuracy": "test accuracy", "test_loss": "test loss",
          "coverage.units": "units covered"}  # fmt: skip
_COSTS = {"round": "rounds", "bytes": "traffic", "flops": "FLOPs"}  # columns of a comparison
_WIDE = 5.0  # inches; from here on there are more columns
_LARGEST_DENOMINATOR = 64  # of a capacity
_PHASE = "seconds."
_OTHERS = "others"
_LEAST_SHARE = 0.01  # of the longest bar; smaller phases are invisible


def _score_of(series: Sequence[Series]) -> str:
    """Return the key of the accuracy, or of the loss if a series has no accuracy."""
    return "test_accuracy" if all(one.has("test_accuracy") for one in series) else "test_loss"


def _styles_of(series: Sequence[Series], measure: str) -> list[tuple[str, str] | None]:
    return styles_of([fmean(one.finals(measure)) for one in series], measure.endswith("loss"))


@with_style
def draw_against(series: Sequence[Series], width: float, cost: str, measure: str = "") -> Figure:
    """Draw a line for every arm; of many, the best are highlighted, and all are listed below.

    Args:
        series: arms.
        width: width of the figure in inches.
        cost: round, bytes, flops or seconds.
        measure: measure such as test_accuracy; empty for the score that all arms have.
    """
    measure = measure or _score_of(series)
    styles = _styles_of(series, measure)
    height = max(2.0, 0.5 + 0.2 * min(len(series), MOST_LINES))
    if len(series) <= MOST_LINES:
        figure = new_figure(width, height)
        plot = figure.subplots()
        _draw_lines(plot, series, styles, cost, measure)
        label_ends([plot], width=28 if width > _WIDE else 16)
        return figure
    figure, upper, lower = figure_with_list(width, height, len(series))
    _draw_lines(upper.subplots(), series, styles, cost, measure)
    names = lower.subplots()
    rows = _final_rows(series, measure, styles)
    draw_intervals(names, sorted_rows(rows, measure.endswith("loss")))
    names.set_xlabel(f"{_NAMES[measure]} after the last round", loc="right")
    even_ticks(names.xaxis, 4)
    return figure


def _draw_lines(
    plot: Plot,
    series: Sequence[Series],
    styles: Sequence[tuple[str, str] | None],
    cost: str,
    measure: str,
) -> None:
    lines = ((one.label or "_", one.curves(cost, measure)) for one in series)
    most = draw_bands(plot, lines, styles)
    plot.set_ylabel(_NAMES[measure])
    if measure.endswith("loss"):
        log_scale(plot)
    else:
        even_ticks(plot.yaxis)
    plot.set_xlim(0, most * (1.0 if cost == "round" else 1.02) or 1)
    cost_ticks(plot, cost, most)


@with_style
def draw_comparison(series: Sequence[Series], width: float) -> Figure:
    """Draw the last score of every arm, the best on top, with rounds, traffic and FLOPs."""
    measure = _score_of(series)
    costs = [cost for cost in _COSTS if width > _WIDE and all(one.has(cost) for one in series)]
    rows = sorted_rows(
        _final_rows(series, measure, _styles_of(series, measure), costs), measure.endswith("loss")
    )
    figure = new_figure(width, 0.5 + ROW_HEIGHT * (len(series) + bool(costs)))
    plot = figure.subplots()
    draw_intervals(plot, rows, [_COSTS[cost] for cost in costs])
    plot.set_xlabel(f"{_NAMES[measure]} after the last round")
    even_ticks(plot.xaxis, 5 if width > _WIDE else 4)
    return figure


def _final_rows(
    series: Sequence[Series],
    measure: str,
    styles: Sequence[tuple[str, str] | None],
    costs: Sequence[str] = (),
) -> list[IntervalRow]:
    """Return a row for every arm: last values by seed, and costs so far."""
    return [
        IntervalRow(
            one.label or "all seeds",
            one.finals(measure),
            style and style[0],
            [_amount(cost, fmean(one.finals(cost))) for cost in costs],
        )
        for one, style in zip(series, styles, strict=True)
    ]


def _amount(cost: str, value: float) -> str:
    return f"{value:.0f}" if cost == "round" else si(value, "B" if cost == "bytes" else "")


@with_style
def draw_capacities(series: Sequence[Series], width: float) -> Figure:
    """Draw the score of the model cut to each capacity: the larger, the darker."""
    scores = ("accuracy", "loss")
    score = next((s for s in scores if all(_capacities(one, s) for one in series)), None)
    if score is None:
        raise SubmodelError(
            "capacities: no round was scored by capacity; set 'train.evaluate_capacities'"
        )
    columns = min(len(series), 2 if width > _WIDE else 1)
    lines = -(-len(series) // columns)
    figure = new_figure(width, 1.9 * lines)
    plots = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for one, plot in zip(series, plots, strict=False):
        _draw_capacities_of(plot, one, score)
        plot.set_title(one.label)
    for plot in plots[len(series) :]:
        plot.axis("off")
    for plot in plots[::columns]:
        plot.set_ylabel(f"test {score}")
    for plot in plots[max(0, len(series) - columns) : len(series)]:
        plot.set_xlabel("round")
        plot.tick_params(labelbottom=True)
    label_ends(list(plots[: len(series)]))
    return figure


def _draw_capacities_of(plot: Plot, one: Series, score: str) -> None:
    names = _capacities(one, score)
    lines = ((_fraction(n), one.curves("round", f"capacity_{score}.{n}")) for n in names)
    styles = [(colour, "-") for colour in capacity_colours(len(names))]
    plot.set_xlim(0, draw_bands(plot, lines, styles))
    whole_ticks(plot.xaxis)
    even_ticks(plot.yaxis)


def _capacities(one: Series, score: str) -> list[str]:
    """Return the names of capacities in the rows, from the largest to the smallest."""
    prefix = f"capacity_{score}."
    keys = {key for rows in one.runs for row in rows for key in row if key.startswith(prefix)}
    names = [name for key in keys if _is_capacity(name := key.removeprefix(prefix))]
    return sorted(names, key=float, reverse=True)


def _is_capacity(name: str) -> bool:
    """Whether a text of a file is a fraction such as "0.25"."""
    try:
        return 0 < float(name) <= 1
    except ValueError:
        return False


def _fraction(name: str) -> str:
    """Write a capacity as a fraction, if it is one.

    >>> _fraction("0.125"), _fraction("1"), _fraction("0.333")
    ('1/8', '1', '0.333')
    """
    value = Fraction(name).limit_denominator(_LARGEST_DENOMINATOR)
    return str(value) if float(value) == float(name) else name


@with_style
def draw_phases(series: Sequence[Series], width: float) -> Figure:
    """Draw the mean seconds of a round by phase; evaluation is spread over all rounds."""
    bars = [_mean_seconds(one) for one in series]
    if not all(bars):
        raise SubmodelError("phases: records have no seconds of phases; give folders of runs")
    longest = max(sum(bar.values()) for bar in bars)
    every = dict.fromkeys(phase for bar in bars for phase in bar)
    large = [p for p in every if max(bar.get(p, 0.0) for bar in bars) >= _LEAST_SHARE * longest]
    columns = 3 if width < _WIDE else 6
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
    names = dict.fromkeys(key for row in rows for key in row if key.startswith(_PHASE))
    return {key.removeprefix(_PHASE): fmean(_seconds(row, key) for row in rows) for key in names}


def _seconds(row: Mapping[str, Any], key: str) -> float:
    value = row.get(key, 0.0)
    return value if is_drawable(value) and math.isfinite(value) else 0.0


def _part(bar: Mapping[str, float], phase: str, large: Sequence[str]) -> float:
    if phase == _OTHERS:
        return sum(value for name, value in bar.items() if name not in large)
    return bar.get(phase, 0.0)


@with_style
def draw_partition(shares: LabelShares, width: float) -> Figure:
    """Draw a row for every client, a column for every label, darker with more examples."""
    from matplotlib.colors import LinearSegmentedColormap

    clients, classes = shares.counts.shape
    figure = new_figure(width, min(8.0, max(1.8, 0.9 + 0.022 * clients)))
    plot = figure.subplots()
    picture = plot.imshow(
        shares.counts, aspect="auto", vmin=0, interpolation="nearest", origin="upper",
        cmap=LinearSegmentedColormap.from_list("examples", NONE_TO_MANY),
    )  # fmt: skip
    plot.grid(visible=False)
    plot.set(xlabel="label", ylabel="client")
    plot.set_title(shares.title)
    whole_ticks(plot.yaxis)
    if classes <= MOST_NAMES:
        plot.set_xticks(range(classes))
    else:
        whole_ticks(plot.xaxis, 8)
    bar = figure.colorbar(picture, ax=plot, label="examples", fraction=0.05, pad=0.02)
    bar.outline.set_visible(False)
    whole_ticks(bar.ax.yaxis)
    return figure
