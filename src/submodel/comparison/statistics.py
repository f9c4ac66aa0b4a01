"""Tests of differences over seeds, and their wording in tables.

Every comparison, of a statement of the paper or of an arm with the best one, reduces to a
difference for each seed. `judge` computes for each its size, its uncertainty and its verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from submodel.core.extras import needs_extra

LEVEL = 0.05
"""Significance level of corrected p-values."""
LEAST_SEEDS = 3
"""Minimum number of seeds for a verdict."""
HOLDS, REVERSED, UNDECIDED, EQUAL = "holds", "reversed", "undecided", "no difference"
_ROUND_OFF = 1e-12  # bound on differences of equal fractions with other last bits
PLUS_MINUS = "± is the standard deviation over seeds."
"""Meaning of ± in every table and text; intervals are in square brackets."""
BEST_IS_CHOSEN = "The best was chosen by these same runs, so its lead is overestimated."
"""Caution for tests of the difference to the best arm."""
JUDGEMENT_HEADINGS = ("95 % interval", "p (Holm)")
"""Headings of the columns of `describe_judgement`."""
_PERCENT = ("accuracy", "train accuracy", "accuracy gap", "held-out accuracy", "mean over sizes",
            "smallest size", "worst quarter", "accuracy by test batches")  # fmt: skip


@dataclass(frozen=True)
class Judgement:
    """Result of a test of the differences between two arms over seeds."""

    differences: Sequence[float]  # positive: in favour of the statement
    interval: tuple[float, float] | None  # of the mean, at 95 %; None: too few seeds
    p: float | None  # corrected for the number of tests; None: too few seeds
    verdict: str


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation over seeds; both are nan if a run diverged.

    >>> spread([1.0, 2.0, 3.0]), spread([1.0, math.inf])
    ((2.0, 1.0), (nan, nan))
    """
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def confidence(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean difference of two or more seeds, by Student's t.

    >>> [round(end, 3) for end in confidence([1.0, 2.0, 3.0])]  # 2 -+ 4.303 / sqrt 3
    [-0.484, 4.484]
    """
    mean, deviation = spread(differences)
    half = least_ratio(len(differences), tests=1) * deviation
    return mean - half, mean + half


def paired_p(differences: Sequence[float]) -> float:
    """Return the p-value of a two-sided paired t-test that the mean difference is zero.

    >>> round(paired_p([1.0, 2.0, 3.0]), 4)  # t = 2 / (1 / sqrt 3) = 3.464, two degrees of freedom
    0.0742
    """
    mean, deviation = spread(differences)
    if deviation < _ROUND_OFF:  # the statistic would be 0/0, or infinite
        return 1.0 if abs(mean) < _ROUND_OFF else 0.0
    with needs_extra("server", "a test"):  # takes a second to import
        from scipy import stats

    count = len(differences)
    statistic = abs(mean) * math.sqrt(count) / deviation
    return float(2 * stats.t.sf(statistic, count - 1))


def holm(values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple tests by Holm's method.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    corrections, least = [0.0] * len(values), 0.0
    for rank, i in enumerate(order):
        least = max(least, min(1.0, (len(values) - rank) * values[i]))
        corrections[i] = least
    return corrections


def judge(family: Sequence[Sequence[float]]) -> list[Judgement]:
    """Judge a family of differences: a paired t-test each, with Holm's correction.

    There is one difference per seed, positive if it favours the statement. With fewer than three
    seeds nothing is tested, because agreement of so few means nothing. Differences to a diverged
    run are not tested either.

    >>> judgements = judge([[0.10, 0.12, 0.11], [0.1, -0.1, 0.1], [0.1, 0.2]])
    >>> [one.verdict for one in judgements], round(judgements[0].p or 0, 4)
    (['holds', 'undecided', 'no verdict: 2 of 3 seeds'], 0.0055)
    """
    has_enough = [len(d) >= LEAST_SEEDS and all(map(math.isfinite, d)) for d in family]
    testable = [d for d, enough in zip(family, has_enough, strict=True) if enough]
    p_values = iter(holm([paired_p(differences) for differences in testable]))
    return [
        _judge_by_test(differences, next(p_values)) if enough else _decline(differences)
        for differences, enough in zip(family, has_enough, strict=True)
    ]


def _judge_by_test(differences: Sequence[float], p: float) -> Judgement:
    if all(abs(difference) < _ROUND_OFF for difference in differences):
        verdict = EQUAL
    elif p < LEVEL:
        verdict = HOLDS if spread(differences)[0] > 0 else REVERSED
    else:
        verdict = UNDECIDED
    return Judgement(differences, confidence(differences), p, verdict)


def _decline(differences: Sequence[float]) -> Judgement:
    if all(map(math.isfinite, differences)):
        why = f"{len(differences)} of {LEAST_SEEDS} seeds"
    else:
        why = "not finite"
    return Judgement(differences, None, None, f"no verdict: {why}")


def behind_best(scores: Mapping[str, Mapping[int, float]]) -> dict[str, Judgement]:
    """Judge for all names but the best (the first among equals) the statement "behind the best".

    >>> behind = behind_best({"a": {0: 0.90, 1: 0.92, 2: 0.91}, "b": {0: 0.80, 1: 0.81, 2: 0.82}})
    >>> behind["b"].verdict, round(behind["b"].p or 1, 4), "a" in behind
    ('holds', 0.0033, False)
    """
    means = {name: spread(list(score.values()))[0] for name, score in scores.items()}
    best = max(scores, key=lambda name: -math.inf if math.isnan(means[name]) else means[name])
    differences = {
        name: [scores[best][seed] - score[seed] for seed in scores[best] if seed in score]
        for name, score in scores.items()
        if name != best
    }
    return dict(zip(differences, judge(list(differences.values())), strict=True))


def least_ratio(seeds: int, tests: int) -> float:
    """Return the ratio to its standard deviation that the largest difference needs to count.

    The first of Holm's tests requires p < 0.05 / tests.

    >>> round(least_ratio(3, 1), 2), round(least_ratio(10, 1), 2)
    (2.48, 0.72)
    """
    with needs_extra("server", "a test"):
        from scipy import stats

    return float(stats.t.ppf(1 - LEVEL / tests / 2, seeds - 1)) / math.sqrt(seeds)


def number(measure: str, values: Sequence[float], sign: bool = False) -> str:
    """Format mean and, for several seeds, ± standard deviation; accuracies in percent.

    With ``sign`` the value is a difference, accuracies in points.

    >>> number("accuracy", [0.41, 0.43]), number("loss", [1.5])
    ('42.0 % ± 1.4', '1.5000')
    """
    mean, deviation = spread(values)
    mark = "+" if sign else ""
    several = len(values) > 1
    if measure in _PERCENT:
        text = f"{100 * mean:{mark}.1f}{' points' if sign else ' %'}"
        return f"{text} ± {100 * deviation:.1f}" if several else text
    return f"{mean:{mark}.4f}" + (f" ± {deviation:.4f}" if several else "")


def counted(count: int, one: str, several: str) -> str:
    """Format a count with its noun.

    >>> counted(1, "run", "runs"), counted(0, "run", "runs")
    ('1 run', '0 runs')
    """
    return f"{count} {one if count == 1 else several}"


def describe_judgement(measure: str, judgement: Judgement, flip_sign: bool = False) -> list[str]:
    """Format the interval and the p-value; empty if nothing was tested.

    >>> describe_judgement("accuracy", Judgement([0.1] * 3, (0.05, 0.15), 0.0314, "holds"))
    ['[+5.0, +15.0]', '0.031']
    """
    if judgement.interval is None or judgement.p is None:
        return ["", ""]
    low, high = judgement.interval
    ends = (-high, -low) if flip_sign else (low, high)
    if measure in _PERCENT:
        interval = ", ".join(f"{100 * end:+.1f}" for end in ends)
    else:
        interval = ", ".join(f"{end:+.4f}" for end in ends)
    return [f"[{interval}]", p_value(judgement.p)]


def p_value(value: float) -> str:
    """Format a p-value.

    >>> p_value(0.0314), p_value(0.00001)
    ('0.031', '< 0.001')
    """
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def how_to_read(seeds: int, tests: int) -> str:
    """Explain the verdicts of a table.

    >>> how_to_read(2, 5)
    'Nothing was tested: 2 seeds are fewer than 3, too few to rule out chance. ± is the ...'
    """
    last = f" {PLUS_MINUS}" if seeds > 1 else ""
    if tests == 0:
        return f"Nothing was tested: there is only one arm.{last}"
    if seeds < LEAST_SEEDS:
        few = "one seed is" if seeds == 1 else f"{seeds} seeds are"
        why = f"{few} fewer than {LEAST_SEEDS}, too few to rule out chance"
        return f"Nothing was tested: {why}.{last}"
    several = "tests" if tests > 1 else "test"
    return (
        f"'holds': a paired t-test over the {seeds} seeds finds p < {LEVEL:g}, corrected for "
        f"{tests} {several} (Holm); 'reversed': the same for the opposite. With few seeds the test "
        "has little power: no difference counts here unless one is at least "
        f"{least_ratio(seeds, tests):.1f} times its own standard deviation over seeds, and "
        "'undecided' does not mean equal. Intervals are for each mean difference alone, "
        f"without correction.{last}"
    )
