"""Keyed randomness: every draw is a pure function of (seed, purpose, round, client, ...).

Nothing is consumed from a shared stream, so a draw can be made again anywhere, by any engine, in
any order, and a resumed run draws what the interrupted one would have drawn.
"""

from __future__ import annotations

import hashlib

import numpy as np


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
