"""Text from a column of a table: .csv, .jsonl or .parquet, a row at a time."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import partial
from pathlib import Path
from typing import Any

from submodel.data.text.reading import check_exists, read_decoded
from submodel.data.text.streams import TextStream, measured_stream, split_pieces
from submodel.errors import ConfigError, DataError, SubmodelError, plain
from submodel.extras import needs_extra

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
