"""Nested cuts in an order of one's own: the first units by rank, as `static` has them by place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from submodel.model.axes import Axes
from submodel.model.axes.layout import Indices
from submodel.model.capacity import units_held
from submodel.schemes.base import Draw, Mask, Scheme
from submodel.schemes.draw import ModelKnowledge
from submodel.schemes.ordered import NestedSteps

UnitRanking = Mapping[str, Indices]
"""Of every axis all units, the first to be held first."""


@dataclass(frozen=True, eq=False)
class RankedUnits(Scheme):
    """The first units of a ranking, so that smaller cuts nest in larger ones.

    It is no component: a ranking is of one trained model, and no configuration can tell it.

    Args:
        ranking: of every axis all units, the first to be held first.
    """

    ranking: UnitRanking
    sends_masks = True  # clients do not know the ranking

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:  # noqa: ARG002
        """The first share of the ranking.

        >>> RankedUnits({"hidden": np.array([2, 0, 1, 3])}).select("hidden", 4, 0.5, Draw(0, 0, 0))
        array([ True, False,  True, False])
        """
        mask = np.zeros(size, dtype=np.bool_)
        mask[self.ranking[axis][: units_held(capacity, size)]] = True
        return mask


@dataclass(frozen=True, eq=False)
class FinishingCuts(RankedUnits):
    """What a run ends with under ``train.finish``: `ordered`, but by rank instead of by place.

    Args:
        ranking: of every axis all units, the first to be held first.
        widths: the shares that steps draw from.
        distill: how much narrower widths learn from the client's widest.
    """

    widths: tuple[float, ...] = ()
    distill: float = 0.0

    def step_rule(self, capacity: float) -> NestedSteps | None:
        """Steps at widths up to the capacity; with one width they are plain steps."""
        widths = tuple(sorted({w for w in self.widths if w <= capacity}))
        if len(widths) < 2:
            return None
        return NestedSteps(widths, self.distill, RankedUnits(self.ranking))


def rank_by_size(axes: Axes, parameters: Mapping[str, Tensor]) -> dict[str, Indices]:
    """The units of every axis by the mean |w| of their weights, as `importance` ranks them.

    Args:
        axes: of the model.
        parameters: by name.
    """
    knowledge = ModelKnowledge(axes, parameters, {})
    return {
        axis: np.argsort(-knowledge.magnitudes(axis), kind="stable")
        for axis in axes.cut_by_capacity
    }


def rank_first(sizes: Mapping[str, int], units: Mapping[str, Indices]) -> dict[str, Indices]:
    """The ranking that has these units first, all others behind them; of other axes by place.

    Args:
        sizes: of every axis.
        units: of some axes.

    >>> rank_first({"a": 4, "b": 2}, {"a": np.array([1, 3])})
    {'a': array([1, 3, 0, 2]), 'b': array([0, 1])}
    """
    return {
        axis: np.concatenate([first, np.setdiff1d(np.arange(size), first)])
        for axis, size in sizes.items()
        for first in [np.asarray(units.get(axis, np.arange(size)), dtype=np.int64)]
    }
