"""A score against what it took: rounds, bytes, FLOPs or seconds; the seeds of a way as a band."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from submodel.presentation.bands import MOST_LINES, Band, draw_band, shared_grid, styles_of
from submodel.presentation.figures import new_figure
from submodel.presentation.intervals import ROW_HEIGHT, draw_intervals, sorted_rows
from submodel.presentation.labels import label_ends
from submodel.presentation.palette import FAINT
from submodel.presentation.style import with_style
from submodel.presentation.ticks import amount_ticks, even_ticks, log_scale, whole_ticks
from submodel.report.plots.comparison import final_rows
from submodel.report.plots.series import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure

_AMOUNTS = {"bytes": ("traffic, down + up", "B"), "flops": ("clients' work", "FLOPs")}
_TIMES = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))
_NAMES = {"test_accuracy": "test accuracy", "test_loss": "test loss",
          "coverage.units": "units covered"}  # fmt: skip


def accuracy(series: Sequence[Series], width: float) -> Figure:
    """Test accuracy over rounds; the loss, where targets are not labels.

    Args:
        series: What is compared.
        width: Of the figure, in inches.
    """
    return draw_against(series, "round", score_of(series), width)


def loss(series: Sequence[Series], width: float) -> Figure:
    """Test loss over rounds, on a logarithmic scale.

    Args:
        series: What is compared.
        width: Of the figure, in inches.
    """
    return draw_against(series, "round", "test_loss", width)


def traffic(series: Sequence[Series], width: float) -> Figure:
    """The score against all bytes that were sent.

    Args:
        series: What is compared.
        width: Of the figure, in inches.
    """
    return draw_against(series, "bytes", score_of(series), width)


def flops(series: Sequence[Series], width: float) -> Figure:
    """The score against the work of all clients.

    Args:
        series: What is compared.
        width: Of the figure, in inches.
    """
    return draw_against(series, "flops", score_of(series), width)


def time(series: Sequence[Series], width: float) -> Figure:
    """The score against the seconds that all rounds took, evaluation included.

    Args:
        series: What is compared.
        width: Of the figure, in inches.
    """
    return draw_against(series, "elapsed", score_of(series), width)


def unit_coverage(series: Sequence[Series], width: float) -> Figure:
    """The share of all units that at least one client held, round by round.

    Args:
        series: What is compared.
        width: Of the figure, in inches.
    """
    return draw_against(series, "round", "coverage.units", width)


def score_of(series: Sequence[Series]) -> str:
    """What all are scored by: the accuracy, or the loss where one has none.

    Args:
        series: What is compared.
    """
    return "test_accuracy" if all(one.has("test_accuracy") for one in series) else "test_loss"


@with_style
def draw_against(series: Sequence[Series], cost: str, measure: str, width: float) -> Figure:
    """A line for every way; of many, the best stand out, and all are listed below.

    Args:
        series: What is compared.
        cost: As round, bytes, flops or elapsed.
        measure: As test_accuracy.
        width: Of the figure, in inches.
    """
    is_loss = measure.endswith("loss")
    styles = styles_of([fmean(one.finals(measure)) for one in series], is_loss)
    height = max(2.0, 0.5 + 0.2 * min(len(series), MOST_LINES))
    if len(series) <= MOST_LINES:
        figure = new_figure(width, height)
        plot = figure.subplots()
        _draw_lines(plot, series, styles, cost, measure)
        label_ends([plot], width=28 if width > 5 else 16)
        return figure
    list_height = ROW_HEIGHT * (len(series) + 3)
    figure = new_figure(width, height + list_height)
    upper, lower = figure.subfigures(  # type: ignore[misc]
        2, 1, height_ratios=[height, list_height]
    )
    _draw_lines(upper.subplots(), series, styles, cost, measure)
    names = lower.subplots()
    rows = final_rows(series, measure, [style and style[0] for style in styles])
    draw_intervals(names, sorted_rows(rows, is_loss))
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
    most = 0.0
    for one, style in zip(series, styles, strict=True):
        x, values = shared_grid(one.curves(cost, measure))
        band = Band(one.label or "_", x.tolist(), values, *(style or (FAINT, "-")))
        draw_band(plot, band, is_faint=style is None)
        most = max(most, float(x[-1]))
    plot.set_ylabel(_NAMES[measure])
    if measure.endswith("loss"):
        log_scale(plot)
    else:
        even_ticks(plot.yaxis)
    plot.set_xlim(0, most * (1.0 if cost == "round" else 1.02) or 1)
    _name_cost(plot, cost, most)


def _name_cost(plot: Plot, cost: str, most: float) -> None:
    """What the x axis tells, in a unit that fits."""
    if cost == "round":
        plot.set_xlabel("round")
        whole_ticks(plot.xaxis)
    elif cost == "elapsed":
        from matplotlib.ticker import FuncFormatter, MultipleLocator

        size, unit = next((s, u) for s, u in _TIMES if most >= 2 * s or s == 1.0)
        step = next((s for s in (1, 2, 5, 10, 20, 50, 100) if most / size <= 5 * s), 200)
        plot.xaxis.set_major_locator(MultipleLocator(step * size))
        plot.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:g}"))
        plot.set_xlabel(f"time of all rounds ({unit})")
    else:
        amount_ticks(plot.xaxis, most, *_AMOUNTS[cost])
