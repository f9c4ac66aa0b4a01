"""A scheme that holds the last units instead of the first."""

from dataclasses import dataclass

import numpy as np
from pydantic import Field

from submodel.core import Section
from submodel.schemes import Draw, Mask, RunFacts, Scheme, units_held


@dataclass(frozen=True)
class Last(Scheme):
    """Hold the last units, but only at full capacity the last ``spare`` ones."""

    spare: int

    class Options(Section):
        spare: int = Field(ge=0, description="units at the end that are left out")

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        place = np.arange(size)[::-1] - (self.spare if capacity < 1 else 0)
        mask: Mask = (place >= 0) & (place < units_held(capacity, size))
        return mask

    def problems(self, run: RunFacts) -> list[str]:
        smaller = [capacity for capacity in run.capacities if capacity < 1]
        left_out = [n - units_held(c, n) for n in run.sizes.values() for c in smaller]
        if self.spare <= min(left_out, default=self.spare):
            return []
        return [f"scheme.spare: {self.spare} is more than the {min(left_out)} left out"]
