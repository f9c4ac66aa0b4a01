"""The sub-models that devices will keep: nested by rank, every step at a width that is drawn."""

from __future__ import annotations

from dataclasses import dataclass

from submodel.schemes.ordered.steps import NestedSteps
from submodel.schemes.protocols import HasStepRule
from submodel.schemes.ranked import RankedUnits


@dataclass(frozen=True, eq=False)
class FinishingCuts(RankedUnits, HasStepRule):
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
