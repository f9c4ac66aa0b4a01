"""The course of a run to the end: rounds until it is flat, then a few at a smaller rate.

Every stage is a longer run of the same rounds (``submodel resume --set``), so that a run can be
killed at any moment, and ends with the bytes of one that had all its rounds from the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from submodel.config import Config
from submodel.errors import ConfigError
from submodel.experiments.flatness import FlatRule

SCORE = "held_out_accuracy"
"""What says whether a run is flat: no test example has a part in it."""


@dataclass(frozen=True)
class Course:
    """How long a run goes on.

    Args:
        least: rounds that it has before anybody asks whether it is flat.
        most: rounds after which it ends, flat or not.
        step: rounds that are added while it is not flat.
        final: rounds after that, at a tenth of the learning rate, so that the noise of the last
            iterate does not decide; 0: none.
        rule: when it is flat.
    """

    least: int
    most: int
    step: int
    final: int
    rule: FlatRule = field(default_factory=FlatRule)
    decay: float = 0.1

    def begin(self, config: Config) -> Config:
        """The configuration that a run begins with.

        Args:
            config: any; its rounds and its schedule are the course's affair.
        """
        if config.data.held_out is None and self.least < self.most:
            raise ConfigError(["data.held_out: says when a run is flat; give a share, as 0.05"])
        local = config.local.with_values(schedule="constant")
        train = config.train.with_values(rounds=self.least)
        return config.model_copy(update={"local": local, "train": train})

    def next_settings(
        self, config: Config, history: Sequence[Mapping[str, Any]]
    ) -> list[str] | None:
        """What a run whose rounds are done goes on with; None: it has come to its end.

        Args:
            config: what it had so far.
            history: its lines.
        """
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
        """Whether the evaluated rounds at the full rate say so; the final ones have no say.

        Args:
            history: the lines of a run.
        """
        return self.rule.holds([line[SCORE] for line in history if SCORE in line])

    def was_flat(self, config: Config, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether a run that has come to its end was flat before its final rounds.

        Args:
            config: what it ended with.
            history: its lines.
        """
        milestones = getattr(config.local, "milestones", None) or [config.train.rounds]
        return self.is_flat([line for line in history if line["round"] <= milestones[0]])

    def ends_with(self, config: Config) -> bool:
        """Whether a run of this course may have ended with a configuration.

        Args:
            config: of a run that has come to its end.
        """
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
