"""Tables: columns of numbers or words, a target, and optionally a column of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from submodel.core.errors import ConfigError, DataError, plain, refuse
from submodel.core.options import PathText, Section
from submodel.core.randomness import generator
from submodel.data.examples import Dataset, Examples
from submodel.data.facts import ColumnCode, Missing, Owners, TableFacts, owners_of
from submodel.data.sources import SourceContext
from submodel.data.tables import (
    Column,
    code_columns,
    describe_missing,
    encode_columns,
    read_columns,
)

_MOST_CLASSES = 1000
Columns = dict[str, Column]
MISSING = (
    "of cells without an entry (default: they are refused): mean fills numbers by the training "
    "mean, and the columns of 0 and 1 of words likewise; category adds a word for missing ones, "
    "and for numbers the mean and a column that marks them; drop leaves such rows out"
)


class TableOptions(Section):
    """The keys of ``csv`` and ``parquet``."""

    target: str = Field("target", description="target column")
    columns: list[str] | None = Field(None, description="feature columns (default: all others)")
    client: str | None = Field(None, description="column that names the client of a row")
    kind: Literal["auto", "numbers", "labels"] = Field(
        "auto", description="of the target; auto: words and few whole numbers are labels"
    )
    standardise: bool | None = Field(
        None,
        description="convert a target of numbers to standard deviations from its mean, of the "
        "training part (default: yes; mae is in its own unit either way)",
    )
    missing: Missing = Field(None, description=MISSING)
    test_path: PathText | None = Field(None, description="a second table, the test part")
    test_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="without test_path: the share of rows in the test part, drawn once"
    )


class Table:
    """A file of rows; numbers are standardised by the training part, words become 0 and 1."""

    Options = TableOptions

    @classmethod
    def configured(cls, options: TableOptions, context: SourceContext) -> Dataset:
        """Read the rows as tensors."""
        path, facts = Path(context.argument).expanduser(), table_facts(context)
        if facts is None:  # clients 1 and 01 differ
            words = set() if options.client is None else {options.client}
        else:
            words = facts.word_columns | ({options.target} if facts.has_word_labels else set())
        columns = read_columns(path, words)
        if options.test_path is None or facts is not None:
            return encode_table(columns, None, options, path, facts)
        other = Path(options.test_path).expanduser()
        return encode_table(columns, (read_columns(other, words), other), options, path)


def table_facts(context: SourceContext) -> TableFacts | None:
    """Return the run's conversion of columns, for a device's own table."""
    if context.encoding is None:
        return None
    if context.encoding.table is None:
        raise ConfigError(
            "--data: the run's own data is not a table, so the conversion of the columns of "
            f"{context.argument} to numbers is unknown; give arrays, .npz or .safetensors"
        )
    return context.encoding.table


@dataclass(frozen=True)
class TableRows:
    """The columns of one table, with the rows of its parts."""

    columns: Columns
    train: NDArray[np.int64]
    test: NDArray[np.int64]


def encode_table(
    columns: Columns,
    second: tuple[Columns, Path] | None,
    options: TableOptions,
    path: Path,
    facts: TableFacts | None = None,
) -> Dataset:
    """Convert a table to a dataset.

    Args:
        columns: the columns by name.
        second: another table for testing, and its name in errors; None: some rows are for testing.
        options: the options, which name target and clients.
        path: the name of the table in errors.
        facts: the conversion of the run, for a device's own table, whose rows are all for training.
    """
    if facts is not None:
        return _encode_own_table(columns, options, facts, path)
    rows = (
        _draw_test_rows(columns, options.test_share, path)
        if second is None
        else _join_tables(columns, path, *second)
    )
    _check_names(path, rows.columns, options)
    names = [
        name
        for name in options.columns or rows.columns
        if name not in (options.target, options.client)
    ]
    if not names:
        raise ConfigError("data.columns: no feature columns are left beside the target")
    rows = _without_missing(rows, names, options, path)
    features = {name: rows.columns[name] for name in names}
    codes = code_columns(features, rows.train, path, options.missing)
    inputs = encode_columns(rows.columns, codes, path)
    targets, labels, code = _targets(rows, options, path)
    return Dataset(
        Examples(_take(inputs, rows.train), _take(targets, rows.train)),
        Examples(_take(inputs, rows.test), _take(targets, rows.test)),
        None if labels is None else len(labels),
        owners=_owners(rows, options),
        table=TableFacts(codes, labels, code),
    )


def _encode_own_table(
    columns: Columns, options: TableOptions, facts: TableFacts, path: Path
) -> Dataset:
    """Convert a device's own table like the run's; all rows are for training."""
    names = [code.name for code in facts.columns]
    problems = [
        f"--data: {path} has no column {plain(name, 100)!r}, which the run has; it has "
        f"{plain(', '.join(columns), 500)}"
        for name in (*names, options.target)
        if name not in columns
    ]
    if problems:
        raise ConfigError(problems[:10])
    every_row = np.arange(_length(columns))
    rows = TableRows(columns, every_row, every_row)
    columns = _without_missing(rows, names, options, path, facts).columns
    inputs = torch.from_numpy(encode_columns(columns, facts.columns, path))
    targets = torch.from_numpy(_own_targets(columns[options.target], options.target, facts, path))
    classes = None if facts.labels is None else len(facts.labels)
    nothing = Examples(inputs[:0], targets[:0])
    return Dataset(Examples(inputs, targets), nothing, classes, table=facts)


def _own_targets(
    column: Column, name: str, facts: TableFacts, path: Path
) -> NDArray[np.float32] | NDArray[np.int64]:
    column.check_finite(name, path)
    if column.words and not facts.has_word_labels:
        raise DataError(f"{path}: column {name!r} holds words, but the run's holds numbers")
    if facts.labels is None:
        return _numbers(column, facts.target)
    number = {label: place for place, label in enumerate(facts.labels)}
    entries = column.values.tolist()
    if unknown := [entry for entry in entries if entry not in number]:
        raise DataError(f"{path}: {unknown[0]} in column {name!r} is not a label of the run")
    return np.array([number[entry] for entry in entries], dtype=np.int64)


def _draw_test_rows(columns: Columns, share: float, path: Path) -> TableRows:
    """Draw some rows of a table for testing, once."""
    total = _length(columns)
    order = generator(0, "table").permutation(total)
    count = round(total * share)
    if not 0 < count < total:
        raise DataError(f"{path}: {total} rows are too few for a training and a test part")
    return TableRows(columns, np.sort(order[count:]), np.sort(order[:count]))


def _join_tables(columns: Columns, path: Path, second: Columns, other: Path) -> TableRows:
    total = _length(columns)
    if missing := columns.keys() - second.keys():
        raise DataError(f"{other}: no column {sorted(missing)[0]!r}, which {path} has")
    more = _length(second)
    both = {name: column.join(second[name]) for name, column in columns.items()}
    return TableRows(both, np.arange(total), np.arange(total, total + more))


def _check_names(path: Path, columns: Columns, options: TableOptions) -> None:
    wishes = [("target", options.target), *(("columns", name) for name in options.columns or ())]
    if options.client:
        wishes.append(("client", options.client))
    problems = [
        f"data.{key}: {path} has no column {name!r}; it has {', '.join(columns)}"
        for key, name in wishes
        if name not in columns
    ]
    refuse(problems)


def _length(columns: Columns) -> int:
    return len(next(iter(columns.values())).values)


def _without_missing(
    rows: TableRows,
    names: Sequence[str],
    options: TableOptions,
    path: Path,
    facts: TableFacts | None = None,
) -> TableRows:
    """Return the table if all missing cells can be filled; or without rows that have any.

    Missing cells of a device's table are filled by the statistics of the run.
    """
    needed = [options.target]
    if options.client is not None and facts is None:
        needed.append(options.client)
    columns = {name: rows.columns[name] for name in dict.fromkeys([*names, *needed])}
    if not describe_missing(columns):
        return rows
    for name in needed:
        if columns[name].missing.all():
            raise DataError(f"{path}: column {name!r} has no entry at all")
    if options.missing is None:
        raise DataError(
            f"{path}: cells are missing in columns {describe_missing(columns)}; fill them in, "
            "leave the columns out of data.columns, or set data.missing to 'mean', 'category' or "
            "'drop'"
        )
    if options.missing == "drop":
        complete = ~np.any([column.missing for column in columns.values()], axis=0)
        train, test = rows.train[complete[rows.train]], rows.test[complete[rows.test]]
        if not (train.size and test.size):
            part = "test" if train.size else "training"
            raise DataError(
                f"{path}: data.missing = 'drop' leaves no row of the {part} part; cells are "
                f"missing in columns {describe_missing(columns)}"
            )
        new = np.cumsum(complete) - 1  # new positions of the kept rows
        kept_columns = {
            name: Column(column.values[complete], column.words)
            for name, column in rows.columns.items()
        }
        return TableRows(kept_columns, new[train], new[test])
    if problem := describe_missing({name: columns[name] for name in needed}):
        raise DataError(
            f"{path}: cells are missing in columns {problem}, which data.missing = "
            f"{options.missing!r} does not fill; 'drop' leaves these rows out"
        )
    unknown = [
        code.name
        for code in (() if facts is None else facts.columns)
        if code.words is not None and not code.fill and options.missing == "mean"
    ]
    if problem := describe_missing({name: columns[name] for name in unknown}):
        raise DataError(
            f"{path}: cells are missing in columns {problem}, and the run has no frequencies of "
            "their words; set data.missing to 'category' or 'drop'"
        )
    return rows


def _numbers(column: Column, code: ColumnCode | None) -> NDArray[np.float32]:
    values = column.values.astype(np.float64)
    if code is not None:
        values = (values - code.mean) / code.deviation
    return values.astype(np.float32)[:, None]


def _targets(
    rows: TableRows, options: TableOptions, path: Path
) -> tuple[NDArray[np.generic], tuple[str, ...] | tuple[float, ...] | None, ColumnCode | None]:
    """Return the targets; the entries of classes, if any; and the standardisation of numbers."""
    column = rows.columns[options.target]
    as_labels = options.kind == "labels"
    if options.kind == "auto":
        as_labels = column.words or (column.whole and column.distinct <= min(_MOST_CLASSES, 20))
    if not as_labels:
        if column.words:
            raise ConfigError(f"data.kind: column {options.target!r} holds words, not numbers")
        code = None
        if options.standardise is not False:
            (code,) = code_columns({options.target: column}, rows.train, path)
        column.check_finite(options.target, path)
        return _numbers(column, code), None, code
    if options.standardise is not None:
        raise ConfigError(f"data.standardise: column {options.target!r} holds labels")
    column.check_finite(options.target, path)
    names, labels = np.unique(column.values, return_inverse=True)
    if len(names) > _MOST_CLASSES:
        raise DataError(f"{path}: column {options.target!r} has {len(names):,} different labels")
    unknown = np.setdiff1d(labels[rows.test], labels[rows.train])
    if unknown.size:
        raise DataError(
            f"{path}: {names[unknown[0]]} in column {options.target!r} occurs in the test part only"
        )
    return labels.astype(np.int64).reshape(-1), tuple(names.tolist()), None


def _owners(rows: TableRows, options: TableOptions) -> Owners | None:
    if options.client is None:
        return None
    column = rows.columns[options.client]
    names = column.values.astype(str)
    return owners_of(names[rows.train].tolist(), names[rows.test].tolist())


def _take(array: NDArray[np.generic], rows: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array[rows]))
