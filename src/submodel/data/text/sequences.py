"""Sequences of equal length from streams of tokens, each with the tokens that follow.

A stream of n tokens is cut every ``length`` tokens into windows of ``length`` + 1, so that each of
its tokens but the first is a target once. Windows never cross streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from submodel.data.parts import NO_TARGET
from submodel.data.text.tokens import TokenArray

PADDING = 0
"""What stands in the inputs where a window has no more tokens."""


@dataclass(frozen=True)
class Windows:
    """Inputs and targets, one row per sequence."""

    x: NDArray[np.int32]
    y: NDArray[np.int64]


def count_windows(tokens: int, length: int) -> int:
    """How many windows a stream of so many tokens gives.

    >>> [count_windows(tokens, 4) for tokens in (0, 1, 2, 5, 6, 9)]
    [0, 0, 1, 1, 2, 2]
    """
    return 0 if tokens < 2 else -(-(tokens - 1) // length)


def cut_windows(pieces: Iterable[TokenArray], length: int) -> Iterator[Windows]:
    """The windows of one stream, as its pieces come; the last is filled up with padding.

    Args:
        pieces: the tokens of the stream.
        length: of a sequence.

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
