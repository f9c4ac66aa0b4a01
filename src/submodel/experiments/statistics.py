"""Whether ways differ by more than their seeds make them: paired tests against the best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from submodel.experiments.records import spread

LEVEL = 0.05
"""A corrected p-value below it counts as a difference."""
_ROUND_OFF = 1e-12  # differences of fractions that agree but for their last bits
BEST, WORSE, SAME = "best", "worse", "not distinguishable from the best"
UNTESTED = "behind the best; one seed: not tested"


def paired_p(differences: Sequence[float]) -> float:
    """The p-value of a two-sided paired t-test that the mean difference is nought.

    >>> round(paired_p([1.0, 2.0, 3.0]), 4)  # t = 2 / (1 / sqrt 3) = 3.464, two degrees of freedom
    0.0742
    """
    mean, deviation = spread(differences)
    if deviation < _ROUND_OFF:  # the statistic would be 0/0, or infinite
        return 1.0 if abs(mean) < _ROUND_OFF else 0.0
    from scipy import stats  # takes a second to import

    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def holm(values: Sequence[float]) -> list[float]:
    """Holm's correction of p-values for their number.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    corrected, least = [0.0] * len(values), 0.0
    for rank, i in enumerate(order):
        least = max(least, min(1.0, (len(values) - rank) * values[i]))
        corrected[i] = least
    return corrected


@dataclass(frozen=True)
class Standing:
    """Where a way stands: its difference to the best, seed by seed, and what that means."""

    differences: Sequence[float]  # negative: behind; empty for the best itself
    p: float | None  # corrected; None: nothing was tested
    verdict: str


def standings(scores: Mapping[str, Mapping[int, float]]) -> dict[str, Standing]:
    """Every name's standing from its score by seed; more is better, the first of equals is best.

    >>> found = standings({"a": {0: 0.90, 1: 0.92, 2: 0.91}, "b": {0: 0.80, 1: 0.81, 2: 0.82}})
    >>> found["b"].verdict, round(found["b"].p or 1, 4)
    ('worse', 0.0033)
    """
    best = max(scores, key=lambda name: spread(list(scores[name].values()))[0])
    differences = {
        name: [own[seed] - scores[best][seed] for seed in scores[best]]
        for name, own in scores.items()
        if name != best
    }
    if len(scores[best]) < 2:
        tested: dict[str, float | None] = dict.fromkeys(differences)
    else:
        corrected = holm([paired_p(own) for own in differences.values()])
        tested = dict(zip(differences, corrected, strict=True))
    found = {name: Standing(differences[name], p, _verdict(p)) for name, p in tested.items()}
    return {name: found.get(name, Standing([], None, BEST)) for name in scores}


def _verdict(p: float | None) -> str:
    if p is None:
        return UNTESTED
    return WORSE if p < LEVEL else SAME


def least_ratio(seeds: int, tests: int) -> float:
    """How many times its own spread over seeds the largest difference must be to count.

    The first of Holm's tests asks for p < 0.05 / tests.

    >>> round(least_ratio(3, 1), 2), round(least_ratio(10, 1), 2)
    (2.48, 0.72)
    """
    from scipy import stats

    return float(stats.t.ppf(1 - LEVEL / tests / 2, seeds - 1)) / math.sqrt(seeds)
