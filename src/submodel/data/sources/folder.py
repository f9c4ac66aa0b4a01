"""Images in folders by class: train/CLASS/*.png and test/CLASS/*.png, or CLASS/*.png alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from submodel.core.errors import ConfigError, DataError
from submodel.core.options import Count, Section
from submodel.core.randomness import generator
from submodel.data.examples import Dataset
from submodel.data.images import Images, ImageSet, Pixels, decode, open_picture, stack_pictures
from submodel.data.sources import SourceContext

_SUFFIXES = (".png", ".jpg", ".jpeg")


_LAYOUTS = "want train/CLASS/*.png and test/CLASS/*.png, or CLASS/*.png alone"
_TEST_SHARE = 0.2


def read_folder(path: Path, size: int | None = None, test_share: float | None = None) -> ImageSet:
    """Read the images under ``path``; classes are numbered in the order of their names.

    Args:
        path: a folder with the folders train and test, or else with a folder per class.
        size: resize images to this square; None keeps their sizes.
        test_share: without train and test, the share of every class in the test part, drawn
            once; None means a fifth.
    """
    parts = [path / "train", path / "test"]
    if any(part.is_dir() for part in parts):
        if test_share is not None:
            raise ConfigError(
                f"data.test_share: {path} has the folders train and test; leave it out"
            )
        files = [_labelled_files(part, classes_in(parts[0])) for part in parts]
        if unknown := sorted(set(classes_in(parts[1])) - set(classes_in(parts[0]))):
            raise DataError(f"{parts[1]}: no training images of {', '.join(unknown)}")
    else:
        parts = [path, path]
        files = _draw_test_files(_labelled_files(path, classes_in(path)), test_share)
    names = classes_in(parts[0])
    if empty := sorted(set(range(len(names))) - {number for _, number in files[0]}):
        raise DataError(f"{parts[0] / names[empty[0]]}: no {', '.join(_SUFFIXES)} files")
    if not files[1]:
        raise DataError(f"{parts[1]}: no {', '.join(_SUFFIXES)} files for a test part")
    pictures = [[open_image(file, size) for file, _ in part] for part in files]
    train, test = (
        Images(pixels, np.asarray([number for _, number in part], dtype=np.int64))
        for pixels, part in zip(stack_pictures(pictures, str(path)), files, strict=True)
    )
    return ImageSet(train, test, tuple(names), "folder")


def _labelled_files(part: Path, names: Sequence[str]) -> list[tuple[Path, int]]:
    """Return the pictures of all classes, each with the number of its class."""
    return [(file, place) for place, name in enumerate(names) for file in images_in(part / name)]


def _draw_test_files(
    files: Sequence[tuple[Path, int]], share: float | None
) -> list[list[tuple[Path, int]]]:
    """Draw the training and the test part once; every class keeps a picture for training."""
    labels = np.array([number for _, number in files], dtype=np.int64)
    is_test = np.zeros(len(files), np.bool_)
    for label in np.unique(labels):
        members = generator(0, "folder", int(label)).permutation(np.flatnonzero(labels == label))
        count = max(1, round((share or _TEST_SHARE) * len(members)))
        is_test[members[: min(count, len(members) - 1)]] = True
    return [
        [file for file, tests in zip(files, is_test, strict=True) if tests == part]
        for part in (False, True)
    ]


def classes_in(part: Path) -> list[str]:
    """Return the names of a part's classes, which are its folders."""
    if not part.is_dir():
        raise DataError(f"{part}: no such folder; {_LAYOUTS}")
    names = sorted(entry.name for entry in part.iterdir() if entry.is_dir())
    if not names:
        raise DataError(f"{part}: no folders in it, so the images have no labels; {_LAYOUTS}")
    return names


def images_in(folder: Path) -> list[Path]:
    """Return the pictures of one class."""
    if not folder.is_dir():
        return []
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES)


def open_image(file: Path, size: int | None) -> Pixels:
    """Return the pixels of one PNG or JPEG file, whatever its suffix."""
    try:
        if not file.is_file():
            raise DataError(f"{file}: not a file")
        with file.open("rb") as content, open_picture(content, str(file), "PNG", "JPEG") as image:
            return decode(image, size)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error})") from None


class Folder:
    """Images in a folder, as a source."""

    class Options(Section):
        """The keys of ``folder:PATH``."""

        size: Count | None = Field(None, description="resize images to this square")
        test_share: Annotated[float, Field(gt=0, lt=1)] | None = Field(
            None,
            description="in a folder without train and test: the share of every class in the "
            f"test part, drawn once (default: {_TEST_SHARE})",
        )

    @classmethod
    def configured(cls, options: Options, context: SourceContext) -> Dataset:
        """Read all pictures under the path."""
        path = Path(context.argument).expanduser()
        return context.normalise_images(read_folder(path, options.size, options.test_share))
