"""Keyed randomness: every draw is a pure function of (seed, purpose, round, client, ...).

Nothing is consumed from a shared stream, so a draw can be made again anywhere, by any engine, in
any order, and a resumed run draws what the interrupted one would have drawn.
"""

from __future__ import annotations

import hashlib

import numpy as np

__all__ = ["generator", "key", "permute_index"]


def key(seed: int, purpose: str, *where: int | str) -> int:
    """The 128-bit integer that names one draw.

    >>> key(0, "mask", 3, 7) == key(0, "mask", 3, 7), key(0, "mask", 3, 7) == key(0, "mask", 37)
    (True, False)
    """
    text = "\x1f".join(map(repr, (seed, purpose, *where)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def generator(seed: int, purpose: str, *where: int | str) -> np.random.Generator:
    """The generator for one draw.

    >>> int(generator(0, "example").integers(1000)) == int(generator(0, "example").integers(1000))
    True
    """
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, *where)))


_STEPS = 8  # four make a good permutation of many; of only three or four it takes these to be even


def permute_index(index: int, size: int, seed: int, purpose: str, *where: int | str) -> int:
    """Where a keyed random permutation of ``range(size)`` sends ``index``, without any table.

    A Feistel network permutes the next power of four; what it sends beyond ``size`` it sends on,
    fewer than four times on average. So time and memory do not grow with ``size``.

    >>> [permute_index(i, 5, 0, "example") for i in range(5)]
    [2, 3, 4, 0, 1]
    """
    half = ((size - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    while True:
        high, low = index >> half, index & mask
        for step in range(_STEPS):
            high, low = low, high ^ (key(seed, purpose, *where, step, low) & mask)
        index = high << half | low
        if index < size:
            return index
