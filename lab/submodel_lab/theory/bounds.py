"""What the theorems bound: their right-hand sides as numbers.

Where a proof ends in a display with explicit constants, that one is taken; where there is only the
O(...) of the statement, its constants are taken as 1. A study compares how the measured number and
the bound move along a parameter, where a common factor does not matter: `stated_slope`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from submodel_lab.theory.measures import slope

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


@dataclass(frozen=True)
class BoundTerms:
    """The terms of a bound, and which of them lead as the rounds grow."""

    terms: Mapping[str, float]
    leading: tuple[str, ...]

    @property
    def total(self) -> float:
        """The bound."""
        return sum(self.terms.values())


def stated_slope(x: Sequence[float], bounds: Sequence[BoundTerms], every: bool = False) -> float:
    """The slope that a bound allows along a parameter: that of its shallowest leading term.

    The constants before the terms are not known, so any of them may be what is seen.

    Args:
        x: The values of the parameter.
        bounds: The bound at each of them.
        every: Whether any term counts, as where a parameter is in none that leads.

    >>> halves = [BoundTerms({"noise": 1 / n, "start": n**-2.0}, ("noise",)) for n in (1, 2, 4)]
    >>> round(stated_slope([1, 2, 4], halves), 6)
    -1.0
    """
    names = tuple(bounds[0].terms) if every else bounds[0].leading
    slopes = [slope(x, [b.terms[name] for b in bounds]) for name in names]
    return max((round(one, 9) for one in slopes if not math.isnan(one)), default=math.nan)


def theorem_1_bound(f: BoundFacts) -> BoundTerms:
    """The proof's bound on E||w_R - w*(p)||^2 (its equation "point convergence").

    Args:
        f: The run.
    """
    kappa = f.smoothness / f.convexity
    decrease = max(0.0, 1 - f.convexity * f.eta * f.steps) ** f.rounds
    terms = {
        "start": decrease * f.start,
        "drift": 10 * kappa * (f.eta * f.steps) ** 2 * (4 * f.spread2 + f.noise2),
        "noise": f.eta * f.noise2 / (f.convexity * f.clients),
    }
    return BoundTerms(terms, ("noise",) if f.noise2 else ("drift",))


def theorem_2_bound(f: BoundFacts) -> BoundTerms:
    """The proof's bound on the mean of ||grad F_p(w_r)||^2, without V^2, as it is stated.

    Args:
        f: The run.
    """
    drift = (f.eta * f.steps * f.smoothness) ** 2
    terms = {
        "start": 4 * f.start / (f.eta * f.rounds * f.steps),
        "drift": drift * (80 * f.spread2 + 20 * f.noise2),
        "noise": 2 * f.eta * f.smoothness * f.noise2 / f.clients,
    }
    return BoundTerms(terms, ("start", "noise"))


def theorem_3_bound(f: BoundFacts) -> BoundTerms:
    """The proof's bound on E||w_T - w*(m)||^2, with the terms that lead in each constant.

    "order" is kappa^2 G^2 eta^2 K^2 R log: the paper has kappa L G, of another unit.

    Args:
        f: The run.
    """
    kappa = f.smoothness / f.convexity
    step = f.eta * f.steps
    decrease = max(0.0, 1 - f.convexity * step * f.rounds / 4) ** f.epochs
    terms = {
        "start": decrease * f.start,
        "order": 64 * step**2 * kappa**2 * f.rounds * f.gradient**2 * _serfling(f),
        "drift": 4 * step**2 * kappa * (48**2 * f.spread2 + 288 * f.noise2),
        "noise": 108 * step * f.rounds * f.noise2 / (f.convexity * f.clients),
    }
    return BoundTerms(terms, ("noise",) if f.noise2 else ("order", "drift"))


def theorem_4_bound(f: BoundFacts) -> BoundTerms:
    """The statement's bound on the mean of ||grad F_m(w_e)||^2, constants 1.

    Args:
        f: The run.
    """
    root = math.sqrt(f.rounds * f.steps * f.epochs)
    terms = {
        "start": f.smoothness * f.start / root,
        "drift": f.steps**2 * f.spread2 / (f.epochs * f.smoothness**2),
        "noise": f.noise2 / (f.clients * root * f.smoothness),
    }
    return BoundTerms(terms, ("start", "noise"))


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


def theorem_5_bound(f: StabilityFacts) -> BoundTerms:
    """The statement's bound on E||w^ - w^'||, constants 1.

    Args:
        f: The run.

    >>> theorem_5_bound(StabilityFacts(4, 4, 0.0, 1.0, 1.0, 0.5, 0.0)).total
    0.625
    """
    root = math.sqrt(f.clients * f.examples)
    terms = {
        "noise": math.sqrt(f.noise2) / root,
        "distance": f.gradient * f.distance / root,
        "gradients": math.sqrt(f.smoothness / root + f.spread2 + f.noise2) / root,
    }
    return BoundTerms(terms, tuple(terms))


def theorem_6_bound(f: StabilityFacts) -> BoundTerms:
    """The statement's bound on E||w^ - w^'||, constants 1.

    Args:
        f: The run.
    """
    root = math.sqrt(f.clients * f.examples)
    far = f.gradient * f.distance
    terms = {
        "noise": math.sqrt(f.noise2) / root,
        "distance": far / root,
        "gradients": math.sqrt(1 / root + far**2 + f.noise2) / root,
    }
    return BoundTerms(terms, tuple(terms))


def _serfling(f: BoundFacts) -> float:
    """The logarithm of the Hoeffding-Serfling inequality, log(2RK/nu)."""
    return math.log(2 * f.rounds * f.steps / _FAILURE)
