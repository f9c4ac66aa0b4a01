"""Whether images are those of CIFAR-10 or CIFAR-100: their numbers, classes and channel means."""

from __future__ import annotations

import numpy as np

from submodel.data.images import ImageSet, channel_statistics, check_labels
from submodel.data.sources.cifar.spec import SIDE, Spec
from submodel.errors import DataError

_MEAN_TOLERANCE = 1e-3  # the known means have four digits


def verify_images(images: ImageSet, spec: Spec, label: str, where: str) -> None:
    """Compare numbers of images, of classes and the channel means with the known ones."""
    parts = {
        "training": (images.train, spec.train_records * len(spec.train_files)),
        "test": (images.test, spec.test_records * len(spec.test_files)),
    }
    for part, (content, records) in parts.items():
        shape = (records, 3, SIDE, SIDE)
        if content.pixels.shape != shape or content.labels.shape != (records,):
            raise DataError(
                f"{where}: {part} images of shape {content.pixels.shape}; {spec.title} has {shape}"
            )
        check_labels(content.labels, spec.labels[label], f"{where}: {part} images")
    if not spec.verify:
        return
    for part, (content, records) in parts.items():
        counts = np.bincount(content.labels, minlength=spec.labels[label])
        if (counts != records // spec.labels[label]).any():
            raise DataError(
                f"{where}: {counts.min():,} to {counts.max():,} {part} images per class; "
                f"{spec.title} has {records // spec.labels[label]:,} of each"
            )
    mean, _ = channel_statistics(images.train.pixels)
    if max(abs(a - b) for a, b in zip(mean, spec.mean, strict=True)) > _MEAN_TOLERANCE:
        raise DataError(
            f"{where}: channel means {' '.join(f'{m:.4f}' for m in mean)}; those of {spec.title} "
            f"are {' '.join(f'{m:.4f}' for m in spec.mean)}"
        )
