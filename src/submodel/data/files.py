"""Files by name, from a folder or a tar archive; an archive is read, never unpacked."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from submodel.errors import DataError, SubmodelError, plain

_UNPACKERS: Mapping[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZ": bz2.open,
    b"\xfd7": lzma.open,
}
"""By the first bytes of a file, what unpacks it."""
_BESIDE = 1 << 30
"""Bytes that an archive may hold beside the wanted files."""


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
    contents: dict[str, bytes] = {}
    names: set[str] = set()
    for file in sorted([*path.glob("*"), *path.glob("*/*")]):
        if not file.is_file():
            continue
        names.add(file.name)
        if file.name in limits:
            _check(path, file.name, file.stat().st_size, limits, contents)
            contents[file.name] = file.read_bytes()
    return contents, names


def _from_archive(path: Path, limits: Mapping[str, int]) -> tuple[dict[str, bytes], set[str]]:
    contents: dict[str, bytes] = {}
    names: set[str] = set()
    is_open = False
    try:
        with path.open("rb") as file_start:
            unpack = _UNPACKERS.get(file_start.read(2))
        raw = path.open("rb") if unpack is None else unpack(path)
        content = cast(IO[bytes], _BoundedReader(raw, path, limits))
        with raw, tarfile.open(fileobj=content, mode="r:") as archive:
            is_open = True
            for member in archive:
                place = PurePosixPath(member.name)
                if place.is_absolute() or ".." in place.parts:
                    raise DataError(
                        f"data.path: {path}: its member {plain(member.name, 100)!r} points "
                        "outside the archive; this is no archive to trust"
                    )
                if not member.isfile():
                    continue
                names.add(place.name)
                if place.name in limits:
                    _check(path, place.name, member.size, limits, contents)
                    file = archive.extractfile(member)
                    assert file is not None  # it is a file
                    contents[place.name] = file.read()
    except (SubmodelError, OSError):
        raise
    except Exception as error:  # whatever reading a stranger's bytes raises
        if is_open or not isinstance(error, tarfile.TarError):
            raise DataError(
                f"data.path: {path}: damaged or truncated archive ({plain(error)}); fetch it again"
            ) from None
        raise DataError(f"data.path: {path}: neither a folder nor a tar archive") from None
    return contents, names


class _BoundedReader:
    """The content of an archive as `tarfile` reads it: so much in all, and so much at once.

    A few kilobytes unpack to gigabytes if they say so, and `tarfile` takes what comes before a
    member (its name, if that is long) in one piece.
    """

    def __init__(self, content: object, path: Path, limits: Mapping[str, int]) -> None:
        self._content, self._path = cast(IO[bytes], content), path
        self._most = sum(limits.values()) + _BESIDE
        self._at_once = max(limits.values(), default=0) + tarfile.RECORDSIZE

    def read(self, size: int) -> bytes:
        if size > self._at_once:
            raise DataError(f"data.path: {self._path}: a member with a head of {size:,} bytes")
        self._stay_within(self.tell() + size)
        return self._content.read(size)

    def seek(self, position: int) -> int:
        self._stay_within(position)
        return self._content.seek(position)

    def tell(self) -> int:
        return self._content.tell()

    def _stay_within(self, end: int) -> None:
        if end > self._most:
            raise DataError(f"data.path: {self._path}: more than {self._most:,} bytes unpacked")


def _check(
    path: Path, name: str, size: int, limits: Mapping[str, int], contents: Mapping[str, bytes]
) -> None:
    if name in contents:
        raise DataError(f"data.path: {path}: holds two files named {name}")
    if size > limits[name]:
        raise DataError(
            f"data.path: {path}: {name} has {size:,} bytes; at most {limits[name]:,} are expected"
        )
