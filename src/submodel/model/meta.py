"""Operators on tensors without values: only the shapes of what they give count.

PyTorch finds the shapes of most operators at once. Those of products with a bias, activations and
batch norms it finds by Python code for its compiler, which takes a second to load, and milliseconds
per layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from submodel.model.axes.keep import DispatchMode

_aten = torch.ops.aten
_ALIKE = {_aten.relu.default, _aten.gelu.default, _aten.silu.default, _aten.tanh.default}
_NORMS = (_aten.native_batch_norm.default, _aten._native_batch_norm_legit.default)


def shortcut(func: OpOverload, args: tuple[Any, ...]) -> Any:
    """What an operator gives on the meta device; NotImplemented where there is no quicker way.

    >>> x, w = torch.empty(2, 3, device="meta"), torch.empty(3, 4, device="meta")
    >>> shortcut(torch.ops.aten.addmm.default, (w[0], x, w)).shape
    torch.Size([2, 4])
    """
    if func is _aten.addmm.default:
        _, one, other = args[:3]
        if one.is_meta and other.is_meta and one.dtype == other.dtype:
            return one.new_empty((one.shape[0], other.shape[1]))
    elif func in _ALIKE and args[0].is_meta:
        return torch.empty_like(args[0])
    elif func in _NORMS and _trains_on_shapes(args):
        x: Tensor = args[0]
        channels = x.shape[1]
        return torch.empty_like(x), x.new_empty(channels), x.new_empty(channels)
    return NotImplemented


def _trains_on_shapes(args: tuple[Any, ...]) -> bool:
    """Whether a batch norm takes the statistics of such a batch, in full precision."""
    x, training = args[0], args[5]
    return bool(training) and x.is_meta and x.dtype in (torch.float32, torch.float64)


class Shapes(DispatchMode):
    """In here operators on the meta device are as quick as they can be.

    >>> with Shapes():
    ...     torch.nn.Linear(3, 4, device="meta")(torch.empty(2, 3, device="meta")).shape
    torch.Size([2, 4])
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = shortcut(func, args)
        return func(*args, **(kwargs or {})) if result is NotImplemented else result
