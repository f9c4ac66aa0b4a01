"""The memory layout of the values of a cut, and copies of them for a client.

Small tensors are concatenated in one vector, so that a cut selects from all of them in one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from submodel.model.axes.layout import Indices

if TYPE_CHECKING:
    from submodel.model.cut.cuts import Cut, Tensors

_T = TypeVar("_T")
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Memory formats by number of dimensions."""
_MOST = 1 << 16  # largest number of values of a small tensor
_Places = Sequence[tuple[int, Indices]]


class FlatLayout:
    """The positions of several tensors' values in one vector.

    >>> layout = FlatLayout({"w": (2, 3), "b": (2,)})
    >>> layout.positions({"w": [(1, np.array([0, 2]))]}).tolist()
    [0, 2, 3, 5, 6, 7]
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.size = sum(self.sizes)
        ends = np.cumsum([0, *self.sizes]).tolist()
        self._every_position = np.arange(self.size)
        self._tensors = [
            (name, shape, self._every_position[start:end], start)
            for (name, shape), start, end in zip(
                self.shapes.items(), ends[:-1], ends[1:], strict=True
            )
        ]

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Concatenate the values of the layout's tensors; ignore other tensors."""
        return torch.cat([tensors[name].reshape(-1) for name in self.shapes])

    def split(
        self, values: Tensor, shapes: Mapping[str, Sequence[int]] | None = None
    ) -> dict[str, Tensor]:
        """Split a vector into tensors that share its memory."""
        if shapes is None:
            shapes, sizes = self.shapes, self.sizes
        else:
            sizes = [math.prod(shapes[name]) for name in self.shapes]
        parts = torch.split(values, sizes)
        return {
            name: part.view(shapes[name]) for name, part in zip(self.shapes, parts, strict=True)
        }

    def positions(self, plan: Mapping[str, _Places]) -> NDArray[np.int64]:
        """Positions in the vector of the values that a plan keeps."""
        parts = []
        for name, shape, everything, start in self._tensors:
            if name in plan:
                parts.append(kept_rows(shape, plan[name], self.size + 1)[0] + start)
            else:
                parts.append(everything)
        return np.concatenate(parts) if parts else self._every_position


def kept_rows(
    shape: Sequence[int], places: Iterable[tuple[int, Indices]], least: int = 1
) -> tuple[Indices, int]:
    """The indices of the kept rows of a contiguous tensor, and the length of a row.

    Args:
        shape: the shape of the tensor.
        places: the kept positions along the dimensions that are cut.
        least: the least length of a row; shorter rows are divided into single values.

    >>> kept_rows((2, 3, 5), [(1, np.array([0, 2]))])
    (array([0, 2, 3, 5]), 5)
    """
    by_dimension = dict(places)
    last = max(by_dimension)
    length = math.prod(shape[last + 1 :])
    if length < least:
        rows, step, length = _count_up(length), length, 1
    else:
        rows, step = _count_up(1), 1
    for d in range(last, -1, -1):
        outer = by_dimension.get(d)
        outer = _count_up(shape[d]) if outer is None else outer
        rows = ((outer * step)[:, None] + rows).reshape(-1)
        step *= shape[d]
    return rows, length


@lru_cache(maxsize=256)
def _count_up(count: int) -> NDArray[np.int64]:
    return np.arange(count)


@lru_cache(maxsize=16)
def _layout(*shapes: tuple[str, tuple[int, ...]]) -> FlatLayout:
    return FlatLayout(dict(shapes))


def small_layout(tensors: Mapping[str, Tensor]) -> FlatLayout:
    """The layout of the small tensors: of one type, on the CPU, contiguous.

    >>> small_layout({"w": torch.ones(2), "n": torch.tensor(3)}).size
    2
    """
    kind = next((t.dtype for t in tensors.values() if t.is_floating_point()), None)
    shapes = [(name, tuple(t.shape)) for name, t in tensors.items() if _is_small(t, kind)]
    return _layout(*shapes)


def _is_small(tensor: Tensor, kind: torch.dtype | None) -> bool:
    return (
        tensor.dtype == kind
        and tensor.numel() <= _MOST
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and is_plain(tensor)
    )


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is contiguous with the strides of that order.

    >>> is_plain(torch.ones(2, 3)), is_plain(torch.ones(2, 3).t())
    (True, False)
    """
    if not tensor.is_contiguous():
        return False
    if tensor.dim() not in CHANNELS_LAST:
        return True  # kernels inspect the strides of other tensors only
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != step:
            return False
        step *= max(size, 1)
    return True


def copy_part(cut: Cut, name: str, whole: Tensor) -> Tensor:
    """A copy of the client's part of one tensor, in the memory order of the whole."""
    if whole.layout is not torch.strided:
        return whole.clone()  # sparse tensors are never cut
    part = cut.part(name, whole)
    if not is_plain(whole):
        return lay_out(part, whole)
    shares_memory = part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    return part.clone(memory_format=torch.contiguous_format) if shares_memory else part.contiguous()


def lay_out(values: Tensor, like: Tensor) -> Tensor:
    """A copy of ``values`` with the memory order of ``like``.

    Kernels depend on the order: the same weights in channels-last order give different bits.

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
    """Return whether a tensor's values fill its memory without gaps or overlap."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def gather(cut: Cut, whole: Tensors) -> dict[str, Tensor]:
    """A copy of the part of every tensor that ``cut`` holds."""
    return {name: copy_part(cut, name, tensor) for name, tensor in whole.items()}


class CutSource:
    """The tensors of a model, constant meanwhile, from which cuts are gathered.

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
        """A copy of a cut's part of every tensor; small tensors are selected in one step."""
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
    """A function of a cut that caches its last values, as clients with equal cuts are neighbours.

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
        if entry is None:  # cached cuts stay alive, so ids are unique
            if len(self._last) >= self._count:
                del self._last[next(iter(self._last))]
            entry = self._last[id(cut)] = (cut, self._compute(cut))
        return entry[1]
