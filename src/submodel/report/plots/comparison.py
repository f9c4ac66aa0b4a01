"""What all ways came to: sorted, every seed, and what each took."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from submodel.amounts import si
from submodel.presentation.bands import styles_of
from submodel.presentation.figures import new_figure
from submodel.presentation.intervals import ROW_HEIGHT, IntervalRow, draw_intervals, sorted_rows
from submodel.presentation.style import with_style
from submodel.presentation.ticks import even_ticks
from submodel.report.plots.series import Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDE = 5.0  # inches, from which on there is room for more columns
_COSTS = {"round": "rounds", "bytes": "traffic", "flops": "FLOPs"}


@with_style
def comparison(series: Sequence[Series], width: float) -> Figure:
    """The last score of every way, the best on top, with its rounds, traffic and work.

    Args:
        series: What is compared.
        width: Of the figure, in inches.
    """
    has_accuracy = all(one.has("test_accuracy") for one in series)
    measure = "test_accuracy" if has_accuracy else "test_loss"
    styles = styles_of([fmean(one.finals(measure)) for one in series], not has_accuracy)
    costs = [cost for cost in _COSTS if width > _WIDE and all(one.has(cost) for one in series)]
    rows = final_rows(series, measure, [style and style[0] for style in styles], costs)
    figure = new_figure(width, 0.5 + ROW_HEIGHT * (len(series) + bool(costs)))
    plot = figure.subplots()
    draw_intervals(plot, sorted_rows(rows, not has_accuracy), [_COSTS[cost] for cost in costs])
    plot.set_xlabel(f"{measure.replace('_', ' ')} after the last round")
    even_ticks(plot.xaxis, 5 if width > _WIDE else 4)
    return figure


def final_rows(
    series: Sequence[Series],
    measure: str,
    colours: Sequence[str | None],
    costs: Sequence[str] = (),
) -> list[IntervalRow]:
    """A row for every way: its last values by seed, and what it had cost by then.

    Args:
        series: What is compared.
        measure: As test_accuracy.
        colours: Of each; None: in the background.
        costs: As round, bytes and flops.
    """
    return [
        IntervalRow(
            one.label or "all seeds",
            one.finals(measure),
            colour,
            [_amount(cost, fmean(one.finals(cost))) for cost in costs],
        )
        for one, colour in zip(series, colours, strict=True)
    ]


def _amount(cost: str, value: float) -> str:
    return f"{value:.0f}" if cost == "round" else si(value, "B" if cost == "bytes" else "")
