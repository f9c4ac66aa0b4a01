"""Arrays of one file, .npz or .safetensors: measured by what their heads say, and only then read.

An archive of a few kilobytes can unpack to gigabytes, and a head can declare what is not there, so
types, shapes and sizes are looked at before memory is taken for values.
"""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from submodel.errors import DataError, SubmodelError, plain

ArrayShapes = dict[str, tuple[int, ...]]
Check = Callable[[ArrayShapes, int], None]
"""Raises for shapes, and bytes in all, that are not wanted."""
_STORAGE = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}
"""How a member may be stored, and the most that a byte of it can become."""
_TYPES = ("bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)))
_NUMPY = (*_TYPES, "float16", "float32", "float64")
_SAFETENSORS = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4,
                "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}  # fmt: skip
_HEADS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_CHUNK = 1 << 20


def read_arrays(path: Path, names: Sequence[str], check: Check) -> list[Tensor]:
    """The named arrays of a file, after ``check`` has seen their shapes; raises `DataError`."""
    try:
        if not path.is_file():
            raise DataError("no such file" if not path.exists() else "not a file")
        if path.suffix == ".npz":
            return _from_npz(path, names, check)
        return _from_safetensors(path, names, check)
    except SubmodelError:
        raise
    except Exception as error:  # whatever reading a stranger's bytes raises
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
        heads = {name: _head(archive, name) for name in names}
        sizes = [math.prod(shape) * dtype.itemsize for dtype, shape, _ in heads.values()]
        check({name: shape for name, (_, shape, _) in heads.items()}, sum(sizes))
        return [torch.from_numpy(_array(archive, name, *head)) for name, head in heads.items()]


def _member(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    member_names = archive.namelist()
    if matches := [one for one in (f"{name}.npy", name) if one in member_names]:
        return archive.getinfo(matches[0])
    raise DataError(f"it holds no {name}")


def _head(
    archive: zipfile.ZipFile, name: str
) -> tuple[np.dtype[Any], tuple[int, ...], tuple[int, bool]]:
    """Type and shape of a member, then where its values begin and whether columns come first."""
    info = _member(archive, name)
    if info.compress_type not in _STORAGE or info.flag_bits & 1:
        raise DataError(f"{name} is encrypted, or compressed other than by deflate")
    with archive.open(info) as content, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy, for heads that Python 2 wrote
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
    return dtype, tuple(shape), (start, columns_first)


def _array(
    archive: zipfile.ZipFile,
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    place: tuple[int, bool],
) -> NDArray[Any]:
    values = np.empty(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    start, columns_first = place
    with archive.open(_member(archive, name)) as content:
        content.read(start)
        _fill(values, content, name)
    whole = values.view(dtype).reshape(shape, order="F" if columns_first else "C")
    return np.ascontiguousarray(whole.astype(dtype.newbyteorder("="), copy=False))


def _fill(values: NDArray[np.uint8], content: IO[bytes], name: str) -> None:
    at = 0
    while chunk := content.read(_CHUNK):  # to its end, where its checksum is compared
        values[at : at + len(chunk)] = np.frombuffer(chunk, dtype=np.uint8)
        at += len(chunk)
    if at != len(values):
        raise DataError(f"{name} ends after {at:,} of {len(values):,} bytes")
