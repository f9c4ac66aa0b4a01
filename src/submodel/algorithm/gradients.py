"""A client's gradient over all its examples, as one step: whatever runs tasks can measure it."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from submodel.local.work import LocalWork
from submodel.model.cut import Tensors

_STEP = 2.0**24
"""So long that float32 rounds w off w - step * gradient, and nothing off the gradient."""
WORK = LocalWork(lr=_STEP, epochs=None, steps=1, batch_size=None)
"""What the client does."""


def gradients(before: Tensors, after: Tensors, names: Iterable[str]) -> dict[str, Tensor]:
    """What `WORK` moved the tensors by, per step size.

    >>> import torch
    >>> gradients({"w": torch.tensor([1.0])}, {"w": torch.tensor([1.0 - 2.0**23])}, ["w"])
    {'w': tensor([0.5000])}
    """
    return {
        n: ((before[n].double() - after[n].double()) / _STEP).to(before[n].dtype) for n in names
    }
