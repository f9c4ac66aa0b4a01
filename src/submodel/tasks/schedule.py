"""Learning rates over rounds and within one, and the choices of local work; imports no PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, Self

from pydantic import Field

from submodel.core.options import Count, Positive, Section

Precision = Literal["float32", "bfloat16"]
"""Of products and convolutions; weights, sums and everything exchanged stay as they are."""
OptimiserState = Literal["fresh", "kept"]
"""Whether a client's optimiser begins every round afresh, or where it ended its last one."""
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


class Schedule(Protocol):
    """A learning rate that changes."""

    def factor(self, round_: int) -> float:
        """What the learning rate of a round is multiplied with."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same in every round."""

    def factor(self, round_: int) -> float:  # noqa: ARG002
        """One."""
        return 1.0


@dataclass(frozen=True)
class Steps:
    """A factor at every milestone.

    >>> Steps((10, 20), 0.1).factor(15)
    0.1
    """

    milestones: tuple[int, ...]
    decay: float = 0.1

    class Options(Section):
        """The keys of ``step``."""

        milestones: list[Count] = Field(min_length=1, description="rounds at which it decays")
        decay: Positive = Field(0.1, description="the factor")

    @classmethod
    def configured(cls, options: Options, rounds: int) -> Self:  # noqa: ARG003
        """At the milestones."""
        return cls(tuple(options.milestones), options.decay)

    def factor(self, round_: int) -> float:
        """As often as milestones were passed."""
        return self.decay ** sum(round_ >= m for m in self.milestones)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine over the run."""

    rounds: int

    @classmethod
    def configured(cls, options: Section, rounds: int) -> Self:  # noqa: ARG003
        """Down to nought at the end."""
        return cls(rounds)

    def factor(self, round_: int) -> float:
        """From one to nought."""
        return 0.5 * (1 + math.cos(math.pi * round_ / self.rounds))


@dataclass(frozen=True)
class WarmUp:
    """Another schedule, approached from below over the first rounds.

    >>> [WarmUp(Constant(), 4).factor(round_) for round_ in (0, 1, 3, 9)]
    [0.25, 0.5, 1.0, 1.0]
    """

    schedule: Schedule
    rounds: int

    def factor(self, round_: int) -> float:
        """A growing share of the other one's."""
        return min(1.0, (round_ + 1) / self.rounds) * self.schedule.factor(round_)
