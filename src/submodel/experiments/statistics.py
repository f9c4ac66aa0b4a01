"""Whether a difference is more than chance: paired tests over seeds, and one verdict for all.

Whatever is compared, a claim of the paper or a way with the best of several, comes down to
differences seed by seed. `judge` says of each how large it is, how sure that is, and its verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from submodel.extras import needs_extra

LEVEL = 0.05
"""A corrected p-value below it counts as a difference."""
LEAST_SEEDS = 3
"""A verdict needs as many."""
HOLDS, REVERSED, UNDECIDED, EQUAL = "holds", "reversed", "undecided", "no difference"
_ROUND_OFF = 1e-12  # differences of fractions that agree but for their last bits


@dataclass(frozen=True)
class Judgement:
    """What differences between two ways, seed by seed, amount to."""

    differences: Sequence[float]  # positive: they speak for what is claimed
    interval: tuple[float, float] | None  # of the mean, at 95 %; None: too few seeds
    p: float | None  # corrected for the number of tests; None: too few seeds
    verdict: str


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation over seeds; neither is a number if a run diverged.

    Args:
        values: A value for each seed.

    >>> spread([1.0, 2.0, 3.0]), spread([1.0, math.inf])
    ((2.0, 1.0), (nan, nan))
    """
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def confidence(differences: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean difference, by Student's distribution.

    Args:
        differences: A difference for each seed, of two or more seeds.

    >>> [round(end, 3) for end in confidence([1.0, 2.0, 3.0])]  # 2 -+ 4.303 / sqrt 3
    [-0.484, 4.484]
    """
    mean, deviation = spread(differences)
    half = least_ratio(len(differences), tests=1) * deviation
    return mean - half, mean + half


def paired_p(differences: Sequence[float]) -> float:
    """The p-value of a two-sided paired t-test that the mean difference is nought.

    Args:
        differences: A difference for each seed, of two or more seeds.

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
    """Holm's correction of p-values for their number.

    Args:
        values: The p-values of tests that are looked at together.

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
    """Judge differences that are looked at together: a paired t-test each, corrected by Holm.

    Below three seeds nothing is tested: of so few, agreement says nothing. Neither is a difference
    to a run that diverged.

    Args:
        family: For each claim its differences by seed, positive where they speak for it.

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
    """For all names but the best one: the judgement of "it is behind the best".

    Args:
        scores: Every name's score by seed; more is better, the first of equals is the best.

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
    """How many times its own spread over seeds the largest difference must be to count.

    Args:
        seeds: How many there are.
        tests: How many are looked at together: the first of Holm's asks for p < 0.05 / tests.

    >>> round(least_ratio(3, 1), 2), round(least_ratio(10, 1), 2)
    (2.48, 0.72)
    """
    with needs_extra("server", "a test"):
        from scipy import stats

    return float(stats.t.ppf(1 - LEVEL / tests / 2, seeds - 1)) / math.sqrt(seeds)
