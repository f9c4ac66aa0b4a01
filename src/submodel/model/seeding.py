"""PyTorch's own random numbers, which layers such as dropout draw from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int | None, generators: Sequence[torch.Generator] | None = None) -> Iterator[None]:
    """Draws in here follow from the seed; afterwards the generators are as they were.

    Args:
        seed: of every generator; None: they begin as they are.
        generators: the ones to seed; None: all of `default_generators`.

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
    """Seed the generators of this machine; within `seeded`, which puts them back.

    `torch.manual_seed` also keeps a stack trace for every kind of accelerator that is not there,
    each time: more work than a small forward.
    """
    for generator in default_generators():
        generator.manual_seed(seed)


def default_generators(device: torch.device | str = "cpu") -> tuple[torch.Generator, ...]:
    """The generators that layers draw from: the processor's, and those of CUDA devices in use.

    Args:
        device: where layers will compute; a CUDA device is in use from here on.

    >>> len(default_generators()) == 1 + len(torch.cuda.default_generators)
    True
    """
    if torch.device(device).type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
    return (torch.default_generator, *torch.cuda.default_generators)
