"""How every capacity of a model does over rounds, a plot for each way to train."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from submodel.errors import SubmodelError
from submodel.presentation.bands import Band, draw_band, shared_grid
from submodel.presentation.figures import new_figure
from submodel.presentation.labels import label_ends
from submodel.presentation.palette import capacity_colours
from submodel.presentation.style import with_style
from submodel.presentation.ticks import even_ticks, whole_ticks
from submodel.report.plots.series import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure

_SCORES = ("accuracy", "loss")
_LARGEST_DENOMINATOR = 64


@with_style
def capacities(series: Sequence[Series], width: float) -> Figure:
    """The score of the model cut to each capacity: the larger, the darker.

    Args:
        series: What is compared.
        width: Of the figure, in inches.
    """
    score = next((s for s in _SCORES if all(_capacities(one, s) for one in series)), None)
    if score is None:
        raise SubmodelError(
            "capacities: no round was scored by capacity; 'train.evaluate_capacities' does it"
        )
    columns = min(len(series), 2 if width > 5 else 1)
    lines = -(-len(series) // columns)
    figure = new_figure(width, 1.9 * lines)
    plots = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for one, plot in zip(series, plots, strict=False):
        _draw(plot, one, score)
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


def _draw(plot: Plot, one: Series, score: str) -> None:
    names = _capacities(one, score)
    most = 0.0
    for name, colour in zip(names, capacity_colours(len(names)), strict=True):
        x, values = shared_grid(one.curves("round", f"capacity_{score}.{name}"))
        draw_band(plot, Band(_fraction(name), x.tolist(), values, colour))
        most = max(most, float(x[-1]))
    plot.set_xlim(0, most)
    whole_ticks(plot.xaxis)
    even_ticks(plot.yaxis)


def _capacities(one: Series, score: str) -> list[str]:
    """Their names in a row, from the largest to the smallest."""
    prefix = f"capacity_{score}."
    keys = {key for rows in one.runs for row in rows for key in row if key.startswith(prefix)}
    names = [name for key in keys if _is_capacity(name := key.removeprefix(prefix))]
    return sorted(names, key=float, reverse=True)


def _is_capacity(name: str) -> bool:
    """Whether a file's word is a share, as "0.25"; it may hold any."""
    try:
        return 0 < float(name) <= 1
    except ValueError:
        return False


def _fraction(name: str) -> str:
    """A capacity as people write it.

    >>> _fraction("0.125"), _fraction("1"), _fraction("0.333")
    ('1/8', '1', '0.333')
    """
    value = Fraction(name).limit_denominator(_LARGEST_DENOMINATOR)
    return str(value) if float(value) == float(name) else name
