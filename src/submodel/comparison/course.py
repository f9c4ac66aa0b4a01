"""The course of a run to the end: rounds until it is flat, then a few at a smaller rate.

Every stage is a longer run of the same rounds (``submodel resume --set``), so that a run can be
killed at any moment, and ends with the bytes of one that had all its rounds from the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from submodel.config import Config
from submodel.core.errors import ConfigError

SCORE = "held_out_accuracy"
"""What says whether a run is flat: no test example has a part in it."""


@dataclass(frozen=True)
class FlatRule:
    """Flat: the mean of the last evaluations exceeds that of as many before by less than a rise.

    A single evaluation jumps by points from round to round where clients have few labels; means
    over a window do not. A curve that falls is flat, too: more rounds would not help.
    """

    window: int = 8  # how many evaluations a mean is of
    rise: float = 0.005  # what more is still a rise; a score of 1 is everything

    def last_rise(self, scores: Sequence[float]) -> float | None:
        """By how much the last window exceeds the one before; None: too few evaluations.

        >>> FlatRule(window=2).last_rise([0.1, 0.2, 0.3, 0.5, 0.5])
        0.25
        """
        if len(scores) < 2 * self.window:
            return None
        before = scores[-2 * self.window : -self.window]
        return fmean(scores[-self.window :]) - fmean(before)

    def holds(self, scores: Sequence[float]) -> bool:
        """Whether the curve is flat at its end; not before it has two windows.

        >>> rule = FlatRule(window=2, rise=0.01)
        >>> rule.holds([0.1, 0.3, 0.3, 0.305, 0.305]), rule.holds([0.1, 0.2, 0.3, 0.4])
        (True, False)
        >>> rule.holds([0.5, 0.5])
        False
        """
        rise = self.last_rise(scores)
        return rise is not None and rise < self.rise

    def describe(self, every: int) -> str:
        """The rule in words.

        >>> FlatRule().describe(every=25)
        'the mean of 8 evaluations (200 rounds) exceeds that of the 8 before by under 0.5 points'
        """
        return (
            f"the mean of {self.window} evaluations ({self.window * every} rounds) exceeds that "
            f"of the {self.window} before by under {100 * self.rise:g} points"
        )


@dataclass(frozen=True)
class Course:
    """How long a run goes on."""

    least: int  # rounds that it has before anybody asks whether it is flat
    most: int  # rounds after which it ends, flat or not
    step: int  # rounds that are added while it is not flat
    # rounds after that, at a tenth of the learning rate, so that the noise of the last iterate does
    # not decide; 0: none
    final: int
    rule: FlatRule = field(default_factory=FlatRule)  # when it is flat
    decay: float = 0.1

    def begin(self, config: Config) -> Config:
        """The configuration that a run begins with."""
        if config.data.held_out is None and self.least < self.most:
            raise ConfigError("data.held_out: says when a run is flat; give a share, as 0.05")
        local = config.local.with_values(schedule="constant")
        train = config.train.with_values(rounds=self.least)
        return config.model_copy(update={"local": local, "train": train})

    def next_settings(
        self, config: Config, history: Sequence[Mapping[str, Any]]
    ) -> list[str] | None:
        """What a run whose rounds are done goes on with; None: it has come to its end."""
        rounds = config.train.rounds
        if config.local.schedule != "constant":
            return None
        if rounds < self.most and not self.is_flat(history):
            return [f"train.rounds={min(self.most, rounds + self.step)}"]
        if not self.final:
            return None
        return [
            f"train.rounds={rounds + self.final}",
            "local.schedule=step",
            f"local.milestones=[{rounds}]",
            f"local.decay={self.decay:g}",
        ]

    def is_flat(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the evaluated rounds at the full rate say so; the final ones have no say."""
        return self.rule.holds([line[SCORE] for line in history if SCORE in line])

    def was_flat(self, config: Config, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether a run that has come to its end was flat before its final rounds."""
        milestones = getattr(config.local, "milestones", None) or [config.train.rounds]
        return self.is_flat([line for line in history if line["round"] <= milestones[0]])

    def ends_with(self, config: Config) -> bool:
        """Whether a run of this course may have ended with a configuration."""
        rounds = config.train.rounds - self.final
        if not (rounds == self.most or rounds in range(self.least, self.most, self.step)):
            return False
        if not self.final:
            return config.local.schedule == "constant"
        local = config.local
        return local.schedule == "step" and (local.milestones, local.decay) == (
            [rounds],
            self.decay,
        )

    @property
    def longest(self) -> int:
        """The most rounds that a run may have."""
        return self.most + self.final

    @property
    def shortest(self) -> int:
        """The fewest."""
        return self.least + self.final
