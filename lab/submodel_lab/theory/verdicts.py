"""Statements as numbers, and whether they hold: one rule for each kind of statement."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from submodel_lab.theory.measures import Measure

_WIDEST_SLOPE = 0.6  # an interval of a slope that is wider decides nothing
_SLACK = 0.01  # of a slope that is exact: what terms of higher order do to it at a finite R


class Verdict(StrEnum):
    """What a measurement says of a statement."""

    YES = "yes"
    FASTER = "yes, faster"  # it holds, and the truth is better than stated
    NO = "no"
    OPEN = "undecided"
    SILENT = "no theorem"  # nothing is stated here, so nothing is judged
    NUMBER = "-"  # a number that is reported, with nothing to judge


@dataclass(frozen=True)
class Statement:
    """A statement, what was measured of it, and whether it holds.

    ``relation`` is between the number that was measured and ``limit``, the one that is stated.
    """

    source: str  # Theorem 1, Lemma 2, ...; "" beyond the paper
    parameter: str  # along which: R, K, N, p, ...
    case: str  # the other parameters, in words
    quantity: str
    measure: Measure
    relation: str
    limit: float | None
    verdict: Verdict
    conditions: str = "met"  # of the theorem

    def as_dict(self) -> dict[str, Any]:
        """For CSV and JSON: numbers that are not known are None."""
        fields = asdict(self)
        del fields["measure"]
        m = self.measure
        numbers = {"estimate": m.mean, "low": m.low, "high": m.high, "exact": m.exact}
        fields |= {name: _finite(number) for name, number in numbers.items()}
        fields["limit"] = _finite(self.limit)
        fields["verdict"] = self.verdict.value
        order = ("source", "parameter", "case", "quantity", "estimate", "low", "high", "exact",
                 "relation", "limit", "verdict", "conditions")  # fmt: skip
        return {name: fields[name] for name in order}


def judge_slope(measure: Measure, limit: float, speaks: bool = True) -> Verdict:
    """Whether something falls at least as fast as stated, or grows at most as fast.

    Faster than stated is no contradiction; an interval that is wholly shallower is one.

    Args:
        measure: The slope.
        limit: The stated slope, the largest that agrees.
        speaks: Whether there is a theorem for the case at all.

    >>> judge_slope(Measure(-1.3, -1.4, -1.2), -1.0)
    <Verdict.FASTER: 'yes, faster'>
    >>> judge_slope(Measure(-0.46, -0.47, -0.45), -0.5)
    <Verdict.NO: 'no'>
    """
    if not speaks:
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
    """Whether a difference is above 0.

    Args:
        measure: The difference.

    >>> judge_positive(Measure(0.1, -0.1, 0.3))
    <Verdict.OPEN: 'undecided'>
    """
    if measure.low > 0:
        return Verdict.YES
    return Verdict.NO if measure.high < 0 else Verdict.OPEN


def judge_at_most(measure: Measure, limit: float) -> Verdict:
    """Whether a number is at most the stated one.

    Args:
        measure: The number.
        limit: The largest that agrees.

    >>> judge_at_most(Measure(2.0, 1.5, 2.5), 1.0)
    <Verdict.NO: 'no'>
    """
    if measure.high <= limit:
        return Verdict.YES
    return Verdict.NO if measure.low > limit else Verdict.OPEN


def judge_equal(measure: Measure, limit: float) -> Verdict:
    """Whether a number is the stated one: whether that is inside its interval.

    Args:
        measure: The number.
        limit: The stated one.

    >>> judge_equal(Measure(2.0, 1.5, 2.5), 2.1)
    <Verdict.YES: 'yes'>
    """
    return Verdict.YES if measure.low <= limit <= measure.high else Verdict.NO


def exact_measure(number: float) -> Measure:
    """A number that was computed, not drawn.

    Args:
        number: It.

    >>> exact_measure(2.0).low
    2.0
    """
    return Measure(number, number, number, number)


def _finite(number: float | None) -> float | None:
    return None if number is None or not math.isfinite(number) else number
