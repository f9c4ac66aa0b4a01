"""The columns of a table: read from CSV or Parquet, checked, and turned into numbers."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from submodel.data.table_facts import ColumnCode
from submodel.errors import DataError
from submodel.extras import needs_extra

_MOST_WORDS = 100  # different ones in a column that becomes as many columns of 0 and 1
_EMPTY = ("", "na", "nan", "null", "none")


@dataclass(frozen=True)
class Column:
    """The entries of a column: numbers, or words."""

    values: NDArray[Any]
    words: bool

    @cached_property
    def distinct(self) -> int:
        """How many different entries there are."""
        return len(np.unique(self.values))

    @cached_property
    def whole(self) -> bool:
        """Whether all are whole numbers."""
        finite = not self.words and bool(np.isfinite(self.values).all())
        return finite and bool((self.values == np.round(self.values)).all())

    def join(self, other: Column) -> Column:
        """Both, one below the other; words if either is."""
        words = self.words or other.words
        parts = [c.values.astype(str) if words else c.values for c in (self, other)]
        return Column(np.concatenate(parts), words)

    def check_complete(self, name: str, path: Path) -> None:
        """Raise where an entry is missing or is not finite."""
        if self.words:
            missing = np.flatnonzero(np.char.strip(self.values.astype(str)) == "")
        else:
            missing = np.flatnonzero(~np.isfinite(self.values.astype(np.float64)))
        if missing.size:
            entry = "is empty" if self.words else "is not a finite number"
            raise DataError(
                f"{path}: row {missing[0] + 1} of column {name!r} {entry}; fill it in, or leave "
                "the row or the column out"
            )


def read_columns(path: Path, words: Collection[str] = ()) -> dict[str, Column]:
    """The columns of a table by name, from .csv, .tsv or .parquet.

    Args:
        path: the file.
        words: names of columns that are words, even if all of them could be numbers.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    read = _read_parquet if path.suffix == ".parquet" else _read_csv
    columns = read(path, words)
    if not columns or not len(next(iter(columns.values())).values):
        raise DataError(f"{path}: no rows in it")
    return columns


def _read_csv(path: Path, words: Collection[str]) -> dict[str, Column]:
    delimiter = "\t" if path.suffix == ".tsv" else ","
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter)
            head = next(reader, [])
            rows = [row for row in reader if row]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except (OSError, csv.Error) as error:
        raise DataError(f"{path}: {error}") from None
    if len(set(head)) != len(head) or not all(head):
        raise DataError(f"{path}: its first line must name the columns, each by another name")
    for number, row in enumerate(rows, 1):
        if len(row) != len(head):
            raise DataError(f"{path}: row {number} has {len(row)} entries, not {len(head)}")
    return {
        name: _column(np.array([row[place] for row in rows], dtype=str), name in words)
        for place, name in enumerate(head)
    }


def _column(texts: NDArray[np.str_], words: bool) -> Column:
    """Numbers where all entries are; a missing one is not a number."""
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
        parquet: Any = importlib.import_module("pyarrow.parquet")
    try:
        table = parquet.read_table(path, memory_map=True)
    except Exception as error:  # Arrow raises a dozen kinds for a damaged file
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
    """A column of words, whatever its entries are; what is missing is empty.

    >>> word_column(["a", 1, None, float("nan")]).values.tolist()
    ['a', '1', '', '']
    """
    texts = ["" if value is None or value != value else str(value) for value in values]
    return Column(np.array(texts, dtype=str), words=True)


def code_columns(
    columns: Mapping[str, Column], train: NDArray[np.int64], path: Path
) -> tuple[ColumnCode, ...]:
    """How columns become numbers: standardised by the training part, words as columns of 0 and 1.

    Args:
        columns: the columns by name.
        train: the rows of the training part.
        path: where they are from, for errors.

    >>> column = Column(np.array([1.0, 3.0, 5.0]), words=False)
    >>> code_columns({"a": column}, np.array([0, 1]), Path("t.csv"))
    (ColumnCode(name='a', mean=2.0, deviation=1.0, words=None),)
    """
    codes = []
    for name, column in columns.items():
        column.check_complete(name, path)
        if column.words:
            words = np.unique(column.values[train])
            if len(words) > _MOST_WORDS:
                raise DataError(
                    f"{path}: column {name!r} has {len(words):,} different words; leave it out of "
                    f"data.columns, or have at most {_MOST_WORDS}"
                )
            codes.append(ColumnCode(name, words=tuple(words.tolist())))
            continue
        values = column.values.astype(np.float64)
        mean, deviation = values[train].mean(), values[train].std()
        codes.append(ColumnCode(name, float(mean), float(deviation or 1.0)))
    return tuple(codes)


def encode_columns(
    columns: Mapping[str, Column], codes: Sequence[ColumnCode], path: Path
) -> NDArray[np.float32]:
    """The columns that have a code as numbers.

    Args:
        columns: the columns by name.
        codes: how each becomes numbers; words that a code does not have are none of its columns.
        path: where they are from, for errors.

    >>> column = Column(np.array([1.0, 3.0, 5.0]), words=False)
    >>> encode_columns({"a": column}, [ColumnCode("a", 2.0, 1.0)], Path("t.csv")).ravel().tolist()
    [-1.0, 1.0, 3.0]
    """
    parts = []
    for code in codes:
        column = columns[code.name]
        column.check_complete(code.name, path)
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
        else:
            values = column.values.astype(np.float64)
            parts.append(((values - code.mean) / code.deviation)[:, None])
    return np.concatenate(parts, axis=1).astype(np.float32)
