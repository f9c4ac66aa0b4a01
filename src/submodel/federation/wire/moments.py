"""Moments on the wire: what the static norms of a sub-model saw of a device's examples."""

from __future__ import annotations

import torch
from torch import Tensor

from submodel.algorithm.types import Task
from submodel.federation.wire.parcel import Limits, Parcel, WireError


def moments_limits(task: Task) -> Limits:
    """What norm statistics may have: count, mean and variance as float64, for any 1-d tensor."""
    return Limits.of(sum(24 * t.numel() for t in task.tensors.values() if t.dim() == 1))


def moments_parcel(rows: Tensor) -> Parcel:
    """What a device sends back: counts, means and variances, as `read_moments` returns them."""
    return Parcel({}, {"rows": rows})


def read_moments(parcel: Parcel, columns: int) -> Tensor:
    """The rows of a parcel; raises `WireError` if they cannot be statistics.

    Args:
        parcel: What a device has sent.
        columns: How many numbers the norms of its sub-model have in a row.

    >>> read_moments(moments_parcel(torch.ones(1, 3, dtype=torch.float64)), 3).shape
    torch.Size([1, 3])
    """
    rows = parcel.tensors.get("rows")
    if rows is None or rows.dtype != torch.float64 or rows.dim() != 2 or rows.shape[1] != columns:
        raise WireError("it holds no statistics of this model")
    if not bool(torch.isfinite(rows).all()) or bool((rows[:, 0] <= 0).any()):
        raise WireError("its statistics are not finite")
    return rows
