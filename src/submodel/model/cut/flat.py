"""Small tensors side by side in one vector, so that a cut takes its part of all in one step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from submodel.model.axes.layout import Indices

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By how many dimensions a tensor has."""
_MOST = 1 << 16  # values of a small tensor
_Places = Sequence[tuple[int, Indices]]


class FlatLayout:
    """Where the values of some tensors are in one vector.

    Args:
        shapes: of the tensors, by name; in this order.

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
        """The vector of the tensors' values; others are left out."""
        return torch.cat([tensors[name].reshape(-1) for name in self.shapes])

    def split(
        self, values: Tensor, shapes: Mapping[str, Sequence[int]] | None = None
    ) -> dict[str, Tensor]:
        """The tensors of a vector, which share its memory.

        Args:
            values: all of them, or what a cut holds.
            shapes: what they have in it; None: those of the layout.
        """
        if shapes is None:
            shapes, sizes = self.shapes, self.sizes
        else:
            sizes = [math.prod(shapes[name]) for name in self.shapes]
        parts = torch.split(values, sizes)
        return {
            name: part.view(shapes[name]) for name, part in zip(self.shapes, parts, strict=True)
        }

    def positions(self, plan: Mapping[str, _Places]) -> NDArray[np.int64]:
        """Where in the vector the values are that a plan keeps, tensor by tensor, row by row."""
        parts = [
            _positions(start, shape, plan[name]) if name in plan else everything
            for name, shape, everything, start in self._tensors
        ]
        return np.concatenate(parts) if parts else self._every_position


def _positions(start: int, shape: Sequence[int], places: _Places) -> NDArray[np.int64]:
    """Those of one tensor, whose values begin at ``start``."""
    by_dimension = dict(places)
    last = max(by_dimension)
    inner = math.prod(shape[last + 1 :])
    index, step = _count_up(inner), inner
    for d in range(last, -1, -1):
        outer = by_dimension.get(d)
        outer = _count_up(shape[d]) if outer is None else outer
        index = ((outer * step)[:, None] + index).reshape(-1)
        step *= shape[d]
    return index + start


@lru_cache(maxsize=256)
def _count_up(count: int) -> NDArray[np.int64]:
    return np.arange(count)


@lru_cache(maxsize=16)
def _layout(*shapes: tuple[str, tuple[int, ...]]) -> FlatLayout:
    return FlatLayout(dict(shapes))


def small_layout(tensors: Mapping[str, Tensor]) -> FlatLayout:
    """That of the small tensors among these: of one kind, on the CPU, row by row in memory.

    Args:
        tensors: all.

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
    """Whether a tensor lies in memory row by row, and says so.

    >>> is_plain(torch.ones(2, 3)), is_plain(torch.ones(2, 3).t())
    (True, False)
    """
    if not tensor.is_contiguous():
        return False
    if tensor.dim() not in CHANNELS_LAST:
        return True  # of other tensors, no kernel asks
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != step:
            return False
        step *= max(size, 1)
    return True
