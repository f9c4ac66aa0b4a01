"""The theorems' step sizes, their conditions, and the lemmas' bounds, as the paper states them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from submodel_lab.theory.problems import Problem, TheoryError


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
