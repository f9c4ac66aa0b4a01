"""The import graph as a picture: rooms as boxes in rows, arrows to what they import."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as Curve
from PIL import Image

from tools.rooms import GROUND, Rooms, purpose

COLUMNS = {
    "testing": -1.0, "api": 0.0, "cli": 2.5,
    "federation": 1.0, "experiments": 2.0, "theory": 3.0, "report": 4.0,
    "local": -0.5, "tasks": -1.0, "data": 0.0, "model": 1.0, "presentation": 4.0,
}  # fmt: skip
"""Where rooms are drawn, from left to right; all others stand at 0. Rows follow from imports."""
BANDS = {
    "the edges": ("cli", "#eceff4", "#5e81ac"),
    "many runs,\nmany machines": ("experiments", "#e3ecf7", "#4a7fc1"),
    "one run": ("runs", "#e2f1ec", "#3f9c7e"),
    "one round": ("engines", "#fdf3dc", "#d19a1f"),
    "one client": ("local", "#fbe7de", "#d0714a"),
    "the model,\nthe data": ("model", "#f3e6ef", "#a4628f"),
    "the ground:\nno torch": (GROUND, "#eeeeee", "#777777"),
}
"""What rows are about: each band begins with the row of a room; its colour, that of its boxes."""
WIDTH, HEIGHT, LEFT, RIGHT = 0.92, 0.7, -2.3, 4.6
LINE = "#7b8794"
CENTRED: dict[str, Any] = {"ha": "center", "va": "center", "color": "#26303b", "zorder": 4}


def draw(rooms: Rooms, file: Path) -> None:
    """Draw the rooms into a PNG, which also keeps the arrows as text."""
    rows = rooms.rows
    figure = plt.figure(figsize=(15, 13.5), dpi=84)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(LEFT, RIGHT), ylim=(-rows[GROUND] - 0.5, 0.5))
    axes.axis("off")
    colours = _draw_bands(axes, rows)
    for by, to in rooms.edges:
        _draw_arrow(axes, _place(by, rows), _place(to, rows), onto_ground=to == GROUND)
    for room in rooms.names[:-1]:
        x, y = _place(room, rows)
        _draw_box(axes, x, y, WIDTH, colours[rows[room]])
        axes.text(x, y + 0.21, room, fontsize=14.5, weight="bold", **CENTRED)
        about = textwrap.fill(purpose(room), 24)
        axes.text(x, y - 0.08, about, fontsize=9.5, linespacing=1.2, **CENTRED)
    middle = (COLUMNS["tasks"] + COLUMNS["presentation"]) / 2
    wide = COLUMNS["presentation"] - COLUMNS["tasks"] + WIDTH
    _draw_box(axes, middle, -rows[GROUND], wide, colours[rows[GROUND]])
    files = "   ·   ".join(sorted(rooms.files))
    axes.text(middle, -rows[GROUND], files, fontsize=14, weight="bold", **CENTRED)
    arrows = {"Description": json.dumps(rooms.edges), "Software": ""}
    figure.savefig(file, metadata=arrows)
    plt.close(figure)


def drawn_edges(file: Path) -> list[tuple[str, str]]:
    """The arrows of a picture."""
    with Image.open(file) as image:
        return [(by, to) for by, to in json.loads(image.info["Description"])]


def _place(room: str, rows: dict[str, int]) -> tuple[float, float]:
    return COLUMNS.get(room, 0.0), -rows[room]


def _draw_bands(axes: Axes, rows: dict[str, int]) -> list[str]:
    """Shade what belongs together; returns the colour of the boxes of every row."""
    starts = [rows[room] for room, _, _ in BANDS.values()]
    colours: list[str] = []
    ends = [*starts[1:], rows[GROUND] + 1]
    for (label, (_, shade, edge)), top, end in zip(BANDS.items(), starts, ends, strict=True):
        axes.axhspan(-end + 0.5, -top + 0.5, color=shade, lw=0, zorder=0)
        axes.text(LEFT + 0.08, -top, label, va="center", fontsize=15, color=edge, style="italic")
        colours += [edge] * (end - top)
    return colours


def _draw_box(axes: Axes, x: float, y: float, width: float, edge: str) -> None:
    corner = x - width / 2, y - HEIGHT / 2
    style = "round,pad=0,rounding_size=0.07"
    shape = FancyBboxPatch(corner, width, HEIGHT, boxstyle=style, mutation_aspect=0.9)
    shape.set(facecolor="white", edgecolor=edge, linewidth=2, zorder=3)
    axes.add_patch(shape)


def _draw_arrow(
    axes: Axes, begin: tuple[float, float], end: tuple[float, float], onto_ground: bool
) -> None:
    """A curve that leaves a box below and enters the other above; far ones may do either aside."""
    (x0, y0), (x1, y1) = begin, end
    x1 = x0 if onto_ground else x1  # the ground is as wide as the house
    if x0 - x1 > 1 and y0 - y1 > 2:
        x1, y0 = x1 + WIDTH / 2, y0 - HEIGHT / 2
        points = [(x0, y0), (x0, y1 + 1.2), (x0 - 0.4, y1), (x1, y1)]
    elif x1 - x0 > 1 and y0 - y1 > 2:
        x0, y1 = x0 + WIDTH / 2, y1 + HEIGHT / 2
        points = [(x0, y0), (x1 - 1.5, y0), (x1, y0 - 1), (x1, y1)]
    else:
        y0, y1 = y0 - HEIGHT / 2, y1 + HEIGHT / 2
        bend = (y0 - y1) * (0.55 if y0 - y1 < 2 else 0.35)
        points = [(x0, y0), (x0, y0 - bend), (x1, y1 + bend), (x1, y1)]
    path = Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])
    arrow = FancyArrowPatch(path=path, arrowstyle="-|>", mutation_scale=15, linewidth=1.6)
    arrow.set(color=LINE, zorder=2)
    axes.add_patch(arrow)
