"""What the paper states: step sizes, their conditions, and the right-hand sides of bounds.

Where a proof ends in a display with explicit constants, that one is taken; where there is only the
O(...) of the statement, its constants are taken as 1. A study compares how the measured number and
the bound move along a parameter, where a common factor does not matter: `stated_slope`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from submodel_lab.theory.measures import slope
from submodel_lab.theory.problems import Problem, TheoryError

_FAILURE = 0.05  # nu: the probability with which Theorems 3 and 4 may fail


@dataclass(frozen=True)
class StepSize:
    """A step size and what of its theorem's conditions is not met (empty: all are)."""

    eta: float
    unmet: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """For a table: 'met', or what is not."""
        return "met" if not self.unmet else "not met: " + "; ".join(self.unmet)


def theorem_1(problem: Problem, p: float, steps: int, rounds: int) -> StepSize:
    """Step size log((KR)^2) / (mu~ K R); needs R >= (L / mu~) log(K^2 R^2), mu~ = min p_i mu.

    The proof uses more, eta <= 1 / (16 L K): that is said too.
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
    """Step size 1 / (L sqrt(KR)); the proof needs eta <= 1 / (K L), that is R >= K."""
    eta = 1 / (problem.smoothness * math.sqrt(steps * rounds))
    return StepSize(
        eta, () if rounds >= steps else (f"the proof's eta <= 1/(K L): R >= K = {steps}",)
    )


def theorem_3(problem: Problem, steps: int, windows: int, epochs: int) -> StepSize:
    """Step size log(T^2) / (mu K R T), the constant taken as 1; needs T >= 512 kappa^2 log T."""
    if problem.convexity <= 0:
        raise TheoryError("theorem 3 needs a strongly convex problem: mu = 0 here")
    if epochs < 2:
        raise TheoryError(f"T = {epochs}: theorem 3's step size log(T^2) is 0; take T >= 2 epochs")
    eta = math.log(epochs**2) / (problem.convexity * steps * windows * epochs)
    least_epochs = 512 * (problem.smoothness / problem.convexity) ** 2 * math.log(epochs)
    unmet = () if epochs >= least_epochs else (f"T >= 512 kappa^2 log T = {least_epochs:.0f}",)
    return StepSize(eta, unmet)


def theorem_4(problem: Problem, steps: int, windows: int, epochs: int) -> StepSize:
    """Step size 1 / (L sqrt(KRT)); the proof needs 3 eta L R K <= 1/64."""
    eta = 1 / (problem.smoothness * math.sqrt(steps * windows * epochs))
    least_epochs = 192**2 * steps * windows
    unmet = (
        () if epochs >= least_epochs else (f"the proof's 3 eta L R K <= 1/64: T >= {least_epochs}",)
    )
    return StepSize(eta, unmet)


def theorem_5(problem: Problem, p: float, examples: int, steps: int, rounds: int) -> StepSize:
    """Step size sqrt(N n) / (R K); needs R >= L~ sqrt(N n), L~ = max p_i L.

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
    """Step size sqrt(N n) / (T R K) as in the proof (the statement lacks T); T >= sqrt(n / N)."""
    least_epochs = math.sqrt(examples / problem.clients)
    unmet = [] if epochs >= least_epochs else [f"T >= sqrt(n/N) = {least_epochs:.0f}"]
    eta = math.sqrt(problem.clients * examples) / (epochs * windows * steps)
    if eta > 2 / problem.smoothness:
        unmet.append("the proof's non-expansive step eta <= 2/L")
    return StepSize(eta, tuple(unmet))


def lemma_bound(problem: Problem, p: float, gradient: float, radius: float) -> float:
    """The bound on ||w*(1) - w*(p)|| (Lemma 2): sqrt((2G^2 + 2W^2L^2) d (1-p)) / (p mu)."""
    if problem.convexity <= 0:
        raise TheoryError("the lemma needs a strongly convex problem: mu = 0 here")
    constants = 2 * gradient**2 + 2 * (radius * problem.smoothness) ** 2
    return math.sqrt(constants * problem.dimension * (1 - p)) / (p * problem.convexity)


def sharper_bound(problem: Problem, p: float, gradient: float, radius: float) -> float:
    """The same without d, as E||(1-m) (.) g||^2 = (1-p) ||g||^2 allows."""
    return lemma_bound(problem, p, gradient, radius) / math.sqrt(problem.dimension)


def residual_term(problem: Problem, p: float, gradient: float, radius: float) -> float:
    """Theorem 1's residual: (5L/(2 mu-) + 4/L) (2G^2 + 2W^2L^2) d (1-p)."""
    constants = 2 * gradient**2 + 2 * (radius * problem.smoothness) ** 2
    factor = 2.5 * problem.smoothness / (p * problem.convexity) + 4 / problem.smoothness
    return factor * constants * problem.dimension * (1 - p)


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

    The constants before the terms are not known, so any of them may be what is seen. With ``every``
    the other terms count too, as for a parameter that is in none that leads.

    >>> halves = [BoundTerms({"noise": 1 / n, "start": n**-2.0}, ("noise",)) for n in (1, 2, 4)]
    >>> round(stated_slope([1, 2, 4], halves), 6)
    -1.0
    """
    names = tuple(bounds[0].terms) if every else bounds[0].leading
    slopes = [slope(x, [b.terms[name] for b in bounds]) for name in names]
    return max((round(one, 9) for one in slopes if not math.isnan(one)), default=math.nan)


def theorem_1_bound(f: BoundFacts) -> BoundTerms:
    """The proof's bound on E||w_R - w*(p)||^2 (its equation "point convergence")."""
    kappa = f.smoothness / f.convexity
    decrease = max(0.0, 1 - f.convexity * f.eta * f.steps) ** f.rounds
    terms = {
        "start": decrease * f.start,
        "drift": 10 * kappa * (f.eta * f.steps) ** 2 * (4 * f.spread2 + f.noise2),
        "noise": f.eta * f.noise2 / (f.convexity * f.clients),
    }
    return BoundTerms(terms, ("noise",) if f.noise2 else ("drift",))


def theorem_2_bound(f: BoundFacts) -> BoundTerms:
    """The proof's bound on the mean of ||grad F_p(w_r)||^2, without V^2, as it is stated."""
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
    """The statement's bound on the mean of ||grad F_m(w_e)||^2, constants 1."""
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
    """The statement's bound on E||w^ - w^'||, constants 1."""
    root = math.sqrt(f.clients * f.examples)
    far = f.gradient * f.distance
    terms = {
        "noise": math.sqrt(f.noise2) / root,
        "distance": far / root,
        "gradients": math.sqrt(1 / root + far**2 + f.noise2) / root,
    }
    return BoundTerms(terms, tuple(terms))
