"""Names at the ends of lines, in place of legends: spread so that none covers another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any

import numpy as np

from submodel.presentation.style import SMALL_TEXT, with_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

_LINE_HEIGHT = 1.22  # of the size of the font, from one line of text to the next
_APART = 1.05  # of the size of the font: what one line of text takes
_GAP = 7.0  # points from the frame to the names
_WIDTH = 28  # characters of a name before it is wrapped


def short_label(title: str) -> str:
    """The name of a way as a figure has room for it: the last words of keys, lists of one bare.

    Args:
        title: As tables write it.

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
    """Middles for labels, as near to the wished ones as they can be without overlap.

    Labels keep the order of their wishes. Where all do not fit between `low` and `high`, they stand
    as close as their sizes allow around the middle.

    Args:
        wishes: Where the middle of each should be.
        sizes: How much room each takes.
        low: Where the room begins.
        high: Where it ends.

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
    """Two groups as one, where its members are nearest to their wishes on average."""
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


def named_lines(plot: Plot) -> list[Line2D]:
    """The lines of a plot that have a name of their own and a point.

    Args:
        plot: What was drawn.
    """
    lines = plot.get_lines()
    return [line for line in lines if not str(line.get_label()).startswith("_") and _end(line)]


@with_style
def label_ends(plots: Sequence[Plot], width: int = _WIDTH, gap: float = _GAP) -> list[Text]:
    """Write the name of every line to the right of its end, in its colour; returns the texts.

    To be called when everything is drawn and all limits are set: the room that names take is
    measured, and a figure with a layout of its own is laid out.

    Args:
        plots: Whose lines; all of one figure.
        width: Characters of a name before it is wrapped.
        gap: Points between the frame and the names.
    """
    texts = [
        (plot, line, _write(plot, line, width, gap)) for plot in plots for line in named_lines(plot)
    ]
    if not texts:
        return []
    figure: Any = plots[0].get_figure()
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # what follows must not move
    for plot in plots:
        _spread(plot, [(line, text) for one, line, text in texts if one is plot], gap)
    return [text for _, _, text in texts]


def names_height(names: Sequence[str], width: int = _WIDTH) -> float:
    """The inches that the names of some lines take, one below the other.

    Args:
        names: Of one plot.
        width: Characters of a name before it is wrapped.

    >>> names_height(["rolling"]) < names_height(["rolling", "static"]) < 0.3
    True
    """
    return sum(_size(wrap_evenly(name, width)) for name in names) / 72.0


def _size(text: str) -> float:
    """The points that a name takes."""
    return SMALL_TEXT * (_APART + _LINE_HEIGHT * text.count("\n")) * 1.08


def wrap_evenly(text: str, width: int) -> str:
    r"""A text in as few lines as its width allows, of about the same length.

    Args:
        text: Of one line.
        width: Characters of a line at most.

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


def _write(plot: Plot, line: Line2D, width: int, gap: float) -> Text:
    label = wrap_evenly(str(line.get_label()), width)
    return plot.annotate(
        label, (1.0, 0.5), xycoords="axes fraction", xytext=(gap, 0), textcoords="offset points",
        va="center", ha="left", fontsize=SMALL_TEXT, color=line.get_color(), linespacing=1.0,
        annotation_clip=False,
    )  # fmt: skip


def _spread(plot: Plot, pairs: Sequence[tuple[Line2D, Text]], gap: float) -> None:
    """Move the names beside the ends of their lines, and lead to those that had to move away."""
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
    below = min(SMALL_TEXT, box.y0 * points)  # nothing leaves the paper, nor covers a title
    has_title = any(plot.get_title(loc) for loc in ("left", "center", "right"))
    above = 0.0 if has_title else min(SMALL_TEXT, (plot.figure.bbox.height - box.y1) * points)
    places = spread_places([y for _, y in ends], sizes, -below, height + above)
    for (line, text), (x, y), place in zip(pairs, ends, places, strict=True):
        text.xy = (1.0, place / height)  # type: ignore[attr-defined]
        _lead(plot, line, (x / width, y / height), place / height, (gap - 1.5) / width)


def _lead(plot: Plot, line: Line2D, end: tuple[float, float], place: float, reach: float) -> None:
    """A thin line from the end of a line to its name."""
    corner = max(1.0, end[0])
    plot.plot(
        [end[0], corner, 1.0 + reach], [end[1], end[1], place], transform=plot.transAxes,
        color=line.get_color(), linewidth=0.5, linestyle=(0, (1, 1.2)), clip_on=False, zorder=1.5,
        label="_leader",
    )  # fmt: skip


def _end(line: Line2D) -> tuple[float, float] | None:
    """The rightmost point of a line that is a number."""
    points = np.asarray(line.get_xydata(), np.float64)
    points = points[np.isfinite(points).all(1)]
    if not len(points):
        return None
    x, y = points[np.flatnonzero(points[:, 0] == points[:, 0].max())[-1]]
    return float(x), float(y)
