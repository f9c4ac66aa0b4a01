"""PyTorch's own random numbers, which layers such as dropout draw from."""

from __future__ import annotations

from functools import cache

import torch


def seed_torch(seed: int) -> None:
    """Seed the generators of this machine.

    `torch.manual_seed` also keeps a stack trace for every kind of accelerator that is not there,
    each time: more work than a small forward.

    >>> seed_torch(3)
    >>> torch.initial_seed()
    3
    """
    if _has_accelerator():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()
