"""Streams of text: one per owner, read in pieces from files or columns of tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from submodel.core.errors import ConfigError, DataError, plain
from submodel.data.files import read_decoded
from submodel.data.tables import Rows, list_names, read_rows
from submodel.data.text.tokens import HALVES

PIECE = 1 << 16
"""Approximate number of characters encoded at once; tokenisers slow down on longer texts."""


@dataclass(frozen=True)
class TextStream:
    """The text of one owner."""

    owner: str  # "" for text without an owner
    where: str  # the name in errors, such as the file
    pieces: Callable[[], Iterator[str]]  # reads the text from its beginning, in pieces
    characters: int
    size: int  # in bytes of UTF-8; of a part, an upper bound
    start: int = 0  # of a part: its position in the whole

    def part(self, start: int, stop: int) -> Iterator[str]:
        """Yield the characters from ``start`` to ``stop``, in pieces."""
        place = 0
        for piece in self.pieces():
            text = piece[max(start - place, 0) : max(stop - place, 0)]
            if text:
                yield text
            place += len(piece)
            if place >= stop:
                return

    def cut(self, start: int, stop: int) -> TextStream:
        """Return a part as another stream; its size assumes at most four bytes per character."""
        size = min(4 * (stop - start), self.size)
        return replace(
            self, pieces=partial(self.part, start, stop), characters=stop - start, size=size,
            start=start,
        )  # fmt: skip


def measured_stream(owner: str, where: str, texts: Callable[[], Iterable[str]]) -> TextStream:
    """Make a stream of texts that can be read repeatedly; they are read once for the length.

    >>> stream = measured_stream("a", "here", lambda: ["some", " né"])
    >>> stream.characters, stream.size, "".join(stream.part(5, 7))
    (7, 8, 'né')
    """
    characters = size = 0
    for piece in split_pieces(texts()):
        characters += len(piece)
        size += len(piece.encode("utf-8"))
    return TextStream(owner, where, lambda: split_pieces(texts()), characters, size)


def text_stream(owner: str, where: str, text: str) -> TextStream:
    """Make a stream of a text in memory."""
    return measured_stream(owner, where, lambda: [text])


def split_pieces(texts: Iterable[str]) -> Iterator[str]:
    r"""Yield the text in pieces of at most `PIECE` characters, cut at line ends if possible.

    >>> [len(piece) for piece in split_pieces(["a" * 10 + "\n", "b" * PIECE])]
    [11, 65536]
    """
    rest = ""
    for text in texts:
        rest += text
        while len(rest) > PIECE:
            end = rest.rfind("\n", 0, PIECE) + 1 or PIECE
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def check_exists(path: Path) -> None:
    """Raise if the path does not exist."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")


def read_plain(path: Path, encoding: str) -> list[TextStream]:
    """Return one stream of a file, without an owner; of a folder, one for each file.

    The owner of a folder's file is its path in the folder, in alphabetical order; hidden files are
    skipped.
    """
    check_exists(path)
    if not path.is_dir():
        return [measured_stream("", str(path), partial(read_decoded, path, encoding))]
    return [
        measured_stream(
            file.relative_to(path).as_posix(), str(file), partial(read_decoded, file, encoding)
        )
        for file in visible_files(path)
    ]


def visible_files(path: Path) -> list[Path]:
    """Return the file itself; of a folder, all files in it and below that are not hidden."""
    if not path.is_dir():
        return [path]
    return sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and not any(p.startswith(".") for p in file.relative_to(path).parts)
    )


def read_table(path: Path, encoding: str, column: str, client: str | None) -> list[TextStream]:
    """Return the texts of a column as lines: one stream, or one per value of ``client``."""
    check_exists(path)
    rows = partial(read_rows, path, encoding, {column, client} - {None})
    return column_streams(path, rows, column, client)


def column_streams(
    where: Path | str, rows: Callable[[], Rows], column: str, client: str | None
) -> list[TextStream]:
    r"""Return the texts of a column of any table, as `read_table` does.

    >>> rows = [{"text": "a", "by": 1}, {"text": "b", "by": 2}, {"text": "c", "by": 1}]
    >>> [(s.owner, *s.pieces()) for s in column_streams("here", lambda: iter(rows), "text", "by")]
    [('1', 'a\nc\n'), ('2', 'b\n')]
    """

    def lines() -> Iterator[tuple[str, str]]:
        for number, row in enumerate(rows(), 1):
            yield _read_row(where, number, row, column, client)

    if client is None:
        return [measured_stream("", str(where), lambda: (line for _, line in lines()))]
    by_client: dict[str, list[str]] = {}
    for owner, line in lines():
        by_client.setdefault(owner, []).append(line)
    return [
        measured_stream(owner, f"{where}: {client} {owner!r}", partial(iter, texts))
        for owner, texts in sorted(by_client.items())
    ]


def _read_row(
    where: Path | str, number: int, row: Mapping[str, Any], column: str, client: str | None
) -> tuple[str, str]:
    """Return the owner of a row, "" without a column of clients, and its text as a line."""
    for name, key in ((client, "client"), (column, "column")):
        if name is None:
            continue
        if name not in row:
            raise ConfigError(
                f"data.{key}: {where} has no {name!r} in row {number:,}, only {list_names(row)}"
            )
        if row[name] is None or (isinstance(row[name], float) and math.isnan(row[name])):
            raise DataError(f"{where}: row {number:,}: {name} is empty; remove such rows")
    text = row[column]
    if not isinstance(text, str):
        raise DataError(f"{where}: row {number:,}: {column} is {plain(repr(text), 60)}, not a text")
    if HALVES.search(text):
        raise DataError(f"{where}: row {number:,}: {column} holds half a character (a surrogate)")
    if client is None:
        return "", f"{text}\n"
    owner = row[client]
    if not isinstance(owner, str | int) or isinstance(owner, bool) or not str(owner):
        given = plain(repr(owner), 60)
        raise DataError(f"{where}: row {number:,}: {client} is {given}; want a name or a number")
    return str(owner), f"{text}\n"
