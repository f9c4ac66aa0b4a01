"""The import graph as a picture: rooms in rows, and an arrow from each to what it imports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as Route
from PIL import Image

from submodel.presentation.labels import wrap_evenly
from submodel.presentation.style import (
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
from tools import rooms as house
from tools.rooms import Rooms, purpose

ROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "where people\ncome in": (LINES[0], ("testing", "api", "cli", "")),
    "what is shown": (LINES[0], ("", "", "", "report")),
    "many runs,\nmany machines": (LINES[4], ("", "federation", "experiments", "")),
    "one run": (LINES[2], ("runs", "prepare", "config", "")),
    "one round": (LINES[1], ("engines", "algorithm", "schemes", "")),
    "one client": (LINES[3], ("local", "tasks", "data", "")),
    "one model,\nall figures": (LINES[5], ("model", "presentation", "", "")),
    "the ground:\nno PyTorch": (INK, (house.GROUND,)),
}
"""The rows from top to bottom: what each is about, its colour, its rooms from left to right."""
PLACES = {
    room: (row, column)
    for row, (_, names) in enumerate(ROWS.values())
    for column, room in enumerate(names)
    if room
}
"""The row and the column of every room."""
WIDTH, HEIGHT, AISLE, LEFT = 1.28, 0.60, 0.27, 1.1  # inches
_PITCH = (DOUBLE - LEFT - WIDTH - 0.1) / 3  # from one column to the next
_STEP = 0.09  # between two lines in one aisle
_CENTRED: dict[str, Any] = {"ha": "center", "va": "center", "color": INK, "zorder": 4}
_HOW_TO_READ = (
    "An arrow leads to what a room imports. A room may use all that its arrows reach, "
    "and nothing above itself."
)
Point = tuple[float, float]


def draw(rooms: Rooms, file: Path) -> None:
    """Draw the rooms into a PNG, which also keeps the arrows as text."""
    height = _top(len(ROWS)) - AISLE + 0.1
    with in_style():
        figure = new_figure(DOUBLE, height, {"left": 0, "right": 1, "bottom": 0, "top": 1})
        axes = figure.add_subplot()
        axes.set(xlim=(0, DOUBLE), ylim=(height, 0))
        axes.axis("off")
        axes.text(0.1, AISLE / 2, _HOW_TO_READ, va="center", fontsize=SMALL_TEXT)
        _draw_rows(axes)
        for route in _routes(rooms.edges):
            _draw_arrow(axes, route)
        for room, place in PLACES.items():
            _draw_room(axes, room, place, rooms)
        arrows = {"Description": json.dumps(rooms.edges), "Software": ""}
        figure.savefig(file, dpi=200, metadata=arrows)


def drawn_edges(file: Path) -> list[tuple[str, str]]:
    """The arrows of a picture."""
    with Image.open(file) as image:
        return [(by, to) for by, to in json.loads(image.info["Description"])]


def _routes(edges: list[tuple[str, str]]) -> Iterator[list[Point]]:
    """The corners of every arrow.

    It goes down in the column of its room, or of the one it leads to where others stand in the way,
    and aside in the aisle between two rows, where arrows to one room share a line.
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
        elif x == x_end or to == house.GROUND:  # which is as wide as the house
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


def _draw_room(axes: Axes, room: str, place: tuple[int, int], rooms: Rooms) -> None:
    row, column = place
    is_ground = room == house.GROUND
    x, y = _middle(column), _top(row)
    width = 3 * _PITCH + WIDTH if is_ground else WIDTH
    colour = list(ROWS.values())[row][0]
    style = "round,pad=0,rounding_size=0.05"
    box = FancyBboxPatch((x - WIDTH / 2, y), width, HEIGHT, boxstyle=style)
    box.set(facecolor=GROUND, edgecolor=colour, linewidth=0.8, zorder=3)
    axes.add_patch(box)
    if is_ground:
        names = sorted(rooms.files)
        half = -(-len(names) // 2)
        files = "\n".join("  ·  ".join(line) for line in (names[:half], names[half:]))
        axes.text(x - WIDTH / 2 + width / 2, y + HEIGHT / 2, files, fontsize=TEXT, **_CENTRED)
        return
    axes.text(x, y + 0.11, room, fontsize=TEXT, weight="bold", **_CENTRED)
    about = wrap_evenly(purpose(room), 22)
    axes.text(x, y + 0.385, about, fontsize=SMALL_TEXT - 0.5, linespacing=1.15, **_CENTRED)


def _draw_arrow(axes: Axes, points: list[Point]) -> None:
    arrow = FancyArrowPatch(path=Route(points), arrowstyle="-|>", mutation_scale=7, linewidth=0.9)
    arrow.set(color=FRAME, zorder=2, joinstyle="round")
    axes.add_patch(arrow)
