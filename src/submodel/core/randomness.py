"""Keyed randomness: every draw is a pure function of (seed, purpose, round, client, ...).

Nothing is consumed from a shared stream, so a draw can be made again anywhere, by any engine, in
any order, and a resumed run repeats the draws of an uninterrupted one. Layers such as dropout
draw from PyTorch's own generators: these are seeded for a task, and restored after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = ["generator", "key", "permute_index"]


def key(seed: int, purpose: str, *where: int | str) -> int:
    """Return the 128-bit integer that names one draw.

    >>> key(0, "mask", 3, 7) == key(0, "mask", 3, 7), key(0, "mask", 3, 7) == key(0, "mask", 37)
    (True, False)
    """
    text = "\x1f".join(map(repr, (seed, purpose, *where)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def generator(seed: int, purpose: str, *where: int | str) -> np.random.Generator:
    """Return the generator for one draw.

    >>> int(generator(0, "example").integers(1000)) == int(generator(0, "example").integers(1000))
    True
    """
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, *where)))


_STEPS = 8  # four permute a large range well; a range of three or four needs eight to be uniform


def permute_index(index: int, size: int, seed: int, purpose: str, *where: int | str) -> int:
    """Map ``index`` by a keyed random permutation of ``range(size)``, without a table.

    A Feistel network permutes the next power of four. A result beyond ``size`` is mapped again,
    fewer than four times on average, so time and memory do not grow with ``size``.

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


@contextmanager
def seeded(seed: int | None, generators: Sequence[torch.Generator] | None = None) -> Iterator[None]:
    """Make draws in this context follow from the seed; restore the generators afterwards.

    Args:
        seed: of every generator; None leaves their states.
        generators: the generators to seed; None means all of `default_generators`.

    >>> import torch
    >>> before = torch.random.get_rng_state()
    >>> with seeded(3):
    ...     first = torch.rand(1)
    >>> with seeded(3):
    ...     print(torch.equal(first, torch.rand(1)))
    True
    >>> torch.equal(before, torch.random.get_rng_state())
    True
    """
    generators = default_generators() if generators is None else generators
    states = [generator.get_state() for generator in generators]
    try:
        if seed is not None:
            for generator in generators:
                generator.manual_seed(seed)
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def seed_torch(seed: int) -> None:
    """Seed the generators of this machine; call it within `seeded`, which restores them.

    `torch.manual_seed` also keeps a stack trace for every kind of absent accelerator, each time:
    more work than a small forward.
    """
    for generator in default_generators():
        generator.manual_seed(seed)


def default_generators(device: torch.device | str = "cpu") -> tuple[torch.Generator, ...]:
    """Return the generators of layers: the processor's, and those of CUDA devices in use.

    Args:
        device: the device of the layers; a CUDA device is in use from then on.

    >>> import torch
    >>> len(default_generators()) == 1 + len(torch.cuda.default_generators)
    True
    """
    import torch

    if torch.device(device).type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
    return (torch.default_generator, *torch.cuda.default_generators)
