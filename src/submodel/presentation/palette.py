"""The colours of all figures and pages: told apart by everybody, readable on their ground.

Any two of `LINES` differ by 20 or more (CIE 1976) as people with full colour vision, protanopia,
deuteranopia and tritanopia see them, and each has a contrast of 3 to 1 or more to the ground, as
WCAG asks of what is drawn; `tests/presentation` measures both.
"""

from __future__ import annotations

from collections.abc import Sequence

INK = "#222222"
"""Text, and the line that others are compared with."""
GROUND = "#ffffff"
FAINT = "#b4b4b4"
"""Lines that only stand behind others."""
GRID = "#e6e6e6"
FRAME = "#8a8a8a"
LINES = ("#0b3f8c", "#f4590a", "#137a4c", "#a94284", "#3d97e0", "#6b3f00")
"""What is compared, in this order; `INK` may be one more."""
LINES_ON_DARK = ("#7c6cf6", "#ff661f", "#2a9663", "#bc4c98", "#97ccff", "#f6c681")
"""The same for a page with a dark ground, place by place."""
INK_ON_DARK, DARK_GROUND = "#f2f2f2", "#16181d"
DASHES = ("-", "--", ":", "-.")
"""Lines beyond the colours take them again, dashed otherwise."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LARGE_TO_SMALL = ("#0b2c5a", "#1f5f6b", "#5b7a3c", "#a8862b", "#cf7f4f")
NONE_TO_MANY = ("#f7f7f7", "#cfdbe8", "#8fb0d0", "#4a7fb5", "#1d4f8c", "#0b2c5a")
"""Amounts in a picture of cells, from nothing to most."""


def line_style(place: int) -> tuple[str, str]:
    """The colour and the dashes of a line among many.

    Args:
        place: Which line, from 0.

    >>> line_style(1), line_style(7)
    (('#f4590a', '-'), ('#f4590a', '--'))
    """
    turns, colour = divmod(place, len(LINES))
    return LINES[colour], DASHES[turns % len(DASHES)]


def capacity_colours(count: int) -> list[str]:
    """A colour for each capacity, from the largest (dark) to the smallest (light).

    Args:
        count: How many capacities there are.

    >>> capacity_colours(2)
    ['#0b2c5a', '#cf7f4f']
    """
    if count == 1:
        return [_LARGE_TO_SMALL[0]]
    return [shade(_LARGE_TO_SMALL, place / (count - 1)) for place in range(count)]


def shade(colours: Sequence[str], share: float) -> str:
    """The colour at a share of the way through some, mixed from its two neighbours.

    Args:
        colours: As ``#rrggbb``.
        share: From 0, the first, to 1, the last.

    >>> shade(("#000000", "#ffffff"), 0.5)
    '#808080'
    """
    place = min(max(share, 0.0), 1.0) * (len(colours) - 1)
    first = min(int(place), len(colours) - 2)
    pairs = zip(_channels(colours[first]), _channels(colours[first + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (place - first)):02x}" for a, b in pairs)


def _channels(colour: str) -> list[int]:
    return [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
