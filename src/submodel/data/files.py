"""Files by name, from a folder or a tar archive; an archive is read, never unpacked."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from submodel.errors import DataError


def read_files(path: Path, limits: Mapping[str, int]) -> tuple[dict[str, bytes], set[str]]:
    """The contents of the wanted files that are there, and the names of all that are there.

    ``limits`` says which names are wanted and how many bytes each may have. Files count by their
    last name, in a folder down to its sub-folders.
    """
    if not path.exists():
        raise DataError(f"data.path: {path}: no such file or folder")
    try:
        return _from_folder(path, limits) if path.is_dir() else _from_archive(path, limits)
    except OSError as error:
        raise DataError(f"data.path: {path}: {error.strerror or error}") from None


def _from_folder(path: Path, limits: Mapping[str, int]) -> tuple[dict[str, bytes], set[str]]:
    found: dict[str, bytes] = {}
    names: set[str] = set()
    for file in sorted([*path.glob("*"), *path.glob("*/*")]):
        if not file.is_file():
            continue
        names.add(file.name)
        if file.name in limits:
            _check(path, file.name, file.stat().st_size, limits, found)
            found[file.name] = file.read_bytes()
    return found, names


def _from_archive(path: Path, limits: Mapping[str, int]) -> tuple[dict[str, bytes], set[str]]:
    found: dict[str, bytes] = {}
    names: set[str] = set()
    opened = False
    try:
        with tarfile.open(path) as archive:
            opened = True
            for member in archive:
                place = PurePosixPath(member.name)
                if place.is_absolute() or ".." in place.parts:
                    raise DataError(
                        f"data.path: {path}: its member {member.name!r} points outside the "
                        "archive; this is no archive to trust"
                    )
                if not member.isfile():
                    continue
                names.add(place.name)
                if place.name in limits:
                    _check(path, place.name, member.size, limits, found)
                    content = archive.extractfile(member)
                    assert content is not None  # it is a file
                    found[place.name] = content.read()
    except (EOFError, zlib.error, tarfile.TarError) as error:
        if opened or isinstance(error, EOFError | zlib.error):
            raise DataError(
                f"data.path: {path}: damaged or truncated archive ({error}); fetch it again"
            ) from None
        raise DataError(f"data.path: {path}: neither a folder nor a tar archive") from None
    return found, names


def _check(
    path: Path, name: str, size: int, limits: Mapping[str, int], found: Mapping[str, bytes]
) -> None:
    if name in found:
        raise DataError(f"data.path: {path}: holds two files named {name}")
    if size > limits[name]:
        raise DataError(
            f"data.path: {path}: {name} has {size:,} bytes; at most {limits[name]:,} are expected"
        )
