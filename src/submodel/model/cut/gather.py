"""What a client of a cut receives, in memory of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

from submodel.model.cut.base import Cut, Tensors

_T = TypeVar("_T")


def copy_part(cut: Cut, name: str, whole: Tensor) -> Tensor:
    """What the client holds of one tensor, in memory of its own and laid out as the whole is."""
    if whole.layout is not torch.strided:
        return whole.clone()  # sparse tensors are never cut
    part = cut.part(name, whole)
    if not _is_plain(whole):
        return lay_out(part, whole)
    shares_memory = part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    return part.clone(memory_format=torch.contiguous_format) if shares_memory else part.contiguous()


def lay_out(values: Tensor, like: Tensor) -> Tensor:
    """A copy of ``values`` whose dimensions follow each other in memory as those of ``like`` do.

    Kernels go by it: the same weights in channels-last order make other bits.

    >>> image = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    >>> lay_out(torch.ones(1, 2, 4, 4), image).stride()
    (32, 1, 8, 2)
    """
    shape, strides = values.shape, like.stride()
    if shape == like.shape and _is_dense(like):
        new = torch.empty_strided(shape, strides, dtype=values.dtype, device=values.device)
    elif (order := _FORMATS.get(like.dim())) and like.is_contiguous(memory_format=order):
        new = torch.empty(shape, dtype=values.dtype, device=values.device, memory_format=order)
    else:
        outermost_first = sorted(range(like.dim()), key=lambda d: -strides[d])
        new = values.new_empty([shape[d] for d in outermost_first])
        new = new.permute([outermost_first.index(d) for d in range(like.dim())])
    return new.copy_(values)


_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor lies in memory row by row, and says so."""
    if not tensor.is_contiguous():
        return False
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != step:
            return not _FORMATS.get(tensor.dim())  # of other tensors, no kernel asks
        step *= max(size, 1)
    return True


def _is_dense(tensor: Tensor) -> bool:
    """Whether the values of a tensor fill its memory, each place once."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def gather(cut: Cut, whole: Tensors) -> dict[str, Tensor]:
    """What the client of ``cut`` receives: a copy of its part of every tensor."""
    return {name: copy_part(cut, name, tensor) for name, tensor in whole.items()}


class LastCut(Generic[_T]):
    """A function of a cut that remembers its last value: clients with equal cuts come in a row.

    >>> from submodel.model.cut import WHOLE
    >>> LastCut(lambda cut: cut.value_count("w", (2, 3)))(WHOLE)
    6
    """

    def __init__(self, compute: Callable[[Cut], _T]) -> None:
        self._compute = compute
        self._last: tuple[Cut, _T] | None = None

    def __call__(self, cut: Cut) -> _T:
        """The value for ``cut``."""
        if self._last is None or self._last[0] is not cut:
            self._last = (cut, self._compute(cut))
        return self._last[1]
