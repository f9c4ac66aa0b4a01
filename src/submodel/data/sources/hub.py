"""Image-classification datasets of the Hugging Face hub, through the package ``datasets``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pydantic import Field

from submodel.data.examples import Dataset
from submodel.data.images import (
    Images,
    ImageSet,
    Labels,
    Pixels,
    check_labels,
    decode,
    stack_pictures,
)
from submodel.data.sources.base import SourceContext
from submodel.errors import ConfigError, DataError, SubmodelError
from submodel.options import Count, PathText, Section

_TEST_SPLITS = ("test", "validation", "valid", "val")
_LABEL_COLUMNS = ("label", "labels", "fine_label")


def _package() -> Any:
    try:
        import datasets
    except ImportError:
        raise ConfigError(
            ["data.source: the hub needs the package 'datasets': pip install 'submodel[hub]'"]
        ) from None
    return datasets


def read_hub(
    name: str, path: Path | None = None, label: str | None = None, size: int | None = None
) -> ImageSet:
    """The dataset ``owner/name`` or ``owner/name:configuration``, or one saved to ``path``.

    Its training part is the split "train", its test part the split "test" or, failing that,
    "validation". The column of images and that of class labels are found by their types.
    """
    datasets = _package()
    repository, _, configuration = name.partition(":")
    try:
        if path is not None:
            splits = datasets.load_from_disk(str(path))
        else:
            splits = datasets.load_dataset(repository, configuration or None)
    except Exception as error:  # whatever the network, the hub or a file format raises
        first = str(error).strip().splitlines()[:1]
        reason = f"{type(error).__name__}: {first[0] if first else ''}"
        raise DataError(f"{path or f'hf:{name}'}: cannot be loaded: {reason}") from None
    where = f"hf:{name}"
    train, test = _parts(splits, where)
    image_column, label_column = _columns(datasets, train.features, label, where)
    if missing := {image_column, label_column} - set(test.features):
        raise DataError(f"{where}: the test part lacks the column(s) {', '.join(sorted(missing))}")
    pictures = [_pictures(part, image_column, size, where) for part in (train, test)]
    names, labels = _labels(train, test, label_column, where)
    pixels = stack_pictures(pictures, where)
    return ImageSet(Images(pixels[0], labels[0]), Images(pixels[1], labels[1]), names, "hub")


def _parts(splits: Any, where: str) -> tuple[Any, Any]:
    """The training and the test part."""
    if not isinstance(splits, Mapping):
        raise DataError(f"{where}: one part only; want the splits 'train' and 'test'")
    test = next((name for name in _TEST_SPLITS if name in splits), None)
    if "train" not in splits or test is None:
        raise DataError(f"{where}: its splits are {', '.join(splits)}; want 'train' and 'test'")
    return splits["train"], splits[test]


def _columns(
    datasets: Any, features: Mapping[str, Any], label: str | None, where: str
) -> tuple[str, str]:
    """Which columns hold the images and the class labels."""
    images = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    if len(images) != 1:
        raise DataError(
            f"{where}: {len(images)} columns of images among {', '.join(features)}; want one"
        )
    labels = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    if label is not None:
        if label not in features:
            raise ConfigError([f"data.label: {label!r} is not one of {', '.join(features)}"])
        return images[0], label
    for name in _LABEL_COLUMNS:
        if name in features:
            return images[0], name
    if not labels:
        raise DataError(
            f"{where}: no class labels among the columns {', '.join(features)}; "
            "set data.label if one of them is the class"
        )
    if len(labels) > 1:
        raise ConfigError([f"data.label: {where} has several; set one of {', '.join(labels)}"])
    return images[0], labels[0]


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
    except Exception as error:  # whatever decoding a stranger's bytes raises
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{where}: example {len(pictures)} has no whole image ({reason})") from None
    if not pictures:
        raise DataError(f"{where}: a part without examples")
    return pictures


def _labels(
    train: Any, test: Any, column: str, where: str
) -> tuple[tuple[str, ...], tuple[Labels, Labels]]:
    """The classes' names, and the labels of both parts as their positions among the names."""
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


class Hub:
    """Images of the Hugging Face hub, as a source."""

    class Options(Section):
        """The keys of ``hf:NAME``."""

        path: PathText | None = Field(None, description="a dataset that was saved to disk")
        label: str | None = Field(None, description="the column of class labels")
        size: Count | None = Field(None, description="resize images to this square")

    @classmethod
    def configured(cls, options: Options, context: SourceContext) -> Dataset:
        """The splits for training and testing."""
        path = None if options.path is None else Path(options.path)
        return context.normalise_images(
            read_hub(context.argument, path, options.label, options.size)
        )
