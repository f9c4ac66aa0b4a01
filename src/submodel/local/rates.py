"""The learning rate over the steps of a round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

StepSchedule = Literal["constant", "cosine"]


@dataclass(frozen=True)
class StepRates:
    """What the rate of a step is multiplied with: a warm-up, then constant or half a cosine.

    >>> [StepRates(warmup=2).factor(step, 4) for step in range(4)]
    [0.5, 1.0, 1.0, 1.0]
    >>> [round(StepRates("cosine").factor(step, 4), 3) for step in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """

    schedule: StepSchedule = "constant"
    warmup: int = 0

    @property
    def vary(self) -> bool:
        """Whether steps of a round have different rates."""
        return self.schedule != "constant" or self.warmup > 0

    def factor(self, step: int, steps: int) -> float:
        """Of step number ``step``, from 0, of so many."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.schedule == "constant" or steps <= self.warmup:
            return 1.0
        share = (step - self.warmup) / (steps - self.warmup)
        return 0.5 * (1 + math.cos(math.pi * share))
