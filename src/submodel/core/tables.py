"""Tables for Markdown, terminals and notebooks; and small pictures for notebooks.

Notebooks get HTML without scripts, for a light or a dark ground. Text and lines take the colour of
the page (``currentColor``); colours stand out on both grounds. The markup is well-formed and its
texts are escaped, so that parts can be put together as they are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from html import escape
from itertools import groupby

from rich.table import Table

ACCENT = "#3d97e0"  # as the fifth line of a figure
_CELL = "padding:2px 10px 2px 0;text-align:{side};vertical-align:top;border:0"
_FAINT = "opacity:.65"
_HEIGHT = 12  # of a strip, in pixels
_WIDTH = 240


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table as the lines of a Markdown page.

    >>> list(markdown_table(["a", "b"], [["1", "2"]]))
    ['| a | b |', '| --- | --- |', '| 1 | 2 |']
    """
    yield "| " + " | ".join(headings) + " |"
    yield "|" + " --- |" * len(headings)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def text_table(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]] = (),
    words: Collection[str] = (),
) -> Table:
    """A table for the terminal, its numbers to the right.

    Args:
        title: above it.
        headings: the cells of the first line.
        rows: the cells of every line below it; more may be added later.
        words: the headings of words, which are set to the left.

    >>> text_table("two", ["way", "loss"], [["rolling", "1.5"]], words=["way"]).row_count
    1
    """
    table = Table(title=title)
    for heading in headings:
        side = "left" if heading in words else "right"
        table.add_column(heading, justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*row)
    return table


def card(title: str, *parts: str) -> str:
    """A title (plain text) and markup below it.

    >>> card("a < b")
    '<div style="font-size:13px;line-height:1.5"><div style="font-weight:600">a &lt; b</div></div>'
    """
    heading = f'<div style="font-weight:600">{escape(title)}</div>'
    return f'<div style="font-size:13px;line-height:1.5">{heading}{"".join(parts)}</div>'


def line_of_text(text: str) -> str:
    """Plain text as a line below others, a little paler."""
    return f'<div style="{_FAINT}">{escape(text)}</div>'


def cell(text: str) -> str:
    """Plain text as a cell of `grid_of_cells`."""
    return escape(text)


def bold_cell(text: str) -> str:
    """Plain text that stands out, as a cell of `grid_of_cells`."""
    return f"<b>{escape(text)}</b>"


def grid_of_cells(
    headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()
) -> str:
    """A table.

    Args:
        headings: plain texts; none: there is no first line.
        rows: markup: texts by `cell`, pictures as they are.
        numbers: the columns that are set to the right.
    """

    def side(place: int) -> str:
        return _CELL.format(side="right" if place in numbers else "left")

    head = "".join(
        f'<th style="{side(place)};font-weight:400;{_FAINT}">{escape(text)}</th>'
        for place, text in enumerate(headings)
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td style="{side(place)}">{part}</td>' for place, part in enumerate(row))
        + "</tr>"
        for row in rows
    )
    first = f"<tr>{head}</tr>" if headings else ""
    style = (
        "border-collapse:collapse;margin:4px 0;border:0;background:none;color:inherit;font:inherit"
    )
    return f'<table style="{style}">{first}{body}</table>'


def strip(levels: Sequence[float], label: str) -> str:
    """Units in a row, filled as far as each is held.

    Args:
        levels: from 0, empty, to 1, full.
        label: a description, for people who cannot see it.

    >>> strip([1, 1, 0], "2 of 3").count("<rect")
    2
    """
    width = _WIDTH / max(1, len(levels))
    frame = (
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="currentColor" fill-opacity="0.12"></rect>'
    )
    blocks, start = [], 0
    for level, same in groupby(levels):
        length = len(list(same))
        if level > 0:
            opacity = "" if level >= 1 else f' fill-opacity="{level:.2f}"'
            blocks.append(
                f'<rect x="{start * width:.2f}" width="{length * width:.2f}" height="{_HEIGHT}" '
                f'fill="{ACCENT}"{opacity}></rect>'
            )
        start += length
    return _svg(_WIDTH, _HEIGHT, label, frame + "".join(blocks))


def curve(points: Sequence[tuple[float, float]], label: str, height: int = 60) -> str:
    """A line through points, between the least and the most of both coordinates.

    Args:
        points: by ascending first coordinate; those that are not finite are left out.
        label: a description, for people who cannot see it.
        height: in pixels.

    >>> 'points="4.0,56.0 236.0,4.0"' in curve([(1, 0.5), (2, 0.75)], "accuracy")
    True
    """
    points = [point for point in points if all(map(math.isfinite, point))]
    if not points:
        return ""
    rim = 4.0
    (x_least, x_most), (y_least, y_most) = (
        (min(values), max(values)) for values in zip(*points, strict=True)
    )

    def place(x: float, y: float) -> str:
        across = (x - x_least) / ((x_most - x_least) or 1)
        up = (y - y_least) / ((y_most - y_least) or 1)
        right, down = rim + across * (_WIDTH - 2 * rim), height - rim - up * (height - 2 * rim)
        return f"{right:.1f},{down:.1f}"

    places = [place(x, y) for x, y in points]
    last_x, last_y = places[-1].split(",")
    line = (
        f'<polyline points="{" ".join(places)}" fill="none" stroke="{ACCENT}" stroke-width="2" '
        'stroke-linejoin="round"></polyline>'
    )
    dot = f'<circle cx="{last_x}" cy="{last_y}" r="3" fill="{ACCENT}"></circle>'
    ground = (
        f'<line x1="0" x2="{_WIDTH}" y1="{height - 0.5}" y2="{height - 0.5}" '
        'stroke="currentColor" stroke-opacity="0.3"></line>'
    )
    return _svg(_WIDTH, height, label, ground + line + dot)


def _svg(width: int, height: int, label: str, content: str) -> str:
    return (
        f'<svg role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'style="vertical-align:middle" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(label)}</title>{content}</svg>"
    )
