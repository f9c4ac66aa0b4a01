"""Contenders: what is run of a way to the end, how long, with which rates, and what it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from submodel.config import Config
from submodel.experiments import Course


@dataclass(frozen=True)
class Contender:
    """One run of a way for each seed.

    Args:
        slug: its name in folders.
        config: its configuration, by seed.
        course: how long its runs go on.
        seeds: how many there are.
        rates: the grid of learning rates; none: as configured.
        tuning_rounds: how long each of those is tried.
        seconds: what a round takes of a core, as measured or guessed.
        group: what it shares with those that it is compared with: the setting.
    """

    slug: str
    config: Callable[[int], Config]
    course: Course
    seeds: Sequence[int]
    rates: Sequence[float] = ()
    tuning_rounds: int = 0
    seconds: float = 1.0
    group: str = ""

    def config_at(self, seed: int, rate: float | None) -> Config:
        """Its configuration with a learning rate.

        Args:
            seed: of the run.
            rate: what was chosen; None: as configured.
        """
        config = self.config(seed)
        if rate is None:
            return config
        return config.model_copy(update={"local": config.local.with_values(lr=rate)})

    @property
    def tuning_seconds(self) -> float:
        """What its grid takes of a core."""
        return len(self.rates) * self.tuning_rounds * self.seconds

    @property
    def least_seconds(self) -> float:
        """What its runs take at least: flat as soon as anybody asks."""
        return len(self.seeds) * self.course.shortest * self.seconds

    @property
    def most_seconds(self) -> float:
        """And at most: never flat."""
        return len(self.seeds) * self.course.longest * self.seconds
