"""Text beside a plot: names at the ends of lines, and numbers along its axes.

Names replace legends, and are spread so that none covers another. Ticks are whole rounds, amounts
in a suitable unit, or plain values on a logarithmic scale.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any

import numpy as np

from submodel.drawing.style import SMALL_TEXT, with_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.axis import Axis
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

_LINE_HEIGHT = 1.22  # distance between lines of text, relative to the size of the font
_APART = 1.05  # height of one line of text, relative to the size of the font
_GAP = 7.0  # points from the frame to the names
_WIDTH = 28  # characters in a line of a name
_STEPS = [1, 2, 5, 10]
_AMOUNTS = {"bytes": ("traffic, down + up", "B"), "flops": ("clients' work", "FLOPs")}
_TIMES = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_DENSITIES: tuple[tuple[float, ...], ...] = (
    *((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)),
)  # within a decade
_FEWEST, _MOST = 3, 6  # ticks of an axis


def short_label(title: str) -> str:
    """Shorten the title of an arm for a figure: last parts of keys, lists of one without brackets.

    >>> short_label("rolling, server.name = adam, clients.capacities = [0.25]")
    'rolling, server adam, capacities 0.25'
    >>> short_label("static, model.factorised = true, model.scaler = false")
    'static, factorised, no scaler'
    """
    name, *settings = re.split(r", (?=[\w.]+ = )", title)
    return ", ".join([name, *(_short_setting(setting) for setting in settings)])


def _short_setting(setting: str) -> str:
    path, _, value = setting.partition(" = ")
    *sections, key = path.split(".")
    key = sections[-1] if key == "name" and sections else key
    if value in ("true", "false"):
        return key if value == "true" else f"no {key}"
    is_one = value.startswith("[") and "," not in value
    return f"{key} {value.strip('[]') if is_one else value}".replace("_", " ")


def spread_places(
    wishes: Sequence[float], sizes: Sequence[float], low: float, high: float
) -> list[float]:
    """Place the middles of labels as near to the wished places as possible without overlap.

    Labels keep the order of their wishes. If they do not all fit between `low` and `high`, they are
    packed around the middle.

    Args:
        wishes: wished middle of each label.
        sizes: size of each label.
        low: lower end of the available space.
        high: upper end of the available space.

    >>> spread_places([5.0, 5.0, 9.0], [2.0, 2.0, 2.0], 0.0, 20.0)
    [4.0, 6.0, 9.0]
    """
    order = sorted(range(len(wishes)), key=lambda place: (wishes[place], place))
    groups: list[tuple[list[int], float, float]] = []  # members, middle, size
    for member in order:
        group = ([member], wishes[member], sizes[member])
        group = _within(group, low, high)
        while groups and groups[-1][1] + groups[-1][2] / 2 > group[1] - group[2] / 2 + 1e-9:
            group = _within(_join(groups.pop(), group, wishes, sizes), low, high)
        groups.append(group)
    places = [0.0] * len(wishes)
    for members, middle, size in groups:
        edge = middle - size / 2
        for member in members:
            places[member] = edge + sizes[member] / 2
            edge += sizes[member]
    return places


def _join(
    lower: tuple[list[int], float, float],
    upper: tuple[list[int], float, float],
    wishes: Sequence[float],
    sizes: Sequence[float],
) -> tuple[list[int], float, float]:
    """Join two groups, placed where the members are nearest to their wishes on average."""
    members = lower[0] + upper[0]
    size = lower[2] + upper[2]
    edge, middles = 0.0, []
    for member in members:
        middles.append(wishes[member] - (edge + sizes[member] / 2))
        edge += sizes[member]
    return members, sum(middles) / len(middles) + size / 2, size


def _within(
    group: tuple[list[int], float, float], low: float, high: float
) -> tuple[list[int], float, float]:
    members, middle, size = group
    if size >= high - low:
        return members, (low + high) / 2, size
    return members, min(max(middle, low + size / 2), high - size / 2), size


def _named_lines(plot: Plot) -> list[Line2D]:
    """List the lines of a plot that have a name and at least one point."""
    lines = plot.get_lines()
    return [line for line in lines if not str(line.get_label()).startswith("_") and _end(line)]


@with_style
def label_ends(plots: Sequence[Plot], width: int = _WIDTH) -> list[Text]:
    """Write the name of every line to the right of its end, in its colour; return the texts.

    Call it when everything is drawn and all limits are set: it measures the space of the names, and
    lays out a figure that has a layout engine.

    Args:
        plots: all plots of one figure.
        width: characters in a line of a name.
    """
    texts = [
        (plot, line, _write(plot, line, width)) for plot in plots for line in _named_lines(plot)
    ]
    if not texts:
        return []
    figure: Any = plots[0].get_figure()
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # later additions must not move the layout
    for plot in plots:
        _spread(plot, [(line, text) for one, line, text in texts if one is plot])
    return [text for _, _, text in texts]


def names_height(names: Sequence[str], width: int = _WIDTH) -> float:
    """Compute the height in inches of the wrapped names of a plot's lines, one below the other.

    >>> names_height(["rolling"]) < names_height(["rolling", "static"]) < 0.3
    True
    """
    return sum(_size(wrap_evenly(name, width)) for name in names) / 72.0


def _size(text: str) -> float:
    """Compute the height of a name in points."""
    return SMALL_TEXT * (_APART + _LINE_HEIGHT * text.count("\n")) * 1.08


def wrap_evenly(text: str, width: int) -> str:
    r"""Wrap a text into as few lines as the width allows, of about the same length.

    >>> wrap_evenly("random (Bernoulli, Algorithm 1)", 28)
    'random (Bernoulli,\nAlgorithm 1)'
    """
    whole_words = TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    lines = whole_words.wrap(text)
    while whole_words.width > 1:
        whole_words.width -= 1
        if len(shorter := whole_words.wrap(text)) > len(lines):
            break
        lines = shorter
    return "\n".join(lines)


def _write(plot: Plot, line: Line2D, width: int) -> Text:
    label = wrap_evenly(str(line.get_label()), width)
    return plot.annotate(
        label, (1.0, 0.5), xycoords="axes fraction", xytext=(_GAP, 0), textcoords="offset points",
        va="center", ha="left", fontsize=SMALL_TEXT, color=line.get_color(), linespacing=1.0,
        annotation_clip=False,
    )  # fmt: skip


def _spread(plot: Plot, pairs: Sequence[tuple[Line2D, Text]]) -> None:
    """Move the names beside the ends of their lines, with leaders to displaced names."""
    if not pairs:
        return
    points = 72.0 / plot.figure.dpi
    box = plot.get_window_extent()
    height, width = box.height * points, box.width * points
    ends = []
    for line, _ in pairs:
        x, y = plot.transData.transform(_end(line) or (0.0, 0.0))
        ends.append(((x - box.x0) * points, min(max((y - box.y0) * points, 0.0), height)))
    sizes = [_size(text.get_text()) for _, text in pairs]
    below = min(SMALL_TEXT, box.y0 * points)  # names stay on the paper and cover no title
    has_title = any(plot.get_title(loc) for loc in ("left", "center", "right"))
    above = 0.0 if has_title else min(SMALL_TEXT, (plot.figure.bbox.height - box.y1) * points)
    places = spread_places([y for _, y in ends], sizes, -below, height + above)
    for (line, text), (x, y), place in zip(pairs, ends, places, strict=True):
        text.xy = (1.0, place / height)  # type: ignore[attr-defined]
        _lead(plot, line, (x / width, y / height), place / height, (_GAP - 1.5) / width)


def _lead(plot: Plot, line: Line2D, end: tuple[float, float], place: float, reach: float) -> None:
    """Draw a thin leader from the end of a line to its name."""
    corner = max(1.0, end[0])
    plot.plot(
        [end[0], corner, 1.0 + reach], [end[1], end[1], place], transform=plot.transAxes,
        color=line.get_color(), linewidth=0.5, linestyle=(0, (1, 1.2)), clip_on=False, zorder=1.5,
        label="_leader",
    )  # fmt: skip


def _end(line: Line2D) -> tuple[float, float] | None:
    """Return the rightmost finite point of a line."""
    points = np.asarray(line.get_xydata(), np.float64)
    points = points[np.isfinite(points).all(1)]
    if not len(points):
        return None
    x, y = points[np.flatnonzero(points[:, 0] == points[:, 0].max())[-1]]
    return float(x), float(y)


def whole_ticks(axis: Axis, most: int = 4) -> None:
    """Set ticks at whole numbers only, such as rounds, in at most ``most`` steps."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(most, integer=True, steps=_STEPS, min_n_ticks=1))


def even_ticks(axis: Axis, most: int = 6) -> None:
    """Set ticks at steps of 1, 2 or 5, at most ``most``."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(most, steps=_STEPS))


def fitting_unit(most: float, unit: str = "B") -> tuple[float, str]:
    """Return size and name of a unit in which the largest amount has one to three digits.

    >>> fitting_unit(420e6), fitting_unit(3.1e12, "FLOPs"), fitting_unit(12, "s")
    ((1000000.0, 'MB'), (1000000000000.0, 'TFLOPs'), (1.0, 's'))
    """
    for size, prefix in _PREFIXES:
        if most >= size:
            return size, f"{prefix}{unit}"
    return 1.0, unit


def amount_ticks(axis: Axis, most: float, what: str, unit: str) -> None:
    """Set ticks of amounts, and the name of the axis with a unit that suits the largest.

    Args:
        axis: axis of a plot; its values have no prefix.
        most: largest amount.
        what: name of the quantity, as "traffic".
        unit: unit without a prefix, as "B".
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    size, name = fitting_unit(most, unit)
    axis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:g}"))
    axis.set_label_text(f"{what} ({name})")


def cost_ticks(plot: Plot, cost: str, most: float) -> None:
    """Set ticks and the name of the x axis.

    Args:
        plot: plot with all lines drawn.
        cost: round, bytes, flops or seconds.
        most: largest value.
    """
    if cost == "round":
        plot.set_xlabel("round")
        whole_ticks(plot.xaxis)
    elif cost == "seconds":
        from matplotlib.ticker import FuncFormatter, MultipleLocator

        size, unit = next((s, u) for s, u in _TIMES if most >= 2 * s or s == 1.0)
        step = next((s for s in (1, 2, 5, 10, 20, 50, 100) if most / size <= 5 * s), 200)
        plot.xaxis.set_major_locator(MultipleLocator(step * size))
        plot.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:g}"))
        plot.set_xlabel(f"time of all rounds ({unit})")
    else:
        amount_ticks(plot.xaxis, most, *_AMOUNTS[cost])


def plain_number(value: float) -> str:
    """Format a number as the text of a tick.

    >>> [plain_number(v) for v in (0.05, 20, 5000, 2e6, 1e-6, 3e-7, 0)]
    ['0.05', '20', '5,000', '2 M', '10⁻⁶', '3·10⁻⁷', '0']
    """
    size = abs(value)
    if value == 0 or 1e-3 <= size < 1e5:
        return f"{value:,.0f}" if size >= 1e3 else f"{value:.3g}"
    if 1e5 <= size < 1e12:
        factor, prefix = next((f, p) for f, p in _PREFIXES if size >= f)
        return f"{value / factor:.4g} {prefix}"
    exponent = math.floor(math.log10(size) + 1e-9)
    digits = f"{value / 10.0**exponent:.3g}"
    power = "10" + str(exponent).translate(_SUPERSCRIPTS)
    return power if digits == "1" else f"{digits}·{power}"


def log_places(low: float, high: float) -> list[float]:
    """Choose round numbers for the ticks of a log scale, three to six if possible.

    >>> log_places(0.4, 30), log_places(1e-9, 1e-1)
    ([0.5, 1.0, 2.0, 5.0, 10.0, 20.0], [1e-09, 1e-07, 1e-05, 0.001, 0.1])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in _DENSITIES:
        places = [float(f"{f}e{e}") for e in range(first, last + 1) for f in factors]
        places = [place for place in places if low * (1 - 1e-9) <= place <= high * (1 + 1e-9)]
        if len(places) <= _MOST:
            break
    if len(places) > _MOST:  # a decade each is too many
        places = places[:: -(-len(places) // _MOST)]
    return places if len(places) >= _FEWEST else _even_places(low, high)


def _even_places(low: float, high: float) -> list[float]:
    """Choose ticks at equal steps, for a scale of less than a decade."""
    from matplotlib.ticker import MaxNLocator

    places = MaxNLocator(4, steps=_STEPS).tick_values(low, high)
    return [float(place) for place in places if low <= place <= high]


def log_scale(plot: Plot, which: str = "y") -> None:
    """Make an axis, ``x`` or ``y``, of a drawn plot logarithmic, with plain numbers."""
    if which == "x":
        plot.set_xscale("log")
        low, high = plot.get_xlim()
    else:
        plot.set_yscale("log")
        low, high = plot.get_ylim()
    name_ticks(plot.xaxis if which == "x" else plot.yaxis, log_places(low, high))


def name_ticks(axis: Axis, places: Sequence[float], names: Sequence[str] | None = None) -> None:
    """Set ticks at exactly these places, with names or plain numbers."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axis.set_major_locator(FixedLocator(list(places)))
    axis.set_major_formatter(FixedFormatter(names or [plain_number(place) for place in places]))
    axis.set_minor_locator(NullLocator())
