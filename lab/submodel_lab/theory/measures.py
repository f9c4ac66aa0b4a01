"""Measures with intervals, statements about them, and rules that judge the statements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from submodel.core import generator
from submodel_lab.theory.problems import FloatArray, TheoryError

_NORMAL = 1.96  # of a 95 % interval
_RESAMPLES = 200
_WIDEST_SLOPE = 0.6  # a wider interval of a slope decides nothing
_SLACK = 0.01  # tolerance of exact slopes, for terms of higher order at a finite R


@dataclass(frozen=True)
class Measure:
    """A number with its 95 % interval, and the exact value if it is known."""

    mean: float
    low: float
    high: float
    exact: float | None = None
    values: FloatArray | None = None  # of every trial

    @classmethod
    def of(cls, values: FloatArray, exact: float | None = None) -> Measure:
        """Make the measure of the mean over trials.

        >>> Measure.of(np.array([1.0, 3.0]), exact=2.0).errors_off
        0.0
        """
        return cls(*interval(values), exact, values)

    def minus(self, other: Measure) -> Measure:
        """Return the difference trial by trial; both need the values of the same trials.

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
        """Return the measure times a factor.

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
        """Distance of the mean from the exact value in standard errors; 0 if none is known."""
        if self.exact is None:
            return 0.0
        error = (self.high - self.low) / (2 * _NORMAL)
        gap = abs(self.mean - self.exact)
        if gap <= 1e-6 * abs(self.exact):  # rounding errors without any randomness
            return 0.0
        return gap / error if error > 0 else math.inf


def interval(values: FloatArray) -> tuple[float, float, float]:
    """Return the mean over trials and its 95 % confidence interval.

    >>> interval(np.array([1.0, 1.0, 1.0]))
    (1.0, 1.0, 1.0)
    """
    mean = float(values.mean())
    half = _NORMAL * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return mean, mean - half, mean + half


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the least-squares slope in log-log axes; NaN for values <= 0, or for one x.

    >>> round(slope([1, 2, 4], [8, 4, 2]), 6)
    -1.0
    """
    if min(y) <= 0 or min(x) <= 0 or len(set(x)) < 2:
        return math.nan
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def slope_measure(
    x: Sequence[float], values: Sequence[FloatArray], exact: Sequence[float] | None = None
) -> Measure:
    """Return the slope of the means over trials with a 95 % bootstrap interval over trials.

    The slope is NaN if too few trials differ from 0.
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


class Verdict(StrEnum):
    """Verdict of a measurement on a statement."""

    YES = "yes"
    FASTER = "yes, faster"  # the statement holds, and the truth is better
    NO = "no"
    OPEN = "undecided"
    SILENT = "no theorem"  # nothing is stated, so nothing is judged
    NUMBER = "-"  # a reported number without a statement


@dataclass(frozen=True)
class Statement:
    """A statement with its measure and verdict.

    ``relation`` is between the measured number and the stated one, ``limit``.
    """

    source: str  # Theorem 1, Lemma 2, ...; "" beyond the paper
    parameter: str  # the varied parameter: R, K, N, p, ...
    case: str  # description of the other parameters
    quantity: str
    measure: Measure
    relation: str
    limit: float | None
    verdict: Verdict
    conditions: str = "met"  # of the theorem

    @classmethod
    def of(
        cls, source: str, parameter: str, case: str, quantity: str, measure: Measure,
        relation: str = "-", limit: float | None = None, conditions: str = "met",
    ) -> Statement:  # fmt: skip
        """Judge a number by its relation to the stated one; ">" means above 0, "-" no judgement."""
        if relation == ">":
            limit, verdict = 0.0, judge_positive(measure)
        elif relation == "-" or limit is None:
            verdict = Verdict.NUMBER
        else:
            judge = {"<=": judge_at_most, "=": judge_equal}[relation]
            verdict = judge(measure, limit)
        return cls(source, parameter, case, quantity, measure, relation, limit, verdict, conditions)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for CSV and JSON; unknown numbers are None."""
        m = self.measure
        numbers = {"estimate": m.mean, "low": m.low, "high": m.high, "exact": m.exact}
        return {
            "source": self.source, "parameter": self.parameter, "case": self.case,
            "quantity": self.quantity, **{name: _finite(value) for name, value in numbers.items()},
            "relation": self.relation, "limit": _finite(self.limit), "verdict": self.verdict.value,
            "conditions": self.conditions,
        }  # fmt: skip


def judge_slope(measure: Measure, limit: float, is_stated: bool = True) -> Verdict:
    """Judge whether a quantity falls at least as fast as stated, or grows at most as fast.

    A faster fall is no contradiction; an interval of slower ones only is.

    >>> judge_slope(Measure(-1.3, -1.4, -1.2), -1.0)
    <Verdict.FASTER: 'yes, faster'>
    >>> judge_slope(Measure(-0.46, -0.47, -0.45), -0.5)
    <Verdict.NO: 'no'>
    """
    if not is_stated:
        return Verdict.SILENT
    wide = measure.high - measure.low > _WIDEST_SLOPE
    if math.isnan(measure.mean) or math.isnan(limit):
        return Verdict.OPEN
    slack = _SLACK if measure.low == measure.high else 0.0
    if measure.low > limit + slack:
        return Verdict.NO
    if measure.high < limit - slack:
        return Verdict.FASTER
    return Verdict.OPEN if wide else Verdict.YES


def judge_positive(measure: Measure) -> Verdict:
    """Judge whether a difference is above 0.

    >>> judge_positive(Measure(0.1, -0.1, 0.3))
    <Verdict.OPEN: 'undecided'>
    """
    if measure.low > 0:
        return Verdict.YES
    return Verdict.NO if measure.high < 0 else Verdict.OPEN


def judge_at_most(measure: Measure, limit: float) -> Verdict:
    """Judge whether a number is at most the stated one, up to rounding of exact numbers.

    >>> judge_at_most(Measure(2.0, 1.5, 2.5), 1.0)
    <Verdict.NO: 'no'>
    """
    rounding = 1e-9 if measure.low == measure.high else 0.0
    if measure.high <= limit + rounding:
        return Verdict.YES
    return Verdict.NO if measure.low > limit else Verdict.OPEN


def judge_equal(measure: Measure, limit: float) -> Verdict:
    """Judge whether the stated number is inside the interval of a measure.

    >>> judge_equal(Measure(2.0, 1.5, 2.5), 2.1)
    <Verdict.YES: 'yes'>
    """
    return Verdict.YES if measure.low <= limit <= measure.high else Verdict.NO


def exact_measure(number: float) -> Measure:
    """Make the measure of a computed number.

    >>> exact_measure(2.0).low
    2.0
    """
    return Measure(number, number, number, number)


def _finite(number: float | None) -> float | None:
    return None if number is None or not math.isfinite(number) else number
