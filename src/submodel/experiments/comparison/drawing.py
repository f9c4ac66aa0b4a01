"""The figure of a comparison: accuracy against rounds, bytes and FLOPs, and many ways sorted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from submodel.amounts import si
from submodel.experiments.comparison.findings import Findings, WayRecord
from submodel.presentation.bands import (
    MOST_LINES,
    ROW_HEIGHT,
    Band,
    IntervalRow,
    draw_band,
    draw_intervals,
    shared_grid,
    sorted_rows,
    styles_of,
)
from submodel.presentation.labels import (
    amount_ticks,
    even_ticks,
    label_ends,
    short_label,
    whole_ticks,
)
from submodel.presentation.style import DOUBLE, FAINT, new_figure, with_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure

_AMOUNTS = {"bytes": ("traffic, down + up", "B"), "flops": ("clients' work", "FLOPs")}
_HEIGHT = 2.0  # inches of the curves
Styles = Mapping[str, tuple[str, str] | None]


@with_style
def draw_comparison(findings: Findings) -> Figure:
    """Test accuracy against rounds, bytes and FLOPs; of many ways, a list of all below.

    Args:
        findings: Of a comparison.
    """
    finals = [sum(way.record.final("accuracy").values()) for way in findings.ways]
    styles = dict(zip((way.text for way in findings.ways), styles_of(finals), strict=True))
    if len(findings.ways) <= MOST_LINES:
        figure = new_figure(DOUBLE, max(_HEIGHT, 0.6 + 0.17 * len(findings.ways)))
        curves: Sequence[Plot] = figure.subplots(1, 3, sharey=True)
        _draw_curves(curves, findings, styles)
        label_ends(curves[-1:])  # all three have the same colours and ends
        return figure
    height = ROW_HEIGHT * (len(findings.ways) + 3)
    figure = new_figure(DOUBLE, _HEIGHT + height)
    upper, lower = figure.subfigures(  # type: ignore[misc]
        2, 1, height_ratios=[_HEIGHT, height]
    )
    _draw_curves(upper.subplots(1, 3, sharey=True), findings, styles)
    _draw_list(lower.subplots(), findings.ways, styles)
    return figure


def _draw_curves(plots: Sequence[Plot], findings: Findings, styles: Styles) -> None:
    for plot, cost in zip(plots, ("round", *_AMOUNTS), strict=True):
        most = 0.0
        for way in findings.ways:
            x, values = shared_grid(way.record.against(cost, "accuracy"))
            style = styles[way.text]
            band = Band(short_label(way.title), x.tolist(), values, *(style or (FAINT, "-")))
            draw_band(plot, band, is_faint=style is None)
            most = max(most, x[-1])
        plot.set_xlim(0, 1.03 * most)
        if cost == "round":
            plot.set_xlabel("round")
            whole_ticks(plot.xaxis)
        else:
            amount_ticks(plot.xaxis, most, *_AMOUNTS[cost])
    plots[0].set_ylabel("test accuracy")
    even_ticks(plots[0].yaxis)


def _draw_list(plot: Plot, ways: Sequence[WayRecord], styles: Styles) -> None:
    """Every way after its last round, the best on top, with what it took."""
    rows = []
    for way in ways:
        style, values = styles[way.text], list(way.record.final("accuracy").values())
        rounds = f"{round(sum(way.rounds) / len(way.rounds))}"
        cells = (rounds, si(way.cost("bytes"), "B"), si(way.cost("flops")))
        rows.append(IntervalRow(short_label(way.title), values, style and style[0], cells))
    draw_intervals(plot, sorted_rows(rows), ("rounds", "traffic", "FLOPs"))
    plot.set_xlabel("test accuracy after the last round")
    even_ticks(plot.xaxis)
