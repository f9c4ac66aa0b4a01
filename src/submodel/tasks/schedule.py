"""Learning rates over rounds and within a round, and choices of local work; without PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, Self

from pydantic import Field

from submodel.core.options import Count, Positive, Section

Precision = Literal["float32", "bfloat16"]
"""Precision of products and convolutions; weights, sums and messages keep theirs."""
OptimiserState = Literal["fresh", "kept"]
"""Whether a client's optimiser starts afresh in every round, or from its last state."""
StepSchedule = Literal["constant", "cosine"]


@dataclass(frozen=True)
class StepRates:
    """The factor of the learning rate of a step: a warm-up, then constant or half a cosine.

    >>> [StepRates(warmup=2).factor(step, 4) for step in range(4)]
    [0.5, 1.0, 1.0, 1.0]
    >>> [round(StepRates("cosine").factor(step, 4), 3) for step in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """

    schedule: StepSchedule = "constant"
    warmup: int = 0

    @property
    def vary(self) -> bool:
        """Whether the steps of a round have different rates."""
        return self.schedule != "constant" or self.warmup > 0

    def factor(self, step: int, steps: int) -> float:
        """Return the factor of step number ``step``, from 0, of ``steps``."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.schedule == "constant" or steps <= self.warmup:
            return 1.0
        share = (step - self.warmup) / (steps - self.warmup)
        return 0.5 * (1 + math.cos(math.pi * share))


class Schedule(Protocol):
    """A learning rate that depends on the round."""

    def factor(self, round_: int) -> float:
        """Return the factor of the learning rate in a round."""
        ...


@dataclass(frozen=True)
class Constant:
    """A constant learning rate."""

    def factor(self, round_: int) -> float:  # noqa: ARG002
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class Steps:
    """A learning rate that is multiplied by ``decay`` at every milestone.

    >>> Steps((10, 20), 0.1).factor(15)
    0.1
    """

    milestones: tuple[int, ...]
    decay: float = 0.1

    class Options(Section):
        """The keys of ``step``."""

        milestones: list[Count] = Field(min_length=1, description="rounds at which the rate decays")
        decay: Positive = Field(0.1, description="the factor")

    @classmethod
    def configured(cls, options: Options, rounds: int) -> Self:  # noqa: ARG003
        """Make the schedule from its options."""
        return cls(tuple(options.milestones), options.decay)

    def factor(self, round_: int) -> float:
        """Return ``decay`` to the power of the number of passed milestones."""
        return self.decay ** sum(round_ >= m for m in self.milestones)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine over the run, from 1 to 0."""

    rounds: int

    @classmethod
    def configured(cls, options: Section, rounds: int) -> Self:  # noqa: ARG003
        """Make the schedule for the length of the run."""
        return cls(rounds)

    def factor(self, round_: int) -> float:
        """Return the factor of the learning rate in a round."""
        return 0.5 * (1 + math.cos(math.pi * round_ / self.rounds))


@dataclass(frozen=True)
class WarmUp:
    """Another schedule with a linear warm-up over the first rounds.

    >>> [WarmUp(Constant(), 4).factor(round_) for round_ in (0, 1, 3, 9)]
    [0.25, 0.5, 1.0, 1.0]
    """

    schedule: Schedule
    rounds: int

    def factor(self, round_: int) -> float:
        """Return a growing fraction of the other schedule's factor."""
        return min(1.0, (round_ + 1) / self.rounds) * self.schedule.factor(round_)
