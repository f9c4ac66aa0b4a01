"""Images in folders named by their class: ``train/CLASS/*.png`` and ``test/CLASS/*.png``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field

from submodel.data.examples import Dataset
from submodel.data.images import Images, ImageSet, Pixels, decode, open_picture, stack_pictures
from submodel.data.sources.base import SourceContext
from submodel.errors import DataError
from submodel.options import Count, Section

_SUFFIXES = (".png", ".jpg", ".jpeg")


def read_folder(path: Path, size: int | None = None) -> ImageSet:
    """The images under ``path``; classes are numbered in the order of their names."""
    names = classes_in(path / "train")
    if unknown := sorted(set(classes_in(path / "test")) - set(names)):
        raise DataError(f"{path / 'test'}: no training images of {', '.join(unknown)}")
    pictures, labels = [], []
    for part in (path / "train", path / "test"):
        part_pictures: list[Pixels] = []
        numbers: list[int] = []
        for number, name in enumerate(names):
            files = images_in(part / name)
            if not files and part.name == "train":
                raise DataError(f"{part / name}: no {', '.join(_SUFFIXES)} files")
            part_pictures += [open_image(file, size) for file in files]
            numbers += [number] * len(files)
        if not part_pictures:
            raise DataError(f"{part}: no {', '.join(_SUFFIXES)} files in its classes' folders")
        pictures.append(part_pictures)
        labels.append(np.asarray(numbers, dtype=np.int64))
    pixels = stack_pictures(pictures, str(path))
    return ImageSet(
        Images(pixels[0], labels[0]), Images(pixels[1], labels[1]), tuple(names), "folder"
    )


def classes_in(part: Path) -> list[str]:
    """The names of a part's classes, that is, of its folders."""
    if not part.is_dir():
        raise DataError(f"{part}: no such folder; want train/CLASS/*.png and test/CLASS/*.png")
    names = sorted(entry.name for entry in part.iterdir() if entry.is_dir())
    if not names:
        raise DataError(
            f"{part}: no folders in it, so the images have no labels; want one folder per class"
        )
    return names


def images_in(folder: Path) -> list[Path]:
    """The pictures of one class."""
    if not folder.is_dir():
        return []
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES)


def open_image(file: Path, size: int | None) -> Pixels:
    """The pixels of one picture, a PNG or JPEG file whatever its name."""
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

    @classmethod
    def configured(cls, options: Options, context: SourceContext) -> Dataset:
        """All pictures under the path."""
        path = Path(context.argument).expanduser()
        return context.normalise_images(read_folder(path, options.size))
