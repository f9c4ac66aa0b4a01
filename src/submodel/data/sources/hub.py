"""Datasets of the Hugging Face hub, through the package ``datasets``: images, text, tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from PIL import Image
from pydantic import Field

from submodel.core.errors import ConfigError, DataError, SubmodelError, refuse
from submodel.core.options import Count, PathText, Section
from submodel.data.builtin_data import TOKENS
from submodel.data.cache import check_may_fetch
from submodel.data.examples import Dataset, dataset
from submodel.data.facts import Missing
from submodel.data.images import (
    Images,
    ImageSet,
    Labels,
    Pixels,
    check_labels,
    decode,
    stack_pictures,
)
from submodel.data.sources import SourceContext
from submodel.data.sources.table import (
    MISSING,
    TableOptions,
    encode_table,
    table_facts,
)
from submodel.data.tables import Column, word_column
from submodel.data.text.build import Streams, TextOptions, TextSource, build_text
from submodel.data.text.streams import column_streams

Content = Literal["images", "text", "table"]
_KEYS: Mapping[Content, tuple[str, ...]] = {
    "images": ("label", "size"),
    "text": ("column", "tokens", "length", "least", "client", "test_share"),
    "table": ("target", "columns", "kind", "standardise", "missing", "client", "test_share"),
}
_TEST_SPLITS = ("test", "validation", "valid", "val")
_LABEL_COLUMNS = ("label", "labels", "fine_label")


def content_of(options: Any, features: Mapping[str, Any], where: str) -> Content:
    """Determine the content of a dataset from the types of its columns and the options."""
    if any(isinstance(kind, _package().Image) for kind in features.values()):
        return "images"
    if options.target is not None and options.column is not None:
        raise ConfigError("data.target: is for a table, and data.column for text; leave one out")
    if options.target is not None:
        return "table"
    if options.column is None:
        raise ConfigError(
            f"data.column: {where} has no images among its columns {', '.join(features)}; "
            "set data.column to the column of texts, or data.target to the target column"
        )
    return "text"


def check_keys(options: Any, content: Content, where: str) -> None:
    """Raise for keys of another kind of dataset."""
    other_keys = {key for keys in _KEYS.values() for key in keys} - set(_KEYS[content])
    problems = [
        f"data.{key}: {where} is read as {content}; leave it out"
        for key in type(options).model_fields
        if key in other_keys and getattr(options, key) is not None
    ]
    refuse(problems)


def text_of(train: Any, test: Any | None, options: Any, context: SourceContext) -> Dataset:
    """Build sequences from a column of texts; without a test part, from their ends for testing."""
    where = f"hf:{context.argument}"
    tokens = options.tokens or "bytes"
    keys = ("length", "least", *TOKENS.find(tokens).options.model_fields)
    values = {key: getattr(options, key) for key in keys}
    values["test_share"] = _test_share(test, options, 0.1, where)
    given_values = {key: value for key, value in values.items() if value is not None}
    text_options = TextOptions(tokens=tokens, **given_values)

    def streams(part: Any) -> Streams:
        return column_streams(where, lambda: iter(part), options.column, options.client)

    def read() -> tuple[Streams, Streams | None]:
        if context.encoding is not None:
            return streams(train), ()  # without a test part
        return streams(train), None if test is None else streams(test)

    prints = [getattr(part, "_fingerprint", "") for part in (train, test)]
    identity = repr((prints, options.column, options.client))
    source = TextSource((), read, tuple(TextOptions.model_fields), where, identity)
    return build_text(source, text_options, context.encoding)


def table_of(train: Any, test: Any | None, options: Any, context: SourceContext) -> Dataset:
    """Convert the columns to numbers; without a test part, some rows are for testing."""
    where = f"hf:{context.argument}"
    share = _test_share(test, options, 0.2, where)
    keys = ("target", "columns", "client", "kind", "standardise", "missing")
    values = {key: getattr(options, key) for key in keys} | {"test_share": share}
    given_values = {key: value for key, value in values.items() if value is not None}
    table_options = TableOptions(**given_values)
    names = [*(options.columns or train.column_names), options.target]
    names += [] if options.client is None else [options.client]
    columns, facts = _columns(train, names, where, options.client), table_facts(context)
    if test is None or facts is not None:
        return encode_table(columns, None, table_options, Path(where), facts)
    other = f"{where}: test part"
    second = _columns(test, names, other, options.client)
    return encode_table(columns, (second, Path(other)), table_options, Path(where))


def _test_share(test: Any | None, options: Any, default: float, where: str) -> float | None:
    """Return the share for testing if there is no test part; otherwise None."""
    if test is None:
        return default if options.test_share is None else float(options.test_share)
    if options.test_share is not None:
        raise ConfigError(f"data.test_share: {where} has a test split; leave it out")
    return None


def _columns(part: Any, names: list[str], where: str, client: str | None) -> dict[str, Column]:
    """Return the named columns that exist, in order; missing ones are reported elsewhere."""
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
    """Convert values to numbers or words; a missing one becomes NaN, or empty."""
    if hasattr(feature, "int2str"):  # named class labels
        return word_column([feature.int2str(v) if v is not None and v >= 0 else "" for v in values])
    if all(value is None or isinstance(value, int | float) for value in values):
        numbers = [np.nan if value is None else float(value) for value in values]
        return Column(np.array(numbers), words=False)
    if all(value is None or isinstance(value, str) for value in values):
        return word_column(values)
    raise DataError(f"{where} holds neither numbers nor words; leave it out of data.columns")


def _package() -> Any:
    try:
        import datasets
    except ImportError:
        raise ConfigError(
            "data.source: the hub needs the package 'datasets': pip install 'submodel[hub]'"
        ) from None
    return datasets


def read_hub(name: str, path: Path | None, label: str) -> ImageSet:
    """Read the images of ``owner/name``, or of a dataset saved to ``path``."""
    where = f"hf:{name}"
    return _image_set(*two_parts(load_splits(name, path), where), label, None, where)


def load_splits(name: str, path: Path | None) -> Any:
    """Load the splits of a dataset of the hub, or of one saved to ``path``."""
    if path is None:
        check_may_fetch(f"hf:{name}")
    datasets = _package()
    repository, _, configuration = name.partition(":")
    try:
        if path is not None:
            return datasets.load_from_disk(str(path))
        return datasets.load_dataset(repository, configuration or None)
    except Exception as error:  # network, hub and file formats may raise anything
        first = str(error).strip().splitlines()[:1]
        reason = f"{type(error).__name__}: {first[0] if first else ''}"
        raise DataError(f"{path or f'hf:{name}'}: cannot be loaded: {reason}") from None


def _image_set(train: Any, test: Any, label: str | None, size: int | None, where: str) -> ImageSet:
    datasets = _package()
    features = train.features
    images = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    if len(images) != 1:
        raise DataError(
            f"{where}: {len(images)} columns of images among {', '.join(features)}; want one"
        )
    image_column, label_column = images[0], _label_column(datasets, features, label, where)
    if missing := {image_column, label_column} - set(test.features):
        raise DataError(f"{where}: the test part lacks the column(s) {', '.join(sorted(missing))}")
    pictures = [_pictures(part, image_column, size, where) for part in (train, test)]
    names, labels = _labels(train, test, label_column, where)
    pixels = stack_pictures(pictures, where)
    return ImageSet(Images(pixels[0], labels[0]), Images(pixels[1], labels[1]), names, "hub")


def two_parts(splits: Any, where: str) -> tuple[Any, Any]:
    """Return the training and the test part."""
    if not isinstance(splits, Mapping):
        raise DataError(f"{where}: one part only; want the splits 'train' and 'test'")
    train, test = some_parts(splits, where)
    if test is None:
        raise DataError(f"{where}: its splits are {', '.join(splits)}; want 'train' and 'test'")
    return train, test


def some_parts(splits: Any, where: str) -> tuple[Any, Any | None]:
    """Return the training part, and the test part if there is one."""
    if not isinstance(splits, Mapping):
        return splits, None
    if "train" not in splits:
        raise DataError(f"{where}: its splits are {', '.join(splits)}; want 'train' and 'test'")
    test = next((name for name in _TEST_SPLITS if name in splits), None)
    return splits["train"], None if test is None else splits[test]


def _label_column(datasets: Any, features: Mapping[str, Any], label: str | None, where: str) -> str:
    """Return the column of class labels: the named one, or else the one that must be it."""
    labels = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    if label is not None:
        if label not in features:
            raise ConfigError(f"data.label: {label!r} is not one of {', '.join(features)}")
        return label
    for name in _LABEL_COLUMNS:
        if name in features:
            return name
    if not labels:
        raise DataError(
            f"{where}: no class labels among the columns {', '.join(features)}; "
            "set data.label if one of them is the class"
        )
    if len(labels) > 1:
        raise ConfigError(f"data.label: {where} has several; set one of {', '.join(labels)}")
    return labels[0]


def _pictures(part: Any, column: str, size: int | None, where: str) -> list[Pixels]:
    pictures: list[Pixels] = []
    try:
        for position, row in enumerate(part.select_columns([column])):
            image = row[column]
            if not isinstance(image, Image.Image):
                raise DataError(f"{where}: example {position} has no image")
            pictures.append(decode(image, size))
    except SubmodelError:
        raise
    except Exception as error:  # decoding untrusted bytes may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{where}: example {len(pictures)} has no whole image ({reason})") from None
    if not pictures:
        raise DataError(f"{where}: a part without examples")
    return pictures


def _labels(
    train: Any, test: Any, column: str, where: str
) -> tuple[tuple[str, ...], tuple[Labels, Labels]]:
    """Return the classes' names, and the labels of both parts as positions among them."""
    label_lists = [list(part[column]) for part in (train, test)]
    names = getattr(train.features[column], "names", None)
    if names is None and all(isinstance(value, str) for part in label_lists for value in part):
        names = sorted({value for part in label_lists for value in part})
        position = {name: number for number, name in enumerate(names)}
        label_lists = [[position[value] for value in part] for part in label_lists]
    for part in label_lists:
        for number, value in enumerate(part):
            if type(value) is not int:
                raise DataError(
                    f"{where}: {column} of example {number} is {value!r}, not a class label"
                )
    labels: list[Labels] = [np.asarray(part, dtype=np.int64) for part in label_lists]
    if names is None:
        names = list(map(str, range(max(int(numbers.max()) for numbers in labels) + 1)))
    for numbers in labels:
        check_labels(numbers, len(names), f"{where}: {column}")
    return tuple(names), (labels[0], labels[1])


def read_in_memory(train: Any, test: Any) -> Dataset:
    """Convert a training and a test part of the package ``datasets`` in memory.

    Images are normalised by the training part, like those of the hub. Of other columns, single
    numbers are stacked in one tensor; arrays are separate inputs.
    """
    package = _package()
    train, test = train.with_format(None), test.with_format(None)
    where, features = "data", train.features
    if missing := set(features) ^ set(test.features):
        raise DataError(f"{where}: only one part has the column(s) {', '.join(sorted(missing))}")
    if any(isinstance(kind, package.Image) for kind in features.values()):
        return SourceContext().normalise_images(_image_set(train, test, None, None, where))
    label = _label_column(package, features, None, where)
    if str(getattr(features[label], "dtype", "")).startswith("float"):
        targets: Any = [_numbers(part, label, where)[:, None] for part in (train, test)]
    else:
        targets = _labels(train, test, label, where)[1]
    names = [name for name in features if name != label]
    parts = [{name: _numbers(part, name, where) for name in names} for part in (train, test)]
    if not names:
        raise DataError(f"{where}: no feature column beside {label!r}")
    if all(array.ndim == 1 for array in parts[0].values()):
        inputs: list[Any] = [
            np.stack(list(columns.values()), axis=1, dtype=np.float32) for columns in parts
        ]
    elif len(names) == 1:
        inputs = [columns[names[0]] for columns in parts]
    else:
        inputs = list(parts)
    return dataset((inputs[0], targets[0]), (inputs[1], targets[1]))


def _numbers(part: Any, column: str, where: str) -> np.ndarray[Any, Any]:
    """Return a column of numbers, or of arrays of one shape."""
    array = np.asarray(part.with_format("numpy")[:][column])
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"{where}: column {column!r} holds neither numbers nor arrays of one shape; leave it "
            f"out, by remove_columns({column!r}), or turn it into numbers"
        )
    return array


class Hub:
    """Images, text or a table of the Hugging Face hub, as a source."""

    class Options(Section):
        """The keys of ``hf:NAME``; the content of the dataset decides which of them apply."""

        choices = {"tokens": TOKENS}  # noqa: RUF012

        path: PathText | None = Field(None, description="a dataset saved to disk")
        label: str | None = Field(None, description="of images: the column of class labels")
        size: Count | None = Field(None, description="of images: resize them to this square")
        column: str | None = Field(None, description="of text: the column of texts")
        tokens: str | None = Field(
            None, description=f"of text (default: bytes): {TOKENS.describe()}"
        )
        length: Count | None = Field(None, description="of text: tokens in a sequence (64)")
        least: Count | None = Field(
            None, description="of text: clients with fewer characters are left out"
        )
        target: str | None = Field(None, description="of a table: target column")
        columns: list[str] | None = Field(
            None, description="of a table: feature columns (default: all others)"
        )
        kind: Literal["numbers", "labels"] | None = Field(
            None,
            description="of a table's target (default: words and few whole numbers are labels)",
        )
        standardise: bool | None = Field(
            None, description="of a table's target of numbers (default: yes)"
        )
        missing: Missing = Field(None, description=f"of a table: {MISSING}")
        client: str | None = Field(None, description="of text and tables: column of clients")
        test_share: Annotated[float, Field(gt=0, lt=1)] | None = Field(
            None,
            description="of text and tables without a test split: the share for testing "
            "(default: 0.1 of text, 0.2 of a table)",
        )

    @classmethod
    def configured(cls, options: Options, context: SourceContext) -> Dataset:
        """Read the splits for training and testing."""
        where, path = f"hf:{context.argument}", options.path
        splits = load_splits(context.argument, None if path is None else Path(path))
        train, test = some_parts(splits, where)
        content = content_of(options, train.features, where)
        check_keys(options, content, where)
        if content == "text":
            return text_of(train, test, options, context)
        if content == "table":
            return table_of(train, test, options, context)
        images = _image_set(*two_parts(splits, where), options.label, options.size, where)
        return context.normalise_images(images)
