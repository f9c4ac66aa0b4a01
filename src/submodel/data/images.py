"""Images as bytes, and their conversion from files to normalised tensors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from submodel.core.errors import DataError, SubmodelError, plain
from submodel.data.examples import About, Dataset, choose_balanced, dataset

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]
_CHUNK = 1 << 16  # values processed at a time, which fit in the processor's cache


@dataclass(frozen=True)
class Images:
    """Pixels as (image, channel, row, column), and the images' class labels."""

    pixels: Pixels
    labels: Labels


@dataclass(frozen=True)
class ImageSet:
    """Training and test images, as read from a source."""

    train: Images
    test: Images
    names: tuple[str, ...]  # of the classes, in the order of their labels
    origin: str


def channel_statistics(pixels: Pixels) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute mean and deviation of every channel, for pixels in [0, 1], from exact sums.

    >>> channel_statistics(np.array([0, 255, 255, 0], dtype=np.uint8).reshape(2, 1, 1, 2))
    ((0.5,), (0.5,))
    """
    total = np.zeros(pixels.shape[1], dtype=np.int64)
    squares = np.zeros_like(total)
    for piece in _pieces(pixels):
        chunk = pixels[piece].astype(np.uint32)
        total += chunk.sum((0, 2, 3), dtype=np.int64)
        squares += np.square(chunk).sum((0, 2, 3), dtype=np.int64)
    count = pixels.size / pixels.shape[1]
    mean = total / count / 255
    deviation = np.sqrt(np.maximum(squares / count / 255**2 - mean**2, 0))
    return tuple(mean.tolist()), tuple(deviation.tolist())


def normalise(pixels: Pixels, mean: Sequence[float], deviation: Sequence[float]) -> Tensor:
    """Convert pixels to float32: scaled to [0, 1], less the mean, divided by the deviation."""
    x = torch.empty_like(torch.from_numpy(pixels), dtype=torch.float32)
    for piece in _pieces(pixels):
        part = x[piece].copy_(torch.from_numpy(pixels[piece]))  # CIFAR takes 0.7 GB in this form
        for channel, (centre, scale) in enumerate(zip(mean, deviation, strict=True)):
            part[:, channel].div_(255).sub_(centre).div_(scale)
    return x


def _pieces(pixels: Pixels) -> Iterator[slice]:
    step = max(1, _CHUNK // max(1, math.prod(pixels.shape[1:])))
    return (slice(start, start + step) for start in range(0, len(pixels), step))


def to_dataset(
    images: ImageSet,
    mean: tuple[float, ...],
    deviation: tuple[float, ...],
    examples: int | None = None,
    test_examples: int | None = None,
) -> Dataset:
    """Convert the images, or a balanced part of them, to normalised tensors."""
    parts = []
    for part, count, key in (
        (images.train, examples, "data.examples"),
        (images.test, test_examples, "data.test_examples"),
    ):
        places = choose_balanced(part.labels, count, key)
        pixels = part.pixels if len(places) == len(part.labels) else part.pixels[places]
        x = normalise(pixels, mean, deviation)
        parts.append((x, torch.from_numpy(part.labels[places])))
    about = About(images.origin, images.names, mean, deviation)
    # a small part may lack the last class, so the number of classes is that of the names
    return replace(dataset(*parts), classes=len(images.names), about=about)


@contextmanager
def open_picture(content: IO[bytes], where: str, *formats: str) -> Iterator[Image.Image]:
    """Open a picture in one of the formats, within Pillow's size limit (89 million pixels).

    Any failure becomes a `DataError`: Pillow raises a dozen kinds of errors for a file that is
    damaged or malicious, and a warning for one that is too large.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(content, formats=formats) as image:
                yield image
    except SubmodelError:
        raise
    except Exception as error:
        expectation = (
            f"{formats[0]} picture" if len(formats) == 1 else f"picture, {' or '.join(formats)}"
        )
        unknown = isinstance(error, UnidentifiedImageError)  # its text names an internal object
        reason = "" if unknown else f" ({type(error).__name__}: {plain(error)})"
        raise DataError(f"{where}: not a whole {expectation}{reason}") from None


def decode(image: Image.Image, size: int | None) -> Pixels:
    """Return the pixels of a picture: (row, column) if grey, otherwise (row, column, 3)."""
    pixels = image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")
    if size is not None and pixels.size != (size, size):
        pixels = pixels.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(pixels, dtype=np.uint8)


def stack_pictures(parts: Sequence[Sequence[Pixels]], where: str) -> list[Pixels]:
    """Stack each part's pictures in one array; grey ones are converted if any has colour."""
    sizes = sorted({picture.shape[:2] for part in parts for picture in part})
    if len(sizes) > 1:
        (height, width), (height2, width2) = sizes[0], sizes[-1]
        raise DataError(
            f"{where}: images of {len(sizes)} sizes, from {height} x {width} to "
            f"{height2} x {width2}; set data.size to resize them all to a square"
        )
    colour = any(picture.ndim == 3 for part in parts for picture in part)
    arrays = []
    for part in parts:
        rows = [
            np.repeat(picture[..., None], 3, -1) if colour and picture.ndim == 2 else picture
            for picture in part
        ]
        pixels = np.stack(rows)
        pixels = pixels.transpose(0, 3, 1, 2) if colour else pixels[:, None]
        arrays.append(np.ascontiguousarray(pixels))
    return arrays


def check_labels(labels: Labels, classes: int, where: str) -> None:
    """Refuse labels out of range, and name the first."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        first = int(wrong[0])
        raise DataError(
            f"{where}: label {int(labels[first])} of image {first} is not one of 0 to {classes - 1}"
        )
