"""Whether a difference is more than chance, and how tables word it: one verdict for all.

Whatever is compared, a claim of the paper or an arm with the best of several, comes down to
differences seed by seed. `judge` says of each how large it is, how sure that is, and its verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from submodel.core.extras import needs_extra

LEVEL = 0.05
"""A corrected p-value below it counts as a difference."""
LEAST_SEEDS = 3
"""A verdict needs as many."""
HOLDS, REVERSED, UNDECIDED, EQUAL = "holds", "reversed", "undecided", "no difference"
_ROUND_OFF = 1e-12  # differences of fractions that agree but for their last bits
PLUS_MINUS = "± is the standard deviation over seeds."
"""What follows the sign in every table and text; intervals stand in square brackets."""
JUDGEMENT_HEADINGS = ("95 % interval", "p (Holm)")
"""The headings of what `describe_judgement` says."""
_PERCENT = ("accuracy", "train accuracy", "accuracy gap", "held-out accuracy", "mean over sizes",
            "smallest size", "worst quarter", "accuracy by test batches")  # fmt: skip


@dataclass(frozen=True)
class Judgement:
    """What differences between two arms, seed by seed, amount to."""

    differences: Sequence[float]  # positive: they speak for what is claimed
    interval: tuple[float, float] | None  # of the mean, at 95 %; None: too few seeds
    p: float | None  # corrected for the number of tests; None: too few seeds
    verdict: str


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation over seeds; neither is a number if a run diverged.

    >>> spread([1.0, 2.0, 3.0]), spread([1.0, math.inf])
    ((2.0, 1.0), (nan, nan))
    """
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def confidence(differences: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean difference of two or more seeds, by Student's distribution.

    >>> [round(end, 3) for end in confidence([1.0, 2.0, 3.0])]  # 2 -+ 4.303 / sqrt 3
    [-0.484, 4.484]
    """
    mean, deviation = spread(differences)
    half = least_ratio(len(differences), tests=1) * deviation
    return mean - half, mean + half


def paired_p(differences: Sequence[float]) -> float:
    """The p-value of a two-sided paired t-test that the mean difference is nought.

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

    Differences are seed by seed, positive where they speak for a claim. Below three seeds
    nothing is tested: of so few, agreement says nothing. Neither is a difference to a run that
    diverged.

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
    """For all names but the best, the first of equals: the judgement of "it is behind the best".

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

    The first of Holm's tests asks for p < 0.05 / tests.

    >>> round(least_ratio(3, 1), 2), round(least_ratio(10, 1), 2)
    (2.48, 0.72)
    """
    with needs_extra("server", "a test"):
        from scipy import stats

    return float(stats.t.ppf(1 - LEVEL / tests / 2, seeds - 1)) / math.sqrt(seeds)


def number(measure: str, values: Sequence[float], sign: bool = False) -> str:
    """Mean and, of several seeds, ± standard deviation; accuracies in percent.

    With its sign it is a difference, accuracies in points.

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
    """A count and what it counts.

    >>> counted(1, "run", "runs"), counted(0, "run", "runs")
    ('1 run', '0 runs')
    """
    return f"{count} {one if count == 1 else several}"


def describe_judgement(measure: str, judgement: Judgement, flip_sign: bool = False) -> list[str]:
    """The interval and the p-value; empty where nothing was tested.

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
    """A p-value.

    >>> p_value(0.0314), p_value(0.00001)
    ('0.031', '< 0.001')
    """
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def how_to_read(seeds: int, tests: int) -> str:
    """What the verdicts of a table mean.

    >>> how_to_read(2, 5)
    'Nothing was tested: 2 seeds are fewer than 3, too few to tell from chance. ± is the ...'
    """
    last = f" {PLUS_MINUS}" if seeds > 1 else ""
    if tests == 0:
        return f"Nothing was tested: there is one way alone.{last}"
    if seeds < LEAST_SEEDS:
        few = "one seed is" if seeds == 1 else f"{seeds} seeds are"
        why = f"{few} fewer than {LEAST_SEEDS}, too few to tell from chance"
        return f"Nothing was tested: {why}.{last}"
    several = "tests" if tests > 1 else "test"
    return (
        f"'holds': a paired t-test over the {seeds} seeds finds p < {LEVEL:g}, corrected for "
        f"{tests} {several} (Holm); 'reversed': it finds so of the opposite. With few seeds "
        f"it has little power: here nothing counts before one of the differences is "
        f"{least_ratio(seeds, tests):.1f} times its own standard deviation over seeds, and "
        "'undecided' does not mean equal. An interval is that of the mean difference, each by "
        f"itself, not corrected.{last}"
    )
