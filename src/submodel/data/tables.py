"""Tables from CSV, JSON lines or Parquet, read as columns of numbers and words, or as rows."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from submodel.core.errors import ConfigError, DataError, SubmodelError, plain
from submodel.core.extras import needs_extra
from submodel.data.facts import ColumnCode, Missing
from submodel.data.files import read_decoded

_MOST_WORDS = 100  # different words of a column, each of which becomes a column of 0 and 1
_EMPTY = ("", "na", "nan", "null", "none")
Rows = Iterator[Mapping[str, Any]]


@dataclass(frozen=True)
class Column:
    """The entries of a column: numbers or words."""

    values: NDArray[Any]
    words: bool

    @cached_property
    def distinct(self) -> int:
        """Number of different entries."""
        return len(np.unique(self.values))

    @cached_property
    def whole(self) -> bool:
        """Whether all entries are whole numbers."""
        finite = not self.words and bool(np.isfinite(self.values).all())
        return finite and bool((self.values == np.round(self.values)).all())

    @cached_property
    def missing(self) -> NDArray[np.bool_]:
        """Mask of rows without an entry: empty words, and NaN."""
        if self.words:
            blank: NDArray[np.bool_] = np.char.strip(self.values.astype(str)) == ""
            return blank
        return np.isnan(self.values.astype(np.float64))

    def join(self, other: Column) -> Column:
        """Concatenate both columns, as words if either holds words."""
        words = self.words or other.words
        parts = [
            np.where(c.missing, "", c.values.astype(str)) if words else c.values
            for c in (self, other)
        ]
        return Column(np.concatenate(parts), words)

    def check_finite(self, name: str, path: Path) -> None:
        """Raise if a number is infinite."""
        if not self.words and (wrong := np.flatnonzero(np.isinf(self.values))).size:
            raise DataError(f"{path}: row {wrong[0] + 1} of column {name!r} is not a finite number")


def describe_missing(columns: Mapping[str, Column]) -> str:
    """Describe columns with missing cells: number and first row; empty if there are none.

    >>> numbers = Column(np.array([1.0, np.nan, np.nan]), words=False)
    >>> describe_missing({"a": numbers, "b": Column(np.array(["x", "y", "z"]), words=True)})
    "'a' (2, first in row 2)"
    """
    places = {name: np.flatnonzero(column.missing) for name, column in columns.items()}
    return ", ".join(
        f"{name!r} ({len(rows):,}, first in row {rows[0] + 1})"
        for name, rows in places.items()
        if rows.size
    )


def read_columns(path: Path, words: Collection[str] = ()) -> dict[str, Column]:
    """Read the columns of a .csv, .tsv or .parquet table by name; ``words`` are never numbers."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    read = _read_parquet if path.suffix == ".parquet" else _read_csv
    columns = read(path, words)
    if not columns or not len(next(iter(columns.values())).values):
        raise DataError(f"{path}: no rows in it")
    return columns


def csv_rows(
    lines: Iterable[str], path: Path, delimiter: str = ",", strict: bool = False
) -> Iterator[list[str]]:
    """Yield the rows of CSV except empty ones, the first with the columns' names.

    Args:
        lines: the lines of the file.
        path: the file, for errors.
        delimiter: the separator of cells.
        strict: whether quotes must be correct; then cells may have 128 MB.
    """
    before = csv.field_size_limit(1 << 27 if strict else 1 << 17)
    try:
        reader = csv.reader(lines, delimiter=delimiter, strict=strict)
        names = next(reader, [])
        if len(set(names)) < len(names):
            raise DataError(
                f"{path}: two columns of one name among {list_names(names)}; its first line must "
                "name the columns differently"
            )
        yield names
        for number, row in enumerate(filter(None, reader), 1):
            if len(row) != len(names):
                raise DataError(f"{path}: row {number:,} has {len(row)} entries, not {len(names)}")
            yield row
    finally:
        csv.field_size_limit(before)


def list_names(names: Iterable[object]) -> str:
    """Format names of columns for errors."""
    return plain(", ".join(map(str, names)), 200) or "nothing"


def _read_csv(path: Path, words: Collection[str]) -> dict[str, Column]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head, *rows = csv_rows(file, path, "\t" if path.suffix == ".tsv" else ",")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except (OSError, csv.Error) as error:
        raise DataError(f"{path}: {error}") from None
    if not all(head):
        raise DataError(f"{path}: a column without a name in its first line")
    return {
        name: _column(np.array([row[place] for row in rows], dtype=str), name in words)
        for place, name in enumerate(head)
    }


def _column(texts: NDArray[np.str_], words: bool) -> Column:
    """Parse numbers if all entries are; a missing entry becomes NaN."""
    if words:
        return Column(texts, words=True)
    blank = np.isin(np.char.lower(np.char.strip(texts)), _EMPTY)
    try:
        values = np.where(blank, "nan", texts).astype(np.float64)
    except ValueError:
        return Column(texts, words=True)
    return Column(values, words=False)


def _read_parquet(path: Path, words: Collection[str]) -> dict[str, Column]:
    with needs_extra("hub", "a Parquet file"):
        from pyarrow import parquet
    try:
        table = parquet.read_table(path, memory_map=True)
    except Exception as error:  # Arrow raises a dozen kinds of errors for a damaged file
        raise DataError(f"{path}: not a whole Parquet file ({error})") from None
    columns = {}
    for name in table.column_names:
        values = table[name].to_numpy()
        if values.dtype.kind in "iufb" and name not in words:
            columns[name] = Column(values.astype(np.float64), words=False)
        else:
            columns[name] = word_column(table[name].to_pylist())
    return columns


def word_column(values: Sequence[Any]) -> Column:
    """Convert entries of any type to a column of words; a missing entry is empty.

    >>> word_column(["a", 1, None, float("nan")]).values.tolist()
    ['a', '1', '', '']
    """
    texts = ["" if value is None or value != value else str(value) for value in values]
    return Column(np.array(texts, dtype=str), words=True)


def code_columns(
    columns: Mapping[str, Column], train: NDArray[np.int64], path: Path, missing: Missing = None
) -> tuple[ColumnCode, ...]:
    """Choose conversions of columns: standardise by the training part; words become 0 and 1.

    >>> column = Column(np.array([1.0, 3.0, 5.0]), words=False)
    >>> code_columns({"a": column}, np.array([0, 1]), Path("t.csv"))
    (ColumnCode(name='a', mean=2.0, deviation=1.0, words=None, fill=(), marks_missing=False),)
    """
    codes = []
    for name, column in columns.items():
        column.check_finite(name, path)
        absent = column.missing[train]
        if absent.all():
            raise DataError(
                f"{path}: column {name!r} has no entry in the training part; leave it out of "
                "data.columns"
            )
        if column.words:
            entries = np.where(absent, "", column.values[train])
            words, counts = np.unique(
                entries if missing == "category" else entries[~absent], return_counts=True
            )
            if len(words) > _MOST_WORDS:
                raise DataError(
                    f"{path}: column {name!r} has {len(words):,} different words; leave it out of "
                    f"data.columns, or have at most {_MOST_WORDS}"
                )
            fill = tuple((counts / counts.sum()).tolist()) if missing == "mean" else ()
            codes.append(ColumnCode(name, words=tuple(words.tolist()), fill=fill))
            continue
        values = column.values.astype(np.float64)[train][~absent]
        mean, deviation = float(values.mean()), float(values.std()) or 1.0
        marks = missing == "category" and bool(absent.any())
        codes.append(ColumnCode(name, mean, deviation, marks_missing=marks))
    return tuple(codes)


def encode_columns(
    columns: Mapping[str, Column], codes: Sequence[ColumnCode], path: Path
) -> NDArray[np.float32]:
    """Convert the columns that have a code to numbers; the codes define missing cells.

    Words without a code are zero in all columns.

    >>> column = Column(np.array([1.0, 3.0, 5.0]), words=False)
    >>> encode_columns({"a": column}, [ColumnCode("a", 2.0, 1.0)], Path("t.csv")).ravel().tolist()
    [-1.0, 1.0, 3.0]
    """
    parts = []
    for code in codes:
        column = columns[code.name]
        column.check_finite(code.name, path)
        if column.words != (code.words is not None):
            kinds = {True: "words", False: "numbers"}
            raise DataError(
                f"{path}: column {code.name!r} holds {kinds[column.words]}, and the run's holds "
                f"{kinds[not column.words]}"
            )
        if code.words is not None:
            same: NDArray[np.bool_] = (
                column.values[:, None] == np.array(code.words, dtype=str)[None]
            )
            parts.append(same.astype(np.float64))
            if code.fill:
                parts[-1][column.missing] = code.fill
            elif "" in code.words:
                parts[-1][column.missing] = np.array(code.words, dtype=str) == ""
        else:
            values = np.where(column.missing, code.mean, column.values.astype(np.float64))
            parts.append(((values - code.mean) / code.deviation)[:, None])
            if code.marks_missing:
                parts.append(column.missing.astype(np.float64)[:, None])
    return np.concatenate(parts, axis=1).astype(np.float32)


def read_rows(path: Path, encoding: str, columns: Set[object]) -> Rows:
    """Yield the rows of a table as it is read, with these columns only if it has all of them."""
    try:
        yield from TABLES[path.suffix.lower()](path, encoding, columns)
    except (SubmodelError, GeneratorExit):
        raise
    except Exception as error:  # reading untrusted bytes may raise anything
        raise DataError(
            f"{path}: cannot be read ({type(error).__name__}: {plain(error)})"
        ) from None


def _csv_rows(path: Path, encoding: str, columns: Set[object]) -> Rows:  # noqa: ARG001
    rows = csv_rows(_lines(path, encoding), path, strict=True)
    names = next(rows)
    for row in rows:
        yield {name: cell or None for name, cell in zip(names, row, strict=True)}


def _jsonl_rows(path: Path, encoding: str, columns: Set[object]) -> Rows:  # noqa: ARG001
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


def _parquet_rows(path: Path, encoding: str, columns: Set[object]) -> Rows:
    if encoding != "utf-8":
        raise ConfigError(f"data.encoding: {path} declares the encoding of its text; leave it out")
    with needs_extra("hub", "a .parquet file"):
        from pyarrow import parquet
    with parquet.ParquetFile(path) as table:
        names = table.schema_arrow.names
        present_columns = [name for name in names if name in columns]
        has_all = len(present_columns) == len(columns)
        columns_to_read = present_columns if has_all else names  # for the error's list
        for batch in table.iter_batches(batch_size=1024, columns=columns_to_read):
            yield from batch.to_pylist()


def _lines(path: Path, encoding: str) -> Iterator[str]:
    """Yield the lines of a file, with their ends."""
    rest = ""
    for text in read_decoded(path, encoding):
        *lines, rest = (rest + text).split("\n")
        yield from (f"{line}\n" for line in lines)
    if rest:
        yield rest


TABLES: Mapping[str, Callable[[Path, str, Set[object]], Rows]] = {
    ".csv": _csv_rows,
    ".jsonl": _jsonl_rows,
    ".parquet": _parquet_rows,
}
"""Reader functions of tables, by file suffix."""
