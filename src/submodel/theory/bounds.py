"""What the theorems bound: their right-hand sides as numbers.

Where a proof ends in a display with explicit constants, that one is taken; where there is only the
O(...) of the statement, its constants are taken as 1. A study compares how the measured number and
the bound move along a parameter, where a common factor does not matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_FAILURE = 0.05  # nu: the probability with which Theorems 3 and 4 may fail


@dataclass(frozen=True)
class BoundFacts:
    """What the bounds of Theorems 1 to 4 are made of, for one run."""

    eta: float
    steps: int  # K
    rounds: int  # R; of rolling masks, the windows of an epoch
    clients: int  # N
    smoothness: float  # L; L~ = max p_i L of random masks
    convexity: float  # mu; mu~ = min p_i mu of random masks
    noise2: float  # delta^2
    spread2: float  # sigma_*^2 (Theorem 1), zeta^2 (Theorems 2 to 4)
    start: float  # ||w_0 - w*||^2 (Theorems 1 and 3), F_p(w_0) - min F_p (2 and 4)
    gradient: float = 0.0  # G
    epochs: int = 1  # T


def theorem_1_bound(f: BoundFacts) -> float:
    """The proof's bound on E||w_R - w*(p)||^2 (its equation "point convergence").

    Args:
        f: The run.
    """
    kappa = f.smoothness / f.convexity
    decrease = max(0.0, 1 - f.convexity * f.eta * f.steps) ** f.rounds
    drift = 10 * kappa * (f.eta * f.steps) ** 2 * (4 * f.spread2 + f.noise2)
    return decrease * f.start + drift + f.eta * f.noise2 / (f.convexity * f.clients)


def theorem_2_bound(f: BoundFacts) -> float:
    """The proof's bound on the mean of ||grad F_p(w_r)||^2, without V^2, as it is stated.

    Args:
        f: The run.
    """
    drift = (f.eta * f.steps * f.smoothness) ** 2
    return (
        4 * f.start / (f.eta * f.rounds * f.steps)
        + drift * (80 * f.spread2 + 20 * f.noise2)
        + 2 * f.eta * f.smoothness * f.noise2 / f.clients
    )


def theorem_3_bound(f: BoundFacts) -> float:
    """The proof's bound on E||w_T - w*(m)||^2, with the terms that lead in each constant.

    The second is kappa^2 G^2 eta^2 K^2 R log: the paper has kappa L G, of another unit.

    Args:
        f: The run.
    """
    kappa = f.smoothness / f.convexity
    step = f.eta * f.steps
    decrease = max(0.0, 1 - f.convexity * step * f.rounds / 4) ** f.epochs
    order = 64 * step**2 * kappa**2 * f.rounds * f.gradient**2 * _serfling(f)
    return (
        decrease * f.start
        + order
        + 4 * 48**2 * step**2 * kappa * f.spread2
        + 4 * 288 * kappa * step**2 * f.noise2
        + 108 * step * f.rounds * f.noise2 / (f.convexity * f.clients)
    )


def theorem_4_bound(f: BoundFacts) -> float:
    """The statement's bound on the mean of ||grad F_m(w_e)||^2, constants 1.

    Args:
        f: The run.
    """
    root = math.sqrt(f.rounds * f.steps * f.epochs)
    return (
        f.smoothness * f.start / root
        + f.steps**2 * f.spread2 / (f.epochs * f.smoothness**2)
        + f.noise2 / (f.clients * root * f.smoothness)
    )


@dataclass(frozen=True)
class StabilityFacts:
    """What the bounds of Theorems 5 and 6 are made of."""

    clients: int  # N
    examples: int  # n
    smoothness: float  # L~ = max p_i L
    noise2: float  # delta^2
    gradient: float  # G
    distance: float  # D_max
    spread2: float  # sigma_*^2


def theorem_5_bound(f: StabilityFacts) -> float:
    """The statement's bound on E||w^ - w^'||, constants 1.

    Args:
        f: The run.

    >>> theorem_5_bound(StabilityFacts(4, 4, 0.0, 1.0, 1.0, 0.5, 0.0))
    0.625
    """
    root = math.sqrt(f.clients * f.examples)
    first = math.sqrt(f.noise2) + f.gradient * f.distance
    return (first + math.sqrt(f.smoothness / root + f.spread2 + f.noise2)) / root


def theorem_6_bound(f: StabilityFacts) -> float:
    """The statement's bound on E||w^ - w^'||, constants 1.

    Args:
        f: The run.
    """
    root = math.sqrt(f.clients * f.examples)
    far = f.gradient * f.distance
    first = math.sqrt(f.noise2) + far
    return (first + math.sqrt(1 / root + far**2 + f.noise2)) / root


def _serfling(f: BoundFacts) -> float:
    """The logarithm of the Hoeffding-Serfling inequality, log(2RK/nu)."""
    return math.log(2 * f.rounds * f.steps / _FAILURE)
