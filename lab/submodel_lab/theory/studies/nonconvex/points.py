"""What one case comes to: the mean of ||grad||^2 over its iterates, and what the theorem bounds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from submodel_lab.theory.bounds import BoundFacts, BoundTerms, theorem_2_bound, theorem_4_bound
from submodel_lab.theory.lab import TrialPlan, run_trials
from submodel_lab.theory.masking import Masking
from submodel_lab.theory.measures import Measure
from submodel_lab.theory.objective import MaskedObjective
from submodel_lab.theory.problem_constants import gradient_variance, largest_gradient, sphere_points
from submodel_lab.theory.problems import FloatArray, Problem
from submodel_lab.theory.studies.nonconvex.cases import NonconvexCase, NonconvexSettings
from submodel_lab.theory.theorems import StepSize

_PLACES = 3  # iterates looked at between r and 2r
_RADIUS = 1.0  # of the points where delta, zeta and G are looked for


@dataclass(frozen=True)
class NonconvexPoint:
    """What a case came to."""

    case: NonconvexCase
    step: StepSize
    masked_norm: Measure  # the mean over r of ||grad F_p(w_r)||^2
    original_norm: Measure  # the same of F
    ceiling: BoundTerms
    share: float


def measure_nonconvex(s: NonconvexSettings, case: NonconvexCase) -> NonconvexPoint:
    """Run one case."""
    problem, masking = case.problem(s), case.masking(s)
    step = case.step(problem)
    both = mean_norms(s, problem, masking, case.steps, step.eta, case.rounds)
    start, zeta2, noise2, gradient = _facts(s, case)
    shares = masking.law(problem.dimension).moments[0].mean(1)
    facts = BoundFacts(
        step.eta, case.steps, problem.dimension if case.rolls else case.rounds, case.clients,
        problem.smoothness if case.rolls else float(shares.max()) * problem.smoothness, 0.0,
        noise2, zeta2, start, gradient,
        case.rounds // problem.dimension if case.rolls else 1,
    )  # fmt: skip
    ceiling = theorem_4_bound(facts) if case.rolls else theorem_2_bound(facts)
    return NonconvexPoint(case, step, Measure.of(both[0]), Measure.of(both[1]), ceiling,
                          case.share(s))  # fmt: skip


def _facts(s: NonconvexSettings, case: NonconvexCase) -> tuple[float, float, float, float]:
    """F_p(w_0), zeta^2, delta^2 and G, as the bounds take them; not of R or K."""
    return _masked_facts(s, case.p, case.clients, case.heterogeneity, case.noise, case.rolls,
                         case.kinds)  # fmt: skip


@lru_cache(maxsize=64)
def _masked_facts(
    s: NonconvexSettings, p: float, clients: int, heterogeneity: float, noise: float | None,
    rolls: bool, kinds: int,
) -> tuple[float, float, float, float]:  # fmt: skip
    case = NonconvexCase(p, s.sweep_rounds, s.steps, clients, heterogeneity, noise, rolls,
                         kinds)  # fmt: skip
    problem, masking = case.problem(s), case.masking(s)
    objective = MaskedObjective(problem, masking)
    points = sphere_points(problem, _RADIUS, 8)[0]
    zeta2 = max(objective.spread_at(w) for w in points)
    if noise is None:
        noise2 = gradient_variance(problem, masking, _RADIUS)
    else:
        noise2 = case.share(s) * noise**2
    start = objective.value(np.zeros(problem.dimension))
    return start, zeta2, noise2, largest_gradient(problem, _RADIUS)


def mean_norms(
    s: NonconvexSettings, problem: Problem, masking: Masking, steps: int, eta: float, rounds: int
) -> tuple[FloatArray, FloatArray]:
    """The mean over iterates of ||grad F_p||^2 and ||grad F||^2, for every trial."""
    places, weights = quadrature(rounds)
    plan = TrialPlan(masking, rounds, steps, eta, np.inf, s.trials, s.seed)
    trajectory = run_trials(problem, plan, set(places))
    points = np.concatenate([trajectory.iterates[r] for r in places])
    both = []
    for objective in (MaskedObjective(problem, masking), MaskedObjective(problem)):
        squares = np.square(objective.gradients_at(points)).sum(1)
        both.append(np.asarray(weights) @ squares.reshape(len(places), -1))
    return both[0], both[1]


def quadrature(rounds: int) -> tuple[list[int], list[float]]:
    """Rounds and weights for a mean over r = 1 .. R: early rounds, where much happens, closely.

    >>> quadrature(3), sum(quadrature(1000)[1])
    (([1, 2, 3], [0.3333333333333333, 0.3333333333333333, 0.3333333333333333]), 1.0)
    """
    places, weights, start = [], [], 1
    while start <= rounds:
        stop = min(2 * start, rounds + 1)
        for part in np.array_split(np.arange(start, stop), min(_PLACES, stop - start)):
            places.append(int(part[len(part) // 2]))
            weights.append(len(part) / rounds)
        start = stop
    return places, weights
