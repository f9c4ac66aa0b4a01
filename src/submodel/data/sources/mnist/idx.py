"""The idx format: a magic number with type and dimensions, their sizes, then the bytes."""

from __future__ import annotations

import math
import zlib

import numpy as np
from numpy.typing import NDArray

from submodel.errors import DataError

_BYTES = 0x08  # the type of unsigned bytes, which all of these files hold
_LONGEST = 1 << 28  # bytes of any file of ours, unpacked


def read_idx(content: bytes, where: str, dimensions: int) -> NDArray[np.uint8]:
    """The array of an idx file, gzipped or not.

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
