"""Rows of a dataset of the Hugging Face hub without images: text, or a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from submodel.data.columns import Column, word_column
from submodel.data.examples import Dataset
from submodel.data.registry import TOKENS
from submodel.data.sources.base import Encoding
from submodel.data.sources.table import (
    TableOptions,
    draw_test_rows,
    encode_own_table,
    encode_table,
    join_tables,
)
from submodel.data.text.build import build_text
from submodel.data.text.options import TextOptions
from submodel.data.text.plan import Streams, TextPlan
from submodel.data.text.tables import column_streams
from submodel.errors import ConfigError, DataError

Content = Literal["images", "text", "table"]
_KEYS: Mapping[Content, tuple[str, ...]] = {
    "images": ("label", "size"),
    "text": ("column", "tokens", "length", "least", "client", "test_share"),
    "table": ("target", "columns", "kind", "standardise", "missing", "client", "test_share"),
}


@dataclass(frozen=True)
class HubRows:
    """The splits of a dataset.

    Args:
        train: the training part, of the package ``datasets``.
        test: the test part; None: there is none.
        where: what errors call it.
    """

    train: Any
    test: Any | None
    where: str


def content_of(
    datasets: Any, features: Mapping[str, Any], target: str | None, column: str | None, where: str
) -> Content:
    """What a dataset is, by the types of its columns and by what is asked of it.

    Args:
        datasets: the package.
        features: the columns and their types.
        target: the column to tell, if one is named.
        column: the column of texts, if one is named.
        where: what errors call it.
    """
    if any(isinstance(kind, datasets.Image) for kind in features.values()):
        return "images"
    if target is not None and column is not None:
        raise ConfigError(["data.target: is of a table, and data.column of text; leave one out"])
    if target is not None:
        return "table"
    if column is None:
        raise ConfigError(
            [
                f"data.column: {where} has no images among its columns {', '.join(features)}; "
                "set data.column to that of texts, or data.target to what is to be told"
            ]
        )
    return "text"


def check_keys(options: Any, content: Content, where: str) -> None:
    """Raise for keys that go with another kind of dataset."""
    other_keys = {key for keys in _KEYS.values() for key in keys} - set(_KEYS[content])
    problems = [
        f"data.{key}: {where} is taken for {content}; leave it out"
        for key in type(options).model_fields
        if key in other_keys and getattr(options, key) is not None
    ]
    if problems:
        raise ConfigError(problems)


def rows_as_text(rows: HubRows, options: Any, encoding: Encoding | None) -> Dataset:
    """The texts of a column as sequences of tokens.

    Args:
        rows: the dataset.
        options: the section of the configuration.
        encoding: of the run, where the text is a device's own.
    """
    tokens = options.tokens or "bytes"
    keys = ("length", "least", *TOKENS.find(tokens).options.model_fields)
    values = {key: getattr(options, key) for key in keys}
    values["test_share"] = _test_share(rows, options, 0.1)
    given_values = {key: value for key, value in values.items() if value is not None}
    text_options = TextOptions(tokens=tokens, **given_values)

    def streams(part: Any) -> Streams:
        return column_streams(rows.where, _rows_of(part), options.column, options.client)

    def read() -> tuple[Streams, Streams | None]:
        if encoding is not None:
            return streams(rows.train), ()  # all is for training
        return streams(rows.train), None if rows.test is None else streams(rows.test)

    prints = [getattr(part, "_fingerprint", "") for part in (rows.train, rows.test)]
    identity = repr((prints, options.column, options.client))
    keys_of_text = tuple(TextOptions.model_fields)
    plan = TextPlan((), read, keys_of_text, rows.where, identity)
    return build_text(plan, text_options, encoding)


def _rows_of(part: Any) -> Callable[[], Iterator[Mapping[str, Any]]]:
    return lambda: iter(part)


def rows_as_table(rows: HubRows, options: Any, encoding: Encoding | None) -> Dataset:
    """The columns as numbers.

    Args:
        rows: the dataset.
        options: the section of the configuration.
        encoding: of the run, where the table is a device's own.
    """
    share = _test_share(rows, options, 0.2)
    table_options = TableOptions(
        target=options.target,
        columns=options.columns,
        client=options.client,
        kind=options.kind or "auto",
        standardise=options.standardise,
        missing=options.missing,
        **({} if share is None else {"test_share": share}),
    )
    path = Path(rows.where)
    names = [*(options.columns or rows.train.column_names), options.target]
    names += [] if options.client is None else [options.client]
    columns = _columns(rows.train, names, rows.where, options.client)
    if encoding is not None:
        if encoding.table is None:
            raise ConfigError([f"--data: {rows.where} is a table, and the run's own data is none"])
        return encode_own_table(columns, table_options, encoding.table, path)
    if rows.test is None:
        return encode_table(draw_test_rows(columns, share or 0.2, path), table_options, path)
    second = _columns(rows.test, names, f"{rows.where}: test part", options.client)
    test_path = Path(f"{rows.where}: test part")
    return encode_table(join_tables(columns, second, path, test_path), table_options, path)


def _test_share(rows: HubRows, options: Any, default: float) -> float | None:
    """The share for testing where there is no part for it; None where there is."""
    if rows.test is None:
        return default if options.test_share is None else float(options.test_share)
    if options.test_share is not None:
        raise ConfigError([f"data.test_share: {rows.where} has a test split; leave it out"])
    return None


def _columns(part: Any, names: list[str], where: str, client: str | None) -> dict[str, Column]:
    """The columns of these names that there are, in order; others are named elsewhere."""
    if not len(part):
        raise DataError(f"{where}: a part without examples")
    columns = {
        name: _column(list(part[name]), part.features[name], f"{where}: column {name!r}")
        for name in dict.fromkeys(names)
        if name in part.column_names
    }
    if client in columns and not columns[client].words:
        columns[client] = word_column(list(part[client]))
    return columns


def _column(values: list[Any], feature: Any, where: str) -> Column:
    """Numbers, or words; a missing one is not a number, or empty."""
    if hasattr(feature, "int2str"):  # class labels, which have names
        words = [feature.int2str(v) if v is not None and v >= 0 else "" for v in values]
        return Column(np.array(words, dtype=str), words=True)
    if all(value is None or isinstance(value, int | float) for value in values):
        numbers = [np.nan if value is None else float(value) for value in values]
        return Column(np.array(numbers), words=False)
    if all(value is None or isinstance(value, str) for value in values):
        return Column(np.array([value or "" for value in values], dtype=str), words=True)
    raise DataError(f"{where} holds neither numbers nor words; leave it out of data.columns")
