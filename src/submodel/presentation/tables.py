"""Tables that reports share: for a Markdown page and for the terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rich.table import Table


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table as the lines of a Markdown page.

    Args:
        headings: The first line's cells.
        rows: The cells of every line below it.

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
        title: Stands above it.
        headings: The first line's cells.
        rows: The cells of every line below it; more may be added later.
        words: The headings whose cells are words: to the left, folded where there is no room.

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
