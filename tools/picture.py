"""Draw the import graph: packages in rows, with arrows to imported packages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as Route
from PIL import Image

from submodel.drawing.labels import wrap_evenly
from submodel.drawing.style import (
    DOUBLE,
    FRAME,
    GROUND,
    INK,
    LINES,
    SMALL_TEXT,
    TEXT,
    in_style,
    new_figure,
    shade,
)
from tools.packages import Packages, purpose

ROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "entry points": (LINES[0], ("testing", "api", "cli")),
    "results,\nmany runs": (LINES[4], ("report", "comparison", "federation")),
    "one run": (LINES[2], ("runs", "config", "engines")),
    "one round": (LINES[1], ("algorithm", "schemes", "tasks")),
    "data, models,\nfigures": (LINES[3], ("data", "model", "drawing")),
    "no PyTorch": (INK, ("", "core", "")),
}
"""Rows from top to bottom: topic, colour, and packages from left to right."""
PLACES = {
    package: (row, column)
    for row, (_, names) in enumerate(ROWS.values())
    for column, package in enumerate(names)
    if package
}
"""Row and column of every package."""
WIDTH, HEIGHT, AISLE, LEFT = 1.28, 0.60, 0.27, 1.1  # inches
_PITCH = (DOUBLE - LEFT - WIDTH - 0.1) / 2  # from one column to the next
_STEP = 0.09  # between two lines in an aisle
_CENTRED: dict[str, Any] = {"ha": "center", "va": "center", "color": INK, "zorder": 4}
_HOW_TO_READ = (
    "An arrow points to an imported package. A package may import every package that its arrows "
    "reach, and none above itself."
)
Point = tuple[float, float]


def draw(packages: Packages, file: Path) -> None:
    """Draw the packages into a PNG, with the arrows as metadata."""
    height = _top(len(ROWS)) - AISLE + 0.1
    with in_style():
        figure = new_figure(DOUBLE, height, {"left": 0, "right": 1, "bottom": 0, "top": 1})
        axes = figure.add_subplot()
        axes.set(xlim=(0, DOUBLE), ylim=(height, 0))
        axes.axis("off")
        axes.text(0.1, AISLE / 2, _HOW_TO_READ, va="center", fontsize=SMALL_TEXT)
        _draw_rows(axes)
        for route in _routes(packages.edges):
            _draw_arrow(axes, route)
        for package, place in PLACES.items():
            _draw_package(axes, package, place)
        arrows = {"Description": json.dumps(packages.edges), "Software": ""}
        figure.savefig(file, dpi=200, metadata=arrows)


def drawn_edges(file: Path) -> list[tuple[str, str]]:
    """Read the arrows from the metadata of a picture."""
    with Image.open(file) as image:
        return [(by, to) for by, to in json.loads(image.info["Description"])]


def _routes(edges: list[tuple[str, str]]) -> Iterator[list[Point]]:
    """Yield the corners of every arrow.

    An arrow goes down in the column of its package, or in the column of its target if other
    packages are in between, and sideways in the aisle between two rows, where arrows to one
    package share a line.
    """
    taken = set(PLACES.values())
    turns: dict[tuple[str, str], int] = {}  # the row below whose aisle an arrow turns
    for by, to in edges:
        (row, column), (end_row, _) = PLACES[by], PLACES[to]
        is_free = not any((between, column) in taken for between in range(row + 1, end_row))
        turns[by, to] = end_row if is_free else row + 1
    for by, to in edges:
        (row, column), (end_row, end_column) = PLACES[by], PLACES[to]
        x, x_end = _middle(column), _middle(end_column)
        if row == end_row:  # to the neighbour
            y = _top(row) + HEIGHT / 2
            yield [(x + WIDTH / 2, y), (x_end - WIDTH / 2, y)]
        elif x == x_end:
            yield [(x, _top(row) + HEIGHT), (x, _top(end_row))]
        else:
            others = {PLACES[t][1] for (_, t), turn in turns.items() if turn == turns[by, to]}
            lane = sorted(others).index(end_column)  # from the left, so that no two cross
            y = _top(turns[by, to]) - AISLE + (lane + 1) * _STEP
            yield [(x, _top(row) + HEIGHT), (x, y), (x_end, y), (x_end, _top(end_row))]


def _middle(column: int) -> float:
    return LEFT + column * _PITCH + WIDTH / 2


def _top(row: int) -> float:
    return row * (HEIGHT + AISLE) + AISLE


def _draw_rows(axes: Axes) -> None:
    for row, (label, (colour, _)) in enumerate(ROWS.items()):
        top = _top(row) - 0.04
        tint = shade((GROUND, colour), 0.07)
        axes.axhspan(top, top + HEIGHT + 0.08, color=tint, linewidth=0, zorder=0)
        axes.text(0.1, _top(row) + HEIGHT / 2, label, va="center", color=colour, weight="bold")


def _draw_package(axes: Axes, package: str, place: tuple[int, int]) -> None:
    row, column = place
    x, y = _middle(column), _top(row)
    colour = list(ROWS.values())[row][0]
    style = "round,pad=0,rounding_size=0.05"
    box = FancyBboxPatch((x - WIDTH / 2, y), WIDTH, HEIGHT, boxstyle=style)
    box.set(facecolor=GROUND, edgecolor=colour, linewidth=0.8, zorder=3)
    axes.add_patch(box)
    axes.text(x, y + 0.11, package, fontsize=TEXT, weight="bold", **_CENTRED)
    about = wrap_evenly(purpose(package), 22)
    axes.text(x, y + 0.385, about, fontsize=SMALL_TEXT - 0.5, linespacing=1.15, **_CENTRED)


def _draw_arrow(axes: Axes, points: list[Point]) -> None:
    arrow = FancyArrowPatch(path=Route(points), arrowstyle="-|>", mutation_scale=7, linewidth=0.9)
    arrow.set(color=FRAME, zorder=2, joinstyle="round")
    axes.add_patch(arrow)
