"""What a scheme may know of the global model when it draws: magnitudes by unit, its own memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NoReturn, cast

import numpy as np
import torch
from torch import Tensor

from submodel.errors import SubmodelError
from submodel.model.axes import Axes
from submodel.model.axes.layout import Along, Indices, Layout
from submodel.model.cut import COORDINATES, Granularity
from submodel.schemes import Knowledge, LooksAtModel, Scheme, SchemeMemory, role
from submodel.schemes.base import Floats

Members = tuple[Indices, ...]


def knowledge_for(
    scheme: Scheme,
    axes: Axes,
    parameters: Mapping[str, Tensor],
    memory: SchemeMemory,
    granularity: Granularity,
) -> Knowledge:
    """What a scheme may look at: the model and its memory, if it declares `LooksAtModel`.

    Args:
        scheme: who asks
        axes: of the model
        parameters: the global model's
        memory: what the scheme kept
        granularity: of its masks
    """
    if role(scheme, LooksAtModel) is None:
        return cast("Knowledge", _UndeclaredKnowledge(scheme))
    return ModelKnowledge(axes, parameters, memory, granularity)


class _UndeclaredKnowledge:
    """What is known to a scheme that does not declare that it looks: every question is refused."""

    def __init__(self, scheme: Scheme) -> None:
        self._scheme = type(scheme).__name__

    def __getattr__(self, question: str) -> NoReturn:
        if question.startswith("_"):
            raise AttributeError(question)
        raise SubmodelError(
            f"scheme {self._scheme}: select asks for draw.knowledge.{question} without declaring "
            f"it. Clients cannot repeat such a draw, so the masks must be sent: write class "
            f"{self._scheme}(Scheme, LooksAtModel), both from submodel.schemes; or, if the masks "
            f"are those of another scheme, class {self._scheme}(BorrowsMasks)"
        )


class ModelKnowledge:
    """Computes what is asked for, once."""

    def __init__(
        self,
        axes: Axes,
        parameters: Mapping[str, Tensor],
        memory: SchemeMemory,
        granularity: Granularity = "unit",
    ) -> None:
        self._axes, self._parameters, self._memory = axes, parameters, memory
        self._granularity = granularity
        self._magnitudes: dict[str, Floats] = {}

    @property
    def memory(self) -> SchemeMemory:
        """What the scheme kept."""
        return self._memory

    @property
    def axes(self) -> Sequence[str]:
        """The axes that capacities cut; one, of all weights, at coordinate granularity."""
        cut_by_units = self._granularity == "unit"
        return list(self._axes.cut_by_capacity) if cut_by_units else [COORDINATES]

    def magnitudes(self, axis: str) -> Floats:
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

    def shapes(self, axis: str) -> Sequence[Sequence[int]]:
        """The tensors' shapes for the flat vector of all weights; none for units."""
        return [p.shape for p in self._parameters.values()] if axis == COORDINATES else []

    def _by_unit(self, axis: str) -> Floats:
        """A weight is a unit's if it goes with the unit; each is counted once."""
        size = self._axes.sizes[axis]
        total, count = np.zeros(size), np.zeros(size)
        for name, parameter in self._parameters.items():
            dimensions = [
                (d, _members(layout, axis, size))
                for d, layout in enumerate(self._axes.layouts.get(name, ()))
                if axis in layout.axes()
            ]
            weights = parameter.detach().abs().double()
            for d, members in dimensions:
                others = [k for k in range(weights.dim()) if k != d]
                sums = (weights.sum(others) if others else weights).numpy()
                units = np.repeat(np.arange(size), [len(m) for m in members])
                total += np.bincount(units, sums[np.concatenate(members)], size)
                count += np.bincount(units, minlength=size) * (weights.numel() // len(sums))
            self._take_out_repeats(weights.numpy(), dimensions, total, count)
        return total / np.maximum(count, 1)

    @staticmethod
    def _take_out_repeats(
        weights: Floats, dimensions: Sequence[tuple[int, Members]], total: Floats, count: Floats
    ) -> None:
        """Weights that are a unit's along several dimensions (w[i, i] of a square) were added
        as often: by inclusion and exclusion, once is left.
        """
        for length in range(2, len(dimensions) + 1):
            sign = (-1) ** (length + 1)
            for overlap in combinations(dimensions, length):
                for unit in range(len(total)):
                    block = weights
                    for d, members in overlap:
                        block = block.take(members[unit], axis=d)
                    total[unit] += sign * block.sum()
                    count[unit] += sign * block.size


@lru_cache(maxsize=1 << 12)
def _members(layout: Layout, axis: str, size: int) -> Members:
    """The positions along a dimension that go with each unit of ``axis``."""
    if isinstance(layout, Along):
        return tuple(np.arange(size)[:, None])
    everything = np.arange(size)
    return tuple(
        np.setdiff1d(np.arange(layout.size), layout.indices({axis: np.delete(everything, unit)}))
        for unit in range(size)
    )
