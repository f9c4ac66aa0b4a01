"""Numbers with intervals: means over trials, slopes, and how far they are from exact values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from submodel.randomness import generator
from submodel_lab.theory.problems import FloatArray, TheoryError

_NORMAL = 1.96  # of a 95 % interval
_RESAMPLES = 200


@dataclass(frozen=True)
class Measure:
    """A number, its 95 % interval, and the exact value where one is known."""

    mean: float
    low: float
    high: float
    exact: float | None = None
    values: FloatArray | None = None  # of every trial

    @classmethod
    def of(cls, values: FloatArray, exact: float | None = None) -> Measure:
        """The mean over trials.

        Args:
            values: One of each trial.
            exact: What the mean should be, if that is known.

        >>> Measure.of(np.array([1.0, 3.0]), exact=2.0).errors_off
        0.0
        """
        return cls(*interval(values), exact, values)

    def minus(self, other: Measure) -> Measure:
        """The difference trial by trial: both must have the values of the same trials.

        Args:
            other: What is taken away.

        >>> one, two = Measure.of(np.array([1.0, 3.0])), Measure.of(np.array([1.0, 2.0]))
        >>> one.minus(two).mean
        0.5
        """
        if self.values is None or other.values is None:
            raise TheoryError("a difference trial by trial needs the values of trials")
        both = self.exact is not None and other.exact is not None
        return Measure.of(
            self.values - other.values,
            self.exact - other.exact if both else None,  # type: ignore[operator]
        )

    def times(self, factor: float) -> Measure:
        """All of it, in another unit.

        Args:
            factor: A positive number.

        >>> Measure(1.0, 0.5, 1.5).times(2.0).high
        3.0
        """
        return Measure(
            self.mean * factor, self.low * factor, self.high * factor,
            None if self.exact is None else self.exact * factor,
            None if self.values is None else self.values * factor,
        )  # fmt: skip

    @property
    def errors_off(self) -> float:
        """How many standard errors the mean is away from the exact value; 0 if none is known."""
        if self.exact is None:
            return 0.0
        error = (self.high - self.low) / (2 * _NORMAL)
        gap = abs(self.mean - self.exact)
        if gap <= 1e-6 * abs(self.exact):  # rounding: without noise and masks nothing is random
            return 0.0
        return gap / error if error > 0 else math.inf


def interval(values: FloatArray) -> tuple[float, float, float]:
    """Mean over trials and its 95 % confidence interval.

    Args:
        values: One of each trial.

    >>> interval(np.array([1.0, 1.0, 1.0]))
    (1.0, 1.0, 1.0)
    """
    mean = float(values.mean())
    half = _NORMAL * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return mean, mean - half, mean + half


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The least-squares slope in log-log axes; NaN where a value is not positive, or for one x.

    Args:
        x: Where.
        y: The values there.

    >>> round(slope([1, 2, 4], [8, 4, 2]), 6)
    -1.0
    """
    if min(y) <= 0 or min(x) <= 0 or len(set(x)) < 2:
        return math.nan
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def slope_measure(
    x: Sequence[float],
    values: Sequence[FloatArray],
    exact: Sequence[float] | None = None,
) -> Measure:
    """The slope of the means over trials and its 95 % interval, by bootstrap over trials.

    It is NaN where too few trials were different from 0 for it.

    Args:
        x: Where.
        values: Of every trial, at each x.
        exact: The exact means, if they are known: their slope is the exact one.
    """
    rng = generator(0, "bootstrap")

    def fit_slope(draw: Callable[[FloatArray], FloatArray]) -> float:
        return slope(x, [float(draw(v).mean()) for v in values])

    resampled_slopes = [
        fit_slope(lambda v: v[rng.integers(len(v), size=len(v))]) for _ in range(_RESAMPLES)
    ]
    usable = [one for one in resampled_slopes if not math.isnan(one)] or [math.nan]
    low, high = np.percentile(usable, [2.5, 97.5])
    exact_slope = None if exact is None else slope(x, exact)
    return Measure(fit_slope(lambda v: v), float(low), float(high), exact_slope)
