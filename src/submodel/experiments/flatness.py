"""When a curve counts as flat: the one rule, over evaluated scores alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class FlatRule:
    """Flat: the mean of the last evaluations exceeds that of as many before by less than a rise.

    A single evaluation jumps by points from round to round where clients have few labels; means
    over a window do not. A curve that falls is flat, too: more rounds would not help.

    Args:
        window: how many evaluations a mean is of.
        rise: what more is still a rise; a score of 1 is everything.
    """

    window: int = 8
    rise: float = 0.005

    def last_rise(self, scores: Sequence[float]) -> float | None:
        """By how much the last window exceeds the one before; None: too few evaluations.

        Args:
            scores: of all evaluations so far; more is better.

        >>> FlatRule(window=2).last_rise([0.1, 0.2, 0.3, 0.5, 0.5])
        0.25
        """
        if len(scores) < 2 * self.window:
            return None
        before = scores[-2 * self.window : -self.window]
        return fmean(scores[-self.window :]) - fmean(before)

    def holds(self, scores: Sequence[float]) -> bool:
        """Whether the curve is flat at its end; not before it has two windows.

        Args:
            scores: of all evaluations so far; more is better.

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

        Args:
            every: rounds between evaluations.

        >>> FlatRule().describe(every=25)
        'the mean of 8 evaluations (200 rounds) exceeds that of the 8 before by under 0.5 points'
        """
        return (
            f"the mean of {self.window} evaluations ({self.window * every} rounds) exceeds that "
            f"of the {self.window} before by under {100 * self.rise:g} points"
        )
