"""Untrusted files: folders, archives and arrays, whose sizes are checked before they are read.

An archive of a few kilobytes can unpack to gigabytes, and a header can declare missing data, so
types, shapes and sizes are checked before memory is allocated. Nothing is unpacked to the disk.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import math
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from submodel.core.errors import ConfigError, DataError, SubmodelError, plain

_UNPACKERS: Mapping[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZ": bz2.open,
    b"\xfd7": lzma.open,
}
"""Functions that unpack a file, by its first bytes."""
_BESIDE = 1 << 30
"""Bytes that an archive may hold beside the wanted files."""
_File = tuple[str, int, Callable[[], bytes]]
"""The name of a file, its size, and a function that reads it."""
ArrayShapes = dict[str, tuple[int, ...]]
Check = Callable[[ArrayShapes, int], None]
"""Raises for unwanted shapes, or too many bytes in total."""
_STORAGE = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}
"""Permitted storage of a member, with the largest expansion of a byte."""
_INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
_NUMPY = ("bool", *_INTEGERS, "float16", "float32", "float64")
_SAFETENSORS = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4,
                "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}  # fmt: skip
_HEADS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_CHUNK = 1 << 20
_DECODED_AT_ONCE = 1 << 18


def read_files(path: Path, limits: Mapping[str, int]) -> tuple[dict[str, bytes], set[str]]:
    """Read the wanted files; return their contents by name, and the names of all files.

    ``limits`` gives the wanted names, each with its largest size in bytes. A file's name is its
    last path component; folders are read down to their sub-folders.
    """
    where = f"data.path: {path}"
    if not path.exists():
        raise DataError(f"{where}: no such file or folder")
    contents: dict[str, bytes] = {}
    names: set[str] = set()
    try:
        for name, size, read in _folder(path) if path.is_dir() else _archive(path, limits):
            names.add(name)
            if name not in limits:
                continue
            if name in contents:
                raise DataError(f"{where}: holds two files named {name}")
            if size > limits[name]:
                raise DataError(
                    f"{where}: {name} has {size:,} bytes; at most {limits[name]:,} are expected"
                )
            contents[name] = read()
    except SubmodelError:
        raise
    except OSError as error:
        raise DataError(f"{where}: {error.strerror or error}") from None
    except Exception as error:  # reading untrusted bytes may raise anything
        raise DataError(
            f"{where}: damaged or truncated archive ({plain(error)}); fetch it again"
        ) from None
    return contents, names


def _folder(path: Path) -> Iterator[_File]:
    for file in sorted([*path.glob("*"), *path.glob("*/*")]):
        if file.is_file():
            yield file.name, file.stat().st_size, file.read_bytes


def _archive(path: Path, limits: Mapping[str, int]) -> Iterator[_File]:
    with path.open("rb") as file_start:
        unpack = _UNPACKERS.get(file_start.read(2))
    with path.open("rb") if unpack is None else unpack(path) as raw:
        content = cast(IO[bytes], _BoundedReader(raw, path, limits))
        try:
            archive = tarfile.open(fileobj=content, mode="r:")  # noqa: SIM115
        except tarfile.TarError:
            raise DataError(f"data.path: {path}: neither a folder nor a tar archive") from None
        for member in archive:
            place = PurePosixPath(member.name)
            if place.is_absolute() or ".." in place.parts:
                raise DataError(
                    f"data.path: {path}: its member {plain(member.name, 100)!r} points "
                    "outside the archive; do not trust this archive"
                )
            if member.isfile():
                file = archive.extractfile(member)
                assert file is not None  # it is a file
                yield place.name, member.size, file.read


class _BoundedReader:
    """The content of an archive for `tarfile`, with bounds of the total and of a single read.

    A few kilobytes can unpack to gigabytes, and `tarfile` reads the data before a member (such as
    its name, if long) in one piece.
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


def read_arrays(path: Path, names: Sequence[str], check: Check) -> list[Tensor]:
    """Read named arrays of a file after ``check`` accepted their shapes; raises `DataError`."""
    try:
        if not path.is_file():
            raise DataError("no such file" if not path.exists() else "not a file")
        if path.suffix == ".npz":
            return _from_npz(path, names, check)
        return _from_safetensors(path, names, check)
    except SubmodelError:
        raise
    except Exception as error:  # reading untrusted bytes may raise anything
        raise DataError(f"cannot be read: {type(error).__name__}: {plain(error)}") from None


def _from_safetensors(path: Path, names: Sequence[str], check: Check) -> list[Tensor]:
    with safe_open(path, framework="pt") as file:
        shapes: ArrayShapes = {}
        size = 0
        for name in names:
            if name not in file.keys():  # noqa: SIM118 - it is no mapping
                raise DataError(f"it holds no {name}")
            part = file.get_slice(name)
            shapes[name], kind = tuple(part.get_shape()), part.get_dtype()
            if kind not in _SAFETENSORS:
                raise DataError(
                    f"{name} is of {plain(kind, 60)}; want one of {', '.join(_SAFETENSORS)}"
                )
            size += math.prod(shapes[name]) * _SAFETENSORS[kind]
        check(shapes, size)
        return [file.get_tensor(name) for name in names]


def _from_npz(path: Path, names: Sequence[str], check: Check) -> list[Tensor]:
    with zipfile.ZipFile(path) as archive:
        heads = {name: _read_head(archive, name) for name in names}
        check(
            {name: head.shape for name, head in heads.items()}, sum(h.size for h in heads.values())
        )
        return [torch.from_numpy(_read_array(archive, name, head)) for name, head in heads.items()]


class _Head(NamedTuple):
    info: zipfile.ZipInfo
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    columns_first: bool
    start: int  # of the values
    size: int  # in bytes


def _read_head(archive: zipfile.ZipFile, name: str) -> _Head:
    members = archive.namelist()
    if not (matches := [one for one in (f"{name}.npy", name) if one in members]):
        raise DataError(f"it holds no {name}")
    info = archive.getinfo(matches[0])
    if info.compress_type not in _STORAGE or info.flag_bits & 1:
        raise DataError(f"{name} is encrypted, or compressed other than by deflate")
    with archive.open(info) as content, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns of headers that Python 2 wrote
        version = np.lib.format.read_magic(content)
        if version not in _HEADS:
            raise DataError(f"{name} is of version {version} of the format .npy; want 1.0 or 2.0")
        shape, columns_first, dtype = _HEADS[version](content)
        start = content.tell()
    if dtype.newbyteorder("=").name not in _NUMPY:
        raise DataError(f"{name} is of {plain(dtype, 60)}; want one of {', '.join(_NUMPY)}")
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or info.file_size != start + size:
        raise DataError(f"{name}: {info.file_size - start:,} bytes for shape {plain(shape, 60)}")
    if info.file_size > _STORAGE[info.compress_type] * info.compress_size + _CHUNK:
        raise DataError(f"{name}: {info.compress_size:,} bytes cannot hold {info.file_size:,}")
    return _Head(info, dtype, tuple(shape), columns_first, start, size)


def _read_array(archive: zipfile.ZipFile, name: str, head: _Head) -> NDArray[Any]:
    values = np.empty(head.size, dtype=np.uint8)
    at = 0
    with archive.open(head.info) as content:
        content.read(head.start)
        while chunk := content.read(_CHUNK):  # to the end, where the checksum is compared
            values[at : at + len(chunk)] = np.frombuffer(chunk, dtype=np.uint8)
            at += len(chunk)
    if at != head.size:
        raise DataError(f"{name} ends after {at:,} of {head.size:,} bytes")
    whole = values.view(head.dtype).reshape(head.shape, order="F" if head.columns_first else "C")
    return np.ascontiguousarray(whole.astype(head.dtype.newbyteorder("="), copy=False))


def check_encoding(encoding: str) -> None:
    """Raise unless the name is that of a text encoding.

    >>> check_encoding("rot13")
    Traceback (most recent call last):
    submodel.core.errors.ConfigError: data.encoding: 'rot13' is not an encoding of text, ...
    """
    try:
        "".encode(encoding)
        b"".decode(encoding)
    except (LookupError, ValueError):
        raise ConfigError(
            f"data.encoding: {encoding!r} is not an encoding of text, such as 'utf-8'"
        ) from None


def read_decoded(file: Path, encoding: str) -> Iterator[str]:
    """Yield the text of a file in chunks; raises with the position of an invalid byte."""
    place = 0

    def chunks() -> Iterator[bytes]:
        nonlocal place
        with file.open("rb") as content:
            while chunk := content.read(_DECODED_AT_ONCE):
                place += len(chunk)
                yield chunk

    try:
        yield from codecs.iterdecode(chunks(), encoding, "strict")
    except UnicodeDecodeError as error:  # in the last chunk, or in bytes kept from the one before
        byte = place - len(error.object) + error.start
        raise DataError(
            f"{file}: byte {byte:,} is not {encoding} ({error.reason}); set data.encoding to the "
            "encoding of the file"
        ) from None
    except UnicodeError as error:  # such as utf-16 without its mark
        raise DataError(f"{file}: not {encoding} ({error})") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from None
