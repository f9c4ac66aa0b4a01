"""Tables for Markdown, terminals and notebooks; small pictures for notebooks.

Notebooks get HTML without scripts, for a light or a dark background. Text and lines take the colour
of the page (``currentColor``); the accent colour is visible on both. The markup is well-formed and
its texts are escaped, so that parts can be concatenated.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from html import escape
from itertools import groupby

from rich.table import Table

ACCENT = "#3d97e0"  # the colour of the fifth line of a figure
_CELL = "padding:2px 10px 2px 0;text-align:{side};vertical-align:top;border:0"
_FAINT = "opacity:.65"
_HEIGHT = 12  # of a strip, in pixels
_WIDTH = 240


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table on a Markdown page.

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
    """Make a table for the terminal, with numbers aligned to the right.

    Args:
        title: the title above the table.
        headings: the cells of the first line.
        rows: the cells of all other lines; more may be added later.
        words: headings of the columns of text, which are aligned to the left.

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
    """Put a title (plain text) above markup.

    >>> card("a < b")
    '<div style="font-size:13px;line-height:1.5"><div style="font-weight:600">a &lt; b</div></div>'
    """
    heading = f'<div style="font-weight:600">{escape(title)}</div>'
    return f'<div style="font-size:13px;line-height:1.5">{heading}{"".join(parts)}</div>'


def line_of_text(text: str) -> str:
    """Format plain text as a paler line below others."""
    return f'<div style="{_FAINT}">{escape(text)}</div>'


def cell(text: str) -> str:
    """Format plain text as a cell of `grid_of_cells`."""
    return escape(text)


def bold_cell(text: str) -> str:
    """Format plain text as a bold cell of `grid_of_cells`."""
    return f"<b>{escape(text)}</b>"


def grid_of_cells(
    headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()
) -> str:
    """Make a table.

    Args:
        headings: plain texts; if empty, the table has no first line.
        rows: markup: texts by `cell`, or pictures.
        numbers: the columns that are aligned to the right.
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
    """Draw units in a row, filled in proportion to how often each is held.

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
    """Draw a line through points, scaled to the range of both coordinates.

    Args:
        points: in ascending order of the first coordinate; points that are not finite are left out.
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
    axis = (
        f'<line x1="0" x2="{_WIDTH}" y1="{height - 0.5}" y2="{height - 0.5}" '
        'stroke="currentColor" stroke-opacity="0.3"></line>'
    )
    return _svg(_WIDTH, height, label, axis + line + dot)


def _svg(width: int, height: int, label: str, content: str) -> str:
    return (
        f'<svg role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'style="vertical-align:middle" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(label)}</title>{content}</svg>"
    )
