"""The official binary version of CIFAR-10 and CIFAR-100.

It is a sequence of records: one label byte (CIFAR-10) or a coarse and a fine one (CIFAR-100), then
1,024 red, 1,024 green and 1,024 blue bytes, row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from submodel.data.images import Images, ImageSet, check_labels
from submodel.data.sources.cifar.spec import SIDE, Spec
from submodel.errors import DataError


def from_binary(files: Mapping[str, bytes], spec: Spec, label: str, path: Path) -> ImageSet:
    """The images of the binary version's files, every record and label checked."""
    check_complete(files, list(spec.records), path)
    position = list(spec.labels).index(label)
    parts = []
    for part in (spec.train_files, spec.test_files):
        pixels, labels = [], []
        for name in part:
            size, records = len(files[name]), spec.records[name]
            if size != records * spec.record_bytes:
                raise DataError(
                    f"data.path: {path}: {name} has {size:,} bytes; want "
                    f"{records * spec.record_bytes:,}: {records:,} records of {spec.record_bytes}"
                )
            table = np.frombuffer(files[name], dtype=np.uint8).reshape(records, -1)
            for place, (kind, classes) in enumerate(spec.labels.items()):
                check_labels(
                    table[:, place].astype(np.int64), classes, f"data.path: {path}: {name}: {kind}"
                )
            labels.append(table[:, position].astype(np.int64))
            pixels.append(table[:, len(spec.labels) :].reshape(records, 3, SIDE, SIDE))
        parts.append(Images(np.concatenate(pixels), np.concatenate(labels)))
    text = files.get(spec.names[label], b"").decode("utf-8", "replace")
    return ImageSet(parts[0], parts[1], class_names(text.split(), spec.labels[label]), "archive")


def class_names(names: list[str], classes: int) -> tuple[str, ...]:
    """The names as given if there are as many as classes, else numbers."""
    return tuple(names if len(names) == classes else map(str, range(classes)))


def check_complete(files: Mapping[str, bytes], file_names: list[str], path: Path) -> None:
    """Raise unless all these files are there."""
    if absent := [name for name in file_names if name not in files]:
        raise DataError(
            f"data.path: {path}: lacks {', '.join(absent)}; is it truncated? fetch it again"
        )
