"""What no sane update holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import torch
from torch import Tensor

from submodel.model.cut import Tensors

LARGEST_VALUE = 2.0**14
"""No weight of a sane model is larger; with the next bound it keeps every sum below 2^53: exact."""


def misfit(shapes: Mapping[str, Sequence[int]], tensors: Tensors) -> str | None:
    """Which tensor is missing, unknown, or of another shape, in words; None if all fit.

    Args:
        shapes: what the tensors of a cut must have.
        tensors: what came.

    >>> misfit({"w": (2,)}, {"w": torch.ones(3)})
    'w has shape (3,), which does not fit the cut'
    """
    if missing := shapes.keys() ^ tensors.keys():
        return f"tensors do not match: {sorted(missing)[0]!r} is missing or unknown"
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != tuple(shape):
            return f"{name} has shape {tuple(tensors[name].shape)}, which does not fit the cut"
    return None


LARGEST_STATISTIC = 2.0**60
"""No statistic of a sane model is larger: raw features of a billion have a variance of 2^60."""


def unsound(
    tensors: Tensors,
    statistics: AbstractSet[str] = frozenset(),
    before: Callable[[str], Tensor] | None = None,
) -> str | None:
    """Which tensor holds a value that no sane model has, in words; None if none does.

    Args:
        tensors: what came.
        statistics: those that are no weights, but buffers: they have the scale of the data.
        before: the values that were sent; a tensor that still has them is not judged.

    >>> unsound({"w": torch.tensor([1.0, float("inf")])})
    'w holds a value that is not finite'
    """
    if not tensors:
        return None
    norms = torch.stack(torch._foreach_norm(list(tensors.values()))).tolist()
    if all(norm <= LARGEST_VALUE for norm in norms):
        return None  # no value is larger than the norm
    for name, tensor in tensors.items():
        largest = max(map(abs, map(float, tensor.aminmax()))) if tensor.numel() else 0.0
        if not math.isfinite(largest):
            return f"{name} holds a value that is not finite"
        most = LARGEST_STATISTIC if name in statistics else LARGEST_VALUE
        if largest > most and (before is None or not torch.equal(before(name), tensor)):
            return f"{name} holds a value of size {largest:.3g}: training diverged"
    return None
