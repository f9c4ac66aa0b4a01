"""What no sane update holds."""

from __future__ import annotations

import math

import torch

from submodel.model.cut import Tensors

LARGEST_VALUE = 2.0**14
"""No weight of a sane model is larger; with the next bound it keeps every sum below 2^53: exact."""


def unsound(tensors: Tensors) -> str | None:
    """Which tensor holds a value that no sane model has, in words; None if none does.

    >>> unsound({"w": torch.tensor([1.0, float("inf")])})
    'w holds a value that is not finite'
    """
    norms = torch.stack(torch._foreach_norm(list(tensors.values()))).tolist()
    if all(norm <= LARGEST_VALUE for norm in norms):
        return None  # no value is larger than the norm
    for name, tensor in tensors.items():
        largest = max(map(abs, map(float, tensor.aminmax()))) if tensor.numel() else 0.0
        if not math.isfinite(largest):
            return f"{name} holds a value that is not finite"
        if largest > LARGEST_VALUE:
            return f"{name} holds a value of size {largest:.3g}: training diverged"
    return None
