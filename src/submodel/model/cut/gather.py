"""What a client of a cut receives, in memory of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Generic, TypeVar

import torch
from torch import Tensor

from submodel.model.cut.base import Cut, Tensors
from submodel.model.cut.flat import CHANNELS_LAST, is_plain, small_layout

_T = TypeVar("_T")


def copy_part(cut: Cut, name: str, whole: Tensor) -> Tensor:
    """What the client holds of one tensor, in memory of its own and laid out as the whole is."""
    if whole.layout is not torch.strided:
        return whole.clone()  # sparse tensors are never cut
    part = cut.part(name, whole)
    if not is_plain(whole):
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
    elif (order := CHANNELS_LAST.get(like.dim())) and like.is_contiguous(memory_format=order):
        new = torch.empty(shape, dtype=values.dtype, device=values.device, memory_format=order)
    else:
        outermost_first = sorted(range(like.dim()), key=lambda d: -strides[d])
        new = values.new_empty([shape[d] for d in outermost_first])
        new = new.permute([outermost_first.index(d) for d in range(like.dim())])
    return new.copy_(values)


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


class CutSource:
    """A model from which many cuts take their parts: those of its small tensors in one step.

    Args:
        whole: the model; it must not change.

    >>> from submodel.model.cut import WHOLE
    >>> CutSource({"w": torch.ones(2)}).gather(WHOLE)
    {'w': tensor([1., 1.])}
    """

    def __init__(self, whole: Tensors) -> None:
        self._whole = whole
        self._layout = small_layout(whole)

    @cached_property
    def _small(self) -> Tensor:
        return self._layout.join(self._whole)

    def gather(self, cut: Cut) -> dict[str, Tensor]:
        """A copy of what a cut holds of every tensor; small ones lie side by side in memory."""
        index = cut.flat_index(self._layout)
        if index is None or not self._layout.size:
            return gather(cut, self._whole)
        shapes = {name: cut.shape(name, shape) for name, shape in self._layout.shapes.items()}
        small = self._layout.split(self._small.index_select(0, index), shapes)
        return {
            name: small[name] if name in small else copy_part(cut, name, tensor)
            for name, tensor in self._whole.items()
        }


class LastCut(Generic[_T]):
    """A function of a cut that remembers its last value: clients with equal cuts come in a row.

    Args:
        compute: the function.
        count: of how many cuts values are remembered.

    >>> from submodel.model.cut import WHOLE
    >>> LastCut(lambda cut: cut.value_count("w", (2, 3)))(WHOLE)
    6
    """

    def __init__(self, compute: Callable[[Cut], _T], count: int = 1) -> None:
        self._compute, self._count = compute, count
        self._last: dict[int, tuple[Cut, _T]] = {}

    def __call__(self, cut: Cut) -> _T:
        """The value for ``cut``."""
        entry = self._last.get(id(cut))
        if entry is None:  # who is remembered lives, so no other cut has its id
            if len(self._last) >= self._count:
                del self._last[next(iter(self._last))]
            entry = self._last[id(cut)] = (cut, self._compute(cut))
        return entry[1]
