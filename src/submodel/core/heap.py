"""Allocate large blocks apart from the heap, so that freed memory returns to the system.

Once some blocks were freed, the allocator of Linux serves blocks of up to 32 MB from one heap, as
this is quicker for memory that every step allocates and frees. The temporary tensors of preparing
a large model then leave holes there, which added up to the size of the model. On other systems this
module does nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_TRIM, _MMAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_LARGE = 1 << 20  # bytes
_USUAL = 1 << 25  # the largest threshold that the allocator chooses by itself
_depth = 0


@cache
def _library() -> Any:
    """The C library, if its allocator supports `mallopt` and `malloc_trim`."""
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    except (OSError, TypeError):
        return None


@contextmanager
def large_blocks_apart() -> Iterator[None]:
    """Allocate blocks of a megabyte or more outside the heap in this context.

    >>> with large_blocks_apart():
    ...     len(bytearray(1 << 21))
    2097152
    """
    global _depth
    library = _library()
    if library is not None and not _depth:
        library.mallopt(_TRIM, 2 * _USUAL)
        library.mallopt(_MMAP, _LARGE)
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if library is not None and not _depth:
            library.mallopt(_MMAP, _USUAL)


def give_back() -> None:
    """Return the unused memory of the heap to the system.

    >>> give_back()
    """
    if (library := _library()) is not None:
        library.malloc_trim(0)
