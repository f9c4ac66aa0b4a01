"""Strips: a picture of rounds x units for every client, and one of the number of holders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from itertools import groupby

import numpy as np

from submodel.drawing.style import (
    FRAME,
    GROUND,
    INK,
    LINES,
    NONE_TO_MANY,
    capacity_colours,
    shade,
)
from tools.gallery.scenes import Levels, Played

_CELL, _GAP = 6, 20
_LEFT, _TOP, _BOTTOM = 44, 30, 46
_FONT = "font-family='system-ui, sans-serif' font-size='12'"


def draw_strips(played: Played) -> str:
    """Draw a scene as SVG.

    Args:
        played: the cuts of the clients.
    """
    clients = next(iter(played.levels.values()))
    rounds, units = clients[0].shape
    width, height = rounds * _CELL, units * _CELL
    colours = client_colours(played)
    panels = [
        _panel(place, title, levels, (GROUND, colour), played)
        for place, (title, levels, colour) in enumerate(
            zip(played.titles, clients, colours, strict=True)
        )
    ]
    if _have_one_colour(clients, colours):
        layers = [_cells(levels, (GROUND, colour), _x(len(clients), rounds))
                  for levels, colour in zip(clients, colours, strict=True)]  # fmt: skip
        frame = _panel(len(clients), "holders", np.zeros((rounds, units)), (GROUND,), played)
        panels += [*layers, frame]
    elif len(clients) > 1:
        total = np.sum([levels > 0 for levels in clients], axis=0) / len(clients)
        is_whole = all(set(np.unique(levels)) <= {0, 1} for levels in clients)
        title = f"how many of the {len(clients)} {'hold' if is_whole else 'train'} it"
        panels.append(_panel(len(clients), title, total, NONE_TO_MANY, played))
        panels.append(_legend(_x(len(clients), rounds), len(clients), _TOP + height + 12))
    count = len(clients) + (len(clients) > 1)
    full_width = _LEFT + count * (width + _GAP)
    full_height = _TOP + height + (_BOTTOM if played.joins else _BOTTOM - 18)
    labels = (
        f"<text x='{_LEFT}' y='{_TOP + height + 16}' fill='{INK}'>round 1 to {rounds}</text>"
        f"<text transform='translate({_LEFT - 12},{_TOP + height}) rotate(-90)' fill='{INK}'>"
        f"{units} {played.scene.rows}</text>"
    )
    if played.joins:
        labels += (
            f"<text x='{_LEFT}' y='{_TOP + height + 34}' fill='{INK}'>"
            "dashed: the cells are joined</text>"
        )
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{full_width}' height='{full_height}' "
        f"viewBox='0 0 {full_width} {full_height}' {_FONT} role='img'>"
        f"<title>Cuts of {escape(played.scene.name)} over {rounds} rounds</title>"
        f"<rect width='{full_width}' height='{full_height}' rx='6' fill='{GROUND}'/>"
        f"{''.join(panels)}{labels}</svg>\n"
    )


def _x(place: int, rounds: int) -> int:
    """Return the left edge of a panel."""
    return _LEFT + place * (rounds * _CELL + _GAP)


def _have_one_colour(clients: Sequence[Levels], colours: Sequence[str]) -> bool:
    """Return whether no unit has holders of several colours."""
    if len(set(colours)) == len(colours) == 1:
        return False
    by_colour = [
        np.any([levels > 0 for levels, c in zip(clients, colours, strict=True) if c == colour], 0)
        for colour in dict.fromkeys(colours)
    ]
    return bool((np.sum(by_colour, axis=0) <= 1).all())


def client_colours(played: Played) -> list[str]:
    """Choose colours by capacity if capacities differ, else by client or cell."""
    capacities = played.scene.capacities
    count = len(played.titles)
    if len(set(capacities)) == len(capacities):
        return capacity_colours(count)
    cells = played.scene.scheme.get("cells", count)
    return [LINES[place % cells % len(LINES)] for place in range(count)]


def _panel(place: int, title: str, levels: Levels, colours: Sequence[str], played: Played) -> str:
    rounds, units = levels.shape
    x = _x(place, rounds)
    frame = (
        f"<rect x='{x - 0.5}' y='{_TOP - 0.5}' width='{rounds * _CELL + 1}' "
        f"height='{units * _CELL + 1}' fill='none' stroke='{FRAME}'/>"
    )
    lines = "".join(
        f"<path d='M{x + (join + 1) * _CELL} {_TOP - 4}v{units * _CELL + 8}' "
        f"stroke='{INK}' stroke-width='1.5' stroke-dasharray='4 3'/>"
        for join in played.joins
    )
    text = f"<text x='{x}' y='{_TOP - 10}' fill='{INK}'>{escape(title)}</text>"
    return text + _cells(levels, colours, x) + frame + lines


def _cells(levels: Levels, colours: Sequence[str], x: int) -> str:
    """Draw runs of equal cells down each round, with a path for each colour."""
    paths: dict[float, list[str]] = defaultdict(list)
    for column, levels_of_round in enumerate(levels):
        start = 0
        for level, same in groupby(levels_of_round.tolist()):
            length = len(list(same))
            if level > 0:
                corner = f"M{x + column * _CELL} {_TOP + start * _CELL}"
                paths[level].append(f"{corner}h{_CELL}v{length * _CELL}h-{_CELL}z")
            start += length
    return "".join(
        f"<path fill='{shade(colours, level)}' d='{''.join(parts)}'/>"
        for level, parts in sorted(paths.items())
    )


def _legend(x: int, clients: int, y: int) -> str:
    swatches = []
    for count in range(clients + 1):
        colour = shade(NONE_TO_MANY, count / clients)
        left = x + count * 28
        swatches.append(
            f"<rect x='{left}' y='{y - 6}' width='12' height='12' fill='{colour}' "
            f"stroke='{FRAME}'/><text x='{left + 15}' y='{y + 4}' fill='{INK}'>{count}</text>"
        )
    return "".join(swatches)
