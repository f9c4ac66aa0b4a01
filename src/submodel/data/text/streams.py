"""Streams of text: one for every owner, read in pieces from files or columns of tables."""

from __future__ import annotations

import codecs
import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from submodel.errors import ConfigError, DataError, SubmodelError, plain
from submodel.extras import needs_extra

PIECE = 1 << 16
"""Characters that are read and encoded at a time, about; tokenisers slow down on longer texts."""


@dataclass(frozen=True)
class TextStream:
    """The text of one owner.

    Args:
        owner: the name of the owner; "" where text is nobody's.
        where: what errors call it, as the file.
        pieces: gives the text from its beginning, in pieces, whenever it is called.
        characters: how many it has.
        size: how many bytes they are, as UTF-8.
    """

    owner: str
    where: str
    pieces: Callable[[], Iterator[str]]
    characters: int
    size: int

    def part(self, start: int, stop: int) -> Iterator[str]:
        """The characters from ``start`` up to ``stop``, in pieces."""
        place = 0
        for piece in self.pieces():
            text = piece[max(start - place, 0) : max(stop - place, 0)]
            if text:
                yield text
            place += len(piece)
            if place >= stop:
                return


def measured_stream(owner: str, where: str, pieces: Callable[[], Iterator[str]]) -> TextStream:
    """A stream, read once to know how long it is.

    >>> measured_stream("a", "here", lambda: iter(["né", "e"])).size
    4
    """
    characters = size = 0
    for piece in pieces():
        characters += len(piece)
        size += len(piece.encode("utf-8"))
    return TextStream(owner, where, pieces, characters, size)


def text_stream(owner: str, where: str, text: str) -> TextStream:
    """A stream of a text that is in memory.

    >>> stream = text_stream("a", "here", "some text")
    >>> stream.characters, "".join(stream.part(5, 9))
    (9, 'text')
    """
    return measured_stream(owner, where, lambda: split_pieces([text]))


def split_pieces(texts: Iterable[str]) -> Iterator[str]:
    r"""The same text in pieces of at most `PIECE` characters, cut at line ends where it can be.

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


_CHUNK = 1 << 18


def check_encoding(encoding: str) -> None:
    """Raise unless this names an encoding of text.

    >>> check_encoding("rot13")
    Traceback (most recent call last):
    submodel.errors.ConfigError: data.encoding: 'rot13' is not an encoding of text, as 'utf-8' is
    """
    try:
        "".encode(encoding)
        b"".decode(encoding)
    except (LookupError, ValueError):
        raise ConfigError(
            [f"data.encoding: {encoding!r} is not an encoding of text, as 'utf-8' is"]
        ) from None


def read_decoded(file: Path, encoding: str) -> Iterator[str]:
    """The text of a file, a chunk at a time; raises with the byte that is not of the encoding."""
    try:
        with file.open("rb") as content:
            decoder = codecs.getincrementaldecoder(encoding)("strict")
            place = 0
            while True:
                chunk = content.read(_CHUNK)
                waiting = len(decoder.getstate()[0])  # bytes of a character that is not complete
                try:
                    text = decoder.decode(chunk, final=not chunk)
                except UnicodeDecodeError as error:
                    byte = place - waiting + error.start
                    raise DataError(
                        f"{file}: byte {byte:,} is not {encoding} ({error.reason}); set "
                        "data.encoding to what the file is written in"
                    ) from None
                except UnicodeError as error:  # as of utf-16 without its mark
                    raise DataError(f"{file}: not {encoding} ({error})") from None
                if text:
                    yield text
                if not chunk:
                    return
                place += len(chunk)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from None


def check_exists(path: Path) -> None:
    """Raise where there is nothing."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")


def read_plain(path: Path, encoding: str) -> list[TextStream]:
    """One stream of a file, which is nobody's; of a folder, one for each file in it.

    Files of a folder are owners by their path in it, in the order of their names; hidden ones are
    left alone.
    """
    check_exists(path)
    if not path.is_dir():
        return [measured_stream("", str(path), _pieces(path, encoding))]
    return [
        measured_stream(file.relative_to(path).as_posix(), str(file), _pieces(file, encoding))
        for file in visible_files(path)
    ]


def visible_files(path: Path) -> list[Path]:
    """A file itself; all files of a folder and its folders but for hidden ones."""
    if not path.is_dir():
        return [path]
    files = (file for file in path.rglob("*") if file.is_file())
    return sorted(f for f in files if _is_visible(f.relative_to(path)))


def _pieces(file: Path, encoding: str) -> Callable[[], Iterator[str]]:
    return partial(_read_pieces, file, encoding)


def _read_pieces(file: Path, encoding: str) -> Iterator[str]:
    return split_pieces(read_decoded(file, encoding))


def _is_visible(path: Path) -> bool:
    return not any(part.startswith(".") for part in path.parts)


_LONGEST_CELL = 1 << 27
Rows = Iterator[Mapping[str, Any]]


def read_table(path: Path, encoding: str, column: str, client: str | None) -> list[TextStream]:
    """The texts of a column, a line each: one stream, or one for every value of ``client``.

    Args:
        path: a file with one of the `TABLES` endings.
        encoding: of .csv and .jsonl.
        column: the column of texts.
        client: the column that says whose they are; None: nobody's.
    """
    check_exists(path)
    rows = partial(_rows, path, encoding, {column, client} - {None})
    return column_streams(path, rows, column, client)


def column_streams(
    where: Path | str, rows: Callable[[], Rows], column: str, client: str | None
) -> list[TextStream]:
    r"""The texts of a column of any table, as `read_table` has them.

    Args:
        where: what errors call the table.
        rows: gives its rows, whenever it is called.
        column: the column of texts.
        client: the column that says whose they are; None: nobody's.

    >>> rows = [{"text": "a", "by": 1}, {"text": "b", "by": 2}, {"text": "c", "by": 1}]
    >>> [(s.owner, *s.pieces()) for s in column_streams("here", lambda: iter(rows), "text", "by")]
    [('1', 'a\nc\n'), ('2', 'b\n')]
    """
    if client is None:
        texts = partial(_texts, where, rows, column)
        return [measured_stream("", str(where), lambda: split_pieces(texts()))]
    by_client: dict[str, list[str]] = {}
    for number, row in enumerate(rows(), 1):
        owner = _cell(where, row, number, client, "client")
        text = _text(where, row, number, column)
        by_client.setdefault(_name(where, number, client, owner), []).append(f"{text}\n")
    return [
        measured_stream(owner, f"{where}: {client} {owner!r}", partial(_join, texts))
        for owner, texts in sorted(by_client.items())
    ]


def _join(texts: Iterable[str]) -> Iterator[str]:
    return split_pieces(texts)


def _texts(where: Path | str, rows: Callable[[], Rows], column: str) -> Iterator[str]:
    for number, row in enumerate(rows(), 1):
        yield f"{_text(where, row, number, column)}\n"


def _text(where: Path | str, row: Mapping[str, Any], number: int, column: str) -> str:
    value = _cell(where, row, number, column, "column")
    if not isinstance(value, str):
        raise DataError(
            f"{where}: row {number:,}: {column} is {plain(repr(value), 60)}, which is no text"
        )
    if any("\ud800" <= character <= "\udfff" for character in value if character > "\ud7ff"):
        raise DataError(f"{where}: row {number:,}: {column} holds half a character (a surrogate)")
    return value


def _name(where: Path | str, number: int, client: str, owner: object) -> str:
    if isinstance(owner, str | int) and not isinstance(owner, bool) and str(owner):
        return str(owner)
    raise DataError(
        f"{where}: row {number:,}: {client} is {plain(repr(owner), 60)}; want a name or a number"
    )


def _cell(where: Path | str, row: Mapping[str, Any], number: int, column: str, key: str) -> object:
    if column not in row:
        raise ConfigError(
            [f"data.{key}: {where} has no {column!r} in row {number:,}, only {_list_names(row)}"]
        )
    value = row[column]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise DataError(f"{where}: row {number:,}: {column} is empty; leave such rows out")
    return value


def _list_names(names: Iterable[object]) -> str:
    return plain(", ".join(map(str, names)), 200) or "nothing"


def _rows(path: Path, encoding: str, columns: Set[object]) -> Rows:
    """The rows of a table, as it is read, with at least these columns if it has them."""
    try:
        yield from TABLES[path.suffix.lower()](path, encoding, columns)
    except (SubmodelError, GeneratorExit):
        raise
    except Exception as error:  # whatever reading a stranger's bytes raises
        raise DataError(
            f"{path}: cannot be read ({type(error).__name__}: {plain(error)})"
        ) from None


def _from_csv(path: Path, encoding: str, columns: Set[object]) -> Rows:  # noqa: ARG001
    before = csv.field_size_limit(_LONGEST_CELL)
    try:
        reader = csv.reader(_lines(path, encoding), strict=True)
        names = next(reader, [])
        if len(set(names)) < len(names):
            raise DataError(f"{path}: two columns of one name among {_list_names(names)}")
        for number, cells in enumerate(reader, 1):
            if not cells:
                continue  # an empty line
            if len(cells) != len(names):
                raise DataError(f"{path}: row {number:,} has {len(cells)} cells, not {len(names)}")
            yield {name: cell or None for name, cell in zip(names, cells, strict=True)}
    finally:
        csv.field_size_limit(before)


def _from_jsonl(path: Path, encoding: str, columns: Set[object]) -> Rows:  # noqa: ARG001
    for number, line in enumerate(_lines(path, encoding), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: line {number:,} is not JSON ({plain(error)})") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}: line {number:,} is not an object with columns")
        yield row


def _from_parquet(path: Path, encoding: str, columns: Set[object]) -> Rows:
    if encoding != "utf-8":
        raise ConfigError([f"data.encoding: {path} says itself how its text is written; leave it"])
    with needs_extra("hub", "a .parquet file"):
        from pyarrow import parquet
    with parquet.ParquetFile(path) as table:
        names = table.schema_arrow.names
        present_columns = [name for name in names if name in columns]
        has_all = len(present_columns) == len(columns)
        columns_to_read = present_columns if has_all else names  # which errors list
        for batch in table.iter_batches(batch_size=1024, columns=columns_to_read):
            yield from batch.to_pylist()


def _lines(path: Path, encoding: str) -> Iterator[str]:
    """The lines of a file with their ends."""
    rest = ""
    for text in read_decoded(path, encoding):
        *lines, rest = (rest + text).split("\n")
        yield from (f"{line}\n" for line in lines)
    if rest:
        yield rest


TABLES: Mapping[str, Callable[[Path, str, Set[object]], Rows]] = {
    ".csv": _from_csv,
    ".jsonl": _from_jsonl,
    ".parquet": _from_parquet,
}
"""Endings of files that are tables, and what reads them."""
