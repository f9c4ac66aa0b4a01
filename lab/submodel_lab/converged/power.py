"""How many seeds a difference takes, from the spread of differences over seeds that we have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import median

from submodel.experiments import LEAST_SEEDS, LEVEL, VariantRecord, spread
from submodel.extras import needs_extra

POWER = 0.8
"""The chance that a difference is found, if it is there."""
_MOST_SEEDS = 1000


def power_of_test(seeds: int, difference: float, deviation: float, tests: int = 1) -> float:
    """The chance that a paired t-test finds a difference of this size.

    Args:
        seeds: how many there are.
        difference: the true mean difference.
        deviation: the standard deviation of differences over seeds.
        tests: how many are looked at together (Bonferroni: what Holm's first one asks for).

    >>> round(power_of_test(3, 0.01, 0.01), 2), round(power_of_test(10, 0.01, 0.01), 2)
    (0.18, 0.8)
    """
    with needs_extra("server", "a test"):
        from scipy import stats

    if seeds < 2:
        return 0.0
    shift = math.sqrt(seeds) * abs(difference) / deviation
    limit = float(stats.t.ppf(1 - LEVEL / tests / 2, seeds - 1))
    above = float(stats.nct.sf(limit, seeds - 1, shift))
    below = float(stats.nct.cdf(-limit, seeds - 1, shift))
    return above + (below if math.isfinite(below) else 0.0)


def seeds_needed(difference: float, deviation: float, tests: int = 1) -> int:
    """How many seeds find such a difference four times in five.

    Args:
        difference: the true mean difference.
        deviation: the standard deviation of differences over seeds.
        tests: how many are looked at together.

    >>> seeds_needed(0.01, 0.007), seeds_needed(0.01, 0.023), seeds_needed(0.01, 0.007, tests=4)
    (7, 44, 9)
    """
    for seeds in range(LEAST_SEEDS, _MOST_SEEDS):
        if power_of_test(seeds, difference, deviation, tests) >= POWER:
            return seeds
    return _MOST_SEEDS


def typical_deviation(records: Sequence[VariantRecord], measure: str = "accuracy") -> float | None:
    """The median over all pairs of ways of how much their difference varies over seeds.

    Args:
        records: of ways that were run with the same seeds.
        measure: what was measured.

    Returns:
        None where no pair has enough seeds in common.
    """
    deviations = [
        spread(differences)[1]
        for one, other in combinations(records, 2)
        if len(differences := one.ahead_of(other, measure)) >= LEAST_SEEDS
    ]
    return median(deviations) if deviations else None
