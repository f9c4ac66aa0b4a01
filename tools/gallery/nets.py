"""Animations of small nets, one per client, with the units that the client holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from itertools import pairwise

import numpy as np

from submodel.drawing.style import FAINT, GROUND, INK
from tools.gallery.scenes import Played
from tools.gallery.strips import client_colours

_INPUTS, _OUTPUTS = 6, 4
_UNITS = 12  # of the 24 of each hidden layer: every second
_FRAMES = 12  # every second round
_SECONDS = 0.9  # each
_NET, _HEIGHT, _TOP = 190, 190, 34
_STEP = 50  # between layers


def draw_nets(played: Played) -> str:
    """Draw a scene as animated SVG, which is still if the user prefers reduced motion.

    Args:
        played: the cuts of the clients.
    """
    played, colours = _without_whole(played)
    width, height = 20 + len(played.titles) * _NET, _TOP + _HEIGHT + 30
    ground = "".join(
        f"<text x='{_left(place)}' y='20' fill='{INK}'>{escape(title)}</text>{_dots(place)}"
        for place, title in enumerate(played.titles)
    )
    frames = "".join(
        f"<g class='f' style='animation-delay:{frame * _SECONDS:g}s'>"
        + "".join(_net(played, place, frame, colour) for place, colour in enumerate(colours))
        + f"<text x='{_left(0)}' y='{height - 12}' fill='{INK}'>round {_round(frame) + 1}</text>"
        "</g>"
        for frame in range(_FRAMES)
    )
    share = 100 / _FRAMES
    style = (
        f".f{{visibility:hidden;animation:s {_FRAMES * _SECONDS:g}s step-end infinite}}"
        f"@keyframes s{{0%{{visibility:visible}}{share:.3f}%{{visibility:hidden}}}}"
        "@media (prefers-reduced-motion:reduce){.f{animation:none}"
        ".f:first-of-type{visibility:visible}}"
    )
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
        f"viewBox='0 0 {width} {height}' font-family='system-ui, sans-serif' font-size='12' "
        f"role='img'><title>Units held by clients of {escape(played.scene.name)}, round by round"
        f"</title><style>{style}</style>"
        f"<rect width='{width}' height='{height}' rx='6' fill='{GROUND}'/>{ground}{frames}</svg>\n"
    )


def _without_whole(played: Played) -> tuple[Played, list[str]]:
    """Select the clients that sometimes hold a part only, with their colours."""
    places = [
        place
        for place in range(len(played.titles))
        if any(not levels[place].all() for levels in played.levels.values())
    ]
    colours = client_colours(played)
    titles = [played.titles[place] for place in places]
    levels = {axis: [all_[place] for place in places] for axis, all_ in played.levels.items()}
    return replace(played, titles=titles, levels=levels), [colours[place] for place in places]


def _round(frame: int) -> int:
    return frame * 2


def _left(place: int) -> int:
    return 20 + place * _NET


def _x(place: int, layer: int) -> int:
    return _left(place) + 6 + layer * _STEP


def _y(unit: int, units: int) -> float:
    step = _HEIGHT / _UNITS
    return round(_TOP + _HEIGHT / 2 + (unit - (units - 1) / 2) * step, 1)


def _sizes() -> tuple[int, ...]:
    return _INPUTS, _UNITS, _UNITS, _OUTPUTS


def _dots(place: int) -> str:
    return "".join(
        f"<circle cx='{_x(place, layer)}' cy='{_y(unit, units)}' r='3' fill='{FAINT}' "
        "fill-opacity='.5'/>"
        for layer, units in enumerate(_sizes())
        for unit in range(units)
    )


def _net(played: Played, place: int, frame: int, colour: str) -> str:
    """Draw the units of a client in a round and the weights between them."""
    held_units: list[Sequence[int]] = [range(_INPUTS)]
    for clients in played.levels.values():
        levels = clients[place][_round(frame)][::2]
        held_units.append([int(unit) for unit in np.flatnonzero(levels)])
    held_units.append(range(_OUTPUTS))
    edges = []
    for layer, (ones, others) in enumerate(pairwise(held_units)):
        sizes = _sizes()
        for one in ones:
            start = f"{_x(place, layer)} {_y(one, sizes[layer])}"
            edges += [f"M{start}L{_x(place, layer + 1)} {_y(o, sizes[layer + 1])}" for o in others]
    dots = "".join(
        f"<circle cx='{_x(place, layer)}' cy='{_y(unit, _sizes()[layer])}' r='4' fill='{colour}'/>"
        for layer, units in enumerate(held_units)
        for unit in units
    )
    lines = f"<path d='{''.join(edges)}' stroke='{colour}' stroke-width='.5' stroke-opacity='.55'/>"
    return lines + dots
