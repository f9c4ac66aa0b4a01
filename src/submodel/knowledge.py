"""What a scheme may know of the global model when it draws: magnitudes by unit, its own memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from submodel.axes import Axes
from submodel.axes.layout import Layout
from submodel.cut import COORDINATES
from submodel.schemes import Memory

Array = NDArray[np.float64]


class ModelKnown:
    """Computes what is asked for, once."""

    def __init__(self, axes: Axes, parameters: Mapping[str, Tensor], memory: Memory) -> None:
        self._axes, self._parameters, self._memory = axes, parameters, memory
        self._magnitudes: dict[str, Array] = {}

    @property
    def memory(self) -> Memory:
        """What the scheme kept."""
        return self._memory

    def magnitudes(self, axis: str) -> Array:
        """The mean |w| of the weights that each unit of ``axis`` holds."""
        if axis not in self._magnitudes:
            self._magnitudes[axis] = (
                torch.cat([p.detach().abs().reshape(-1) for p in self._parameters.values()])
                .double()
                .numpy()
                if axis == COORDINATES
                else self._by_unit(axis)
            )
        return self._magnitudes[axis]

    def pieces(self, axis: str) -> Sequence[int]:
        """The tensors' sizes for the flat vector of all weights, else the axis itself."""
        if axis == COORDINATES:
            return [p.numel() for p in self._parameters.values()]
        return [self._axes.sizes[axis]]

    def _by_unit(self, axis: str) -> Array:
        size = self._axes.sizes[axis]
        total, count = np.zeros(size), np.zeros(size)
        for name, parameter in self._parameters.items():
            for d, layout in enumerate(self._axes.layouts.get(name, ())):
                if axis not in layout.axes():
                    continue
                others = [k for k in range(parameter.dim()) if k != d]
                along = parameter.detach().abs().double()
                sums = (along.sum(others) if others else along).numpy()
                units = _unit_of(layout, axis, size)
                held = units >= 0
                total += np.bincount(units[held], sums[held], size)
                weights = np.full(held.sum(), parameter.numel() // len(sums))
                count += np.bincount(units[held], weights, size)
        return total / np.maximum(count, 1)


@lru_cache(maxsize=1 << 12)
def _unit_of(layout: Layout, axis: str, size: int) -> NDArray[np.int64]:
    """The unit of ``axis`` that each position of a dimension belongs to; -1 for none."""
    members = [layout.indices({axis: np.array([unit])}) for unit in range(size)]
    times = np.bincount(np.concatenate(members), minlength=layout.size)
    units = np.full(layout.size, -1)
    for unit, positions in enumerate(members):
        units[positions] = unit
    units[times != 1] = -1  # kept whichever unit is: the position is another axis's
    return units
