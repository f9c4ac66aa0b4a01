"""Statements of the paper: step sizes with their conditions, and right-hand sides of bounds.

If a proof ends in a formula with explicit constants, that formula is used; if there is only the
O(...) of the statement, its constants are 1. A study compares the slopes of the measured number
and of the bound along a parameter, where a common factor does not matter: `stated_slope`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from submodel_lab.theory.measures import slope
from submodel_lab.theory.problems import Problem, TheoryError

_FAILURE = 0.05  # nu, the failure probability of Theorems 3 and 4


@dataclass(frozen=True)
class StepSize:
    """A step size and the unmet conditions of its theorem."""

    eta: float
    unmet: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """Text for a table: 'met', or the unmet conditions."""
        return "met" if not self.unmet else "not met: " + "; ".join(self.unmet)


def theorem_1(problem: Problem, p: float, steps: int, rounds: int) -> StepSize:
    """Return log((KR)^2) / (mu~ K R); needs R >= (L / mu~) log(K^2 R^2), mu~ = min p_i mu.

    The proof needs more, eta <= 1 / (16 L K), which is reported as well.
    """
    least = p * problem.convexity
    if least <= 0:
        raise TheoryError("theorem 1 needs a strongly convex problem: mu = 0 here")
    if steps * rounds < 2:
        raise TheoryError(f"K R = {steps * rounds}: theorem 1's step size is 0; take more rounds")
    log = math.log((steps * rounds) ** 2)
    eta = log / (least * steps * rounds)
    least_rounds = problem.smoothness / least * log
    unmet = []
    if rounds < least_rounds:
        unmet.append(f"R >= (L/mu~) log(K^2 R^2) = {least_rounds:.0f}")
    elif eta > 1 / (16 * problem.smoothness * steps):
        unmet.append(f"the proof's eta <= 1/(16 L K), that is R >= {16 * least_rounds:.0f}")
    return StepSize(eta, tuple(unmet))


def theorem_2(problem: Problem, steps: int, rounds: int) -> StepSize:
    """Return the step size 1 / (L sqrt(KR)); the proof needs eta <= 1 / (K L), that is R >= K."""
    eta = 1 / (problem.smoothness * math.sqrt(steps * rounds))
    return StepSize(
        eta, () if rounds >= steps else (f"the proof's eta <= 1/(K L): R >= K = {steps}",)
    )


def theorem_3(problem: Problem, steps: int, windows: int, epochs: int) -> StepSize:
    """Return log(T^2) / (mu K R T), with constant 1; needs T >= 512 kappa^2 log T."""
    if problem.convexity <= 0:
        raise TheoryError("theorem 3 needs a strongly convex problem: mu = 0 here")
    if epochs < 2:
        raise TheoryError(f"T = {epochs}: theorem 3's step size log(T^2) is 0; take T >= 2 epochs")
    eta = math.log(epochs**2) / (problem.convexity * steps * windows * epochs)
    least_epochs = 512 * (problem.smoothness / problem.convexity) ** 2 * math.log(epochs)
    unmet = () if epochs >= least_epochs else (f"T >= 512 kappa^2 log T = {least_epochs:.0f}",)
    return StepSize(eta, unmet)


def theorem_4(problem: Problem, steps: int, windows: int, epochs: int) -> StepSize:
    """Return the step size 1 / (L sqrt(KRT)); the proof needs 3 eta L R K <= 1/64."""
    eta = 1 / (problem.smoothness * math.sqrt(steps * windows * epochs))
    least_epochs = 192**2 * steps * windows
    unmet = (
        () if epochs >= least_epochs else (f"the proof's 3 eta L R K <= 1/64: T >= {least_epochs}",)
    )
    return StepSize(eta, unmet)


def theorem_5(problem: Problem, p: float, examples: int, steps: int, rounds: int) -> StepSize:
    """Return the step size sqrt(N n) / (R K); needs R >= L~ sqrt(N n), L~ = max p_i L.

    The proof uses Theorem 1's recursion, which needs eta <= 1 / (16 L K): 16 / p times the rounds.
    """
    root = math.sqrt(problem.clients * examples)
    least_rounds = p * problem.smoothness * root
    unmet = [] if rounds >= least_rounds else [f"R >= L~ sqrt(N n) = {least_rounds:.0f}"]
    eta = root / (rounds * steps)
    if not unmet and eta > 1 / (16 * problem.smoothness * steps):
        unmet.append(f"the proof's eta <= 1/(16 L K): R >= {16 * problem.smoothness * root:.0f}")
    if eta > 2 / problem.smoothness:
        unmet.append("the proof's non-expansive step eta <= 2/L")
    return StepSize(eta, tuple(unmet))


def theorem_6(problem: Problem, examples: int, steps: int, windows: int, epochs: int) -> StepSize:
    """Return sqrt(N n) / (T R K) as in the proof (not the statement); needs T >= sqrt(n / N)."""
    least_epochs = math.sqrt(examples / problem.clients)
    unmet = [] if epochs >= least_epochs else [f"T >= sqrt(n/N) = {least_epochs:.0f}"]
    eta = math.sqrt(problem.clients * examples) / (epochs * windows * steps)
    if eta > 2 / problem.smoothness:
        unmet.append("the proof's non-expansive step eta <= 2/L")
    return StepSize(eta, tuple(unmet))


def lemma_bound(problem: Problem, p: float, gradient: float, radius: float) -> float:
    """Return Lemma 2's bound on ||w*(1) - w*(p)||: sqrt((2G^2 + 2W^2L^2) d (1-p)) / (p mu)."""
    if problem.convexity <= 0:
        raise TheoryError("the lemma needs a strongly convex problem: mu = 0 here")
    constants = 2 * gradient**2 + 2 * (radius * problem.smoothness) ** 2
    return math.sqrt(constants * problem.dimension * (1 - p)) / (p * problem.convexity)


def sharper_bound(problem: Problem, p: float, gradient: float, radius: float) -> float:
    """Return `lemma_bound` without d, which follows from E||(1-m) (.) g||^2 = (1-p) ||g||^2."""
    return lemma_bound(problem, p, gradient, radius) / math.sqrt(problem.dimension)


def residual_term(problem: Problem, p: float, gradient: float, radius: float) -> float:
    """Return Theorem 1's residual: (5L/(2 mu-) + 4/L) (2G^2 + 2W^2L^2) d (1-p)."""
    constants = 2 * gradient**2 + 2 * (radius * problem.smoothness) ** 2
    factor = 2.5 * problem.smoothness / (p * problem.convexity) + 4 / problem.smoothness
    return factor * constants * problem.dimension * (1 - p)


@dataclass(frozen=True)
class BoundFacts:
    """Inputs of the bounds of Theorems 1 to 4 for a run."""

    eta: float
    steps: int  # K
    rounds: int  # R; for rolling masks, the windows of an epoch
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
    """Terms of a bound, and the names of those that dominate for many rounds."""

    terms: Mapping[str, float]
    leading: tuple[str, ...]

    @property
    def total(self) -> float:
        """Value of the bound."""
        return sum(self.terms.values())


def stated_slope(x: Sequence[float], bounds: Sequence[BoundTerms], every: bool = False) -> float:
    """Return the slope of a bound along a parameter: that of its shallowest leading term.

    The constants of the terms are unknown, so any term may dominate the measured number. With
    ``every`` the other terms count as well, for a parameter that is in no leading term.

    >>> halves = [BoundTerms({"noise": 1 / n, "start": n**-2.0}, ("noise",)) for n in (1, 2, 4)]
    >>> round(stated_slope([1, 2, 4], halves), 6)
    -1.0
    """
    names = tuple(bounds[0].terms) if every else bounds[0].leading
    slopes = [slope(x, [b.terms[name] for b in bounds]) for name in names]
    return max((round(one, 9) for one in slopes if not math.isnan(one)), default=math.nan)


def theorem_1_bound(f: BoundFacts) -> BoundTerms:
    """Return the proof's bound on E||w_R - w*(p)||^2 (its equation "point convergence")."""
    kappa = f.smoothness / f.convexity
    decrease = max(0.0, 1 - f.convexity * f.eta * f.steps) ** f.rounds
    terms = {
        "start": decrease * f.start,
        "drift": 10 * kappa * (f.eta * f.steps) ** 2 * (4 * f.spread2 + f.noise2),
        "noise": f.eta * f.noise2 / (f.convexity * f.clients),
    }
    return BoundTerms(terms, ("noise",) if f.noise2 else ("drift",))


def theorem_2_bound(f: BoundFacts) -> BoundTerms:
    """Return the proof's bound on the mean of ||grad F_p(w_r)||^2, without V^2, as stated."""
    drift = (f.eta * f.steps * f.smoothness) ** 2
    terms = {
        "start": 4 * f.start / (f.eta * f.rounds * f.steps),
        "drift": drift * (80 * f.spread2 + 20 * f.noise2),
        "noise": 2 * f.eta * f.smoothness * f.noise2 / f.clients,
    }
    return BoundTerms(terms, ("start", "noise"))


def theorem_3_bound(f: BoundFacts) -> BoundTerms:
    """Return the proof's bound on E||w_T - w*(m)||^2, with the leading terms of each constant.

    "order" is kappa^2 G^2 eta^2 K^2 R log; the paper has kappa L G, which has another unit.
    """
    kappa = f.smoothness / f.convexity
    step = f.eta * f.steps
    log = math.log(2 * f.rounds * f.steps / _FAILURE)  # of the Hoeffding-Serfling inequality
    decrease = max(0.0, 1 - f.convexity * step * f.rounds / 4) ** f.epochs
    terms = {
        "start": decrease * f.start,
        "order": 64 * step**2 * kappa**2 * f.rounds * f.gradient**2 * log,
        "drift": 4 * step**2 * kappa * (48**2 * f.spread2 + 288 * f.noise2),
        "noise": 108 * step * f.rounds * f.noise2 / (f.convexity * f.clients),
    }
    return BoundTerms(terms, ("noise",) if f.noise2 else ("order", "drift"))


def theorem_4_bound(f: BoundFacts) -> BoundTerms:
    """Return the statement's bound on the mean of ||grad F_m(w_e)||^2, with constants 1."""
    root = math.sqrt(f.rounds * f.steps * f.epochs)
    terms = {
        "start": f.smoothness * f.start / root,
        "drift": f.steps**2 * f.spread2 / (f.epochs * f.smoothness**2),
        "noise": f.noise2 / (f.clients * root * f.smoothness),
    }
    return BoundTerms(terms, ("start", "noise"))


@dataclass(frozen=True)
class StabilityFacts:
    """Inputs of the bounds of Theorems 5 and 6."""

    clients: int  # N
    examples: int  # n
    smoothness: float  # L~ = max p_i L
    noise2: float  # delta^2
    gradient: float  # G
    distance: float  # D_max
    spread2: float  # sigma_*^2


def theorem_5_bound(f: StabilityFacts) -> BoundTerms:
    """Return the statement's bound on E||w^ - w^'||, with constants 1.

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
    """Return the statement's bound on E||w^ - w^'||, with constants 1."""
    root = math.sqrt(f.clients * f.examples)
    far = f.gradient * f.distance
    terms = {
        "noise": math.sqrt(f.noise2) / root,
        "distance": far / root,
        "gradients": math.sqrt(1 / root + far**2 + f.noise2) / root,
    }
    return BoundTerms(terms, tuple(terms))
