"""Sequences of equal length from streams of tokens, each with the tokens that follow.

A stream of n tokens is cut every ``length`` tokens into windows of ``length`` + 1, so that every
token except the first is a target once. Windows never cross streams. Few windows are kept in
memory, many in mapped files: a batch reads the pages that it needs, and the system releases them
when memory is short.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from submodel.core.errors import DataError, plain
from submodel.data.parts import NO_TARGET
from submodel.data.text.tokens import TokenArray

PADDING = 0
"""Input at places after the last token of a window."""
LARGE = 64 << 20
"""Bytes of inputs and targets above which they are kept in files."""
BYTES_PER_PLACE = 16
"""Bytes of an input and its target in memory: 64 bits each, as embeddings and losses require."""
_TYPES: dict[str, np.dtype[Any]] = {"x": np.dtype(np.int32), "y": np.dtype(np.int64)}
"""Types in files; embeddings accept 32 bits as well."""


class Windows(NamedTuple):
    """Inputs and targets, one row per sequence."""

    x: NDArray[np.int32]
    y: NDArray[np.int64]


def count_windows(tokens: int, length: int) -> int:
    """Return the number of windows of a stream of tokens.

    >>> [count_windows(tokens, 4) for tokens in (0, 1, 2, 5, 6, 9)]
    [0, 0, 1, 1, 2, 2]
    """
    return 0 if tokens < 2 else -(-(tokens - 1) // length)


def cut_windows(pieces: Iterable[TokenArray], length: int) -> Iterator[Windows]:
    """Yield the windows of one stream as they are complete; the last one is padded.

    >>> (windows,) = cut_windows([np.arange(5, dtype=np.int32)], 4)
    >>> windows.x.tolist(), windows.y.tolist()
    ([[0, 1, 2, 3]], [[1, 2, 3, 4]])
    """
    rest: TokenArray = np.zeros(0, dtype=np.int32)
    for piece in pieces:
        rest = np.concatenate([rest, piece])
        if whole := max(len(rest) - 1, 0) // length:
            end = whole * length
            yield _shape(rest[:end], rest[1 : end + 1], length)
            rest = rest[end:]
    if len(rest) > 1:
        missing = length + 1 - len(rest)
        x = np.pad(rest[:-1], (0, missing), constant_values=PADDING)
        y = np.pad(rest[1:].astype(np.int64), (0, missing), constant_values=NO_TARGET)
        yield _shape(x, y, length)


def _shape(x: NDArray[np.int32], y: NDArray[np.signedinteger], length: int) -> Windows:
    return Windows(x.reshape(-1, length), y.reshape(-1, length).astype(np.int64))


def stack_windows(windows: Sequence[Windows], length: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets in memory.

    >>> windows = Windows(np.zeros((1, 2), np.int32), np.ones((1, 2), np.int64))
    >>> stack_windows([windows], 2)[1].tolist()
    [[1, 1]]
    """
    empty = np.zeros((0, length), dtype=np.int64)
    x = np.concatenate([empty, *(part.x for part in windows)])
    y = np.concatenate([empty, *(part.y for part in windows)])
    return torch.from_numpy(x), torch.from_numpy(y)


class WindowFiles:
    """Writer of windows to two .npy files, from beginning to end; a context manager.

    Args:
        folder: an existing folder.
        part: ``train`` or ``test``, the beginning of the files' names.
        length: of a sequence.
    """

    def __init__(self, folder: Path, part: str, length: int) -> None:
        self._length, self._rows = length, 0
        self._files: dict[str, IO[bytes]] = {}
        for name in _TYPES:
            self._files[name] = array_file(folder, part, name).open("wb")
            self._write_head(name)
        self._start = {name: file.tell() for name, file in self._files.items()}

    def _write_head(self, name: str) -> None:
        kind, shape = _TYPES[name].str, (self._rows, self._length)
        head = {"descr": kind, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._files[name], head)

    def append(self, windows: Windows) -> None:
        """Append windows."""
        self._files["x"].write(np.ascontiguousarray(windows.x).data)
        self._files["y"].write(np.ascontiguousarray(windows.y).data)
        self._rows += len(windows.x)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Write the final sizes to the headers, for which numpy leaves space; close the files."""
        for name, file in self._files.items():
            with file:
                if error is None:
                    file.seek(0)
                    self._write_head(name)
                    assert file.tell() == self._start[name]
                    file.flush()
                    os.fsync(file.fileno())


def array_file(folder: Path, part: str, name: str) -> Path:
    """Return the file of the inputs (x) or targets (y) of a part."""
    return folder / f"{part}.{name}.npy"


def map_windows(folder: Path, part: str, rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets as views of their files; raises if these are damaged."""
    tensors = []
    for name, kind in _TYPES.items():
        file = array_file(folder, part, name)
        try:
            # copy-on-write: changes of a tensor never reach the file
            array = np.load(file, mmap_mode="c", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{file}: damaged ({plain(error)}); delete {folder}") from None
        if array.dtype != kind or array.shape != (rows, length):
            raise DataError(
                f"{file}: damaged ({array.dtype} of shape {array.shape}); delete {folder}"
            )
        tensors.append(torch.from_numpy(array))
    return tensors[0], tensors[1]
