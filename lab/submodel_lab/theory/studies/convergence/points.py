"""What one case comes to: its errors over trials, the exact ones, and what the theorem bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from submodel_lab.theory.bounds import BoundFacts, BoundTerms, theorem_1_bound, theorem_3_bound
from submodel_lab.theory.exact import ExactTrajectory, exact_moments
from submodel_lab.theory.lab import TrialPlan, run_trials
from submodel_lab.theory.measures import Measure, interval
from submodel_lab.theory.objective import MaskedObjective
from submodel_lab.theory.problem_constants import largest_gradient, sphere_points
from submodel_lab.theory.problems import FloatArray
from submodel_lab.theory.studies.convergence.averages import exact_average_error
from submodel_lab.theory.studies.convergence.cases import ConvergenceCase, ConvergenceSettings
from submodel_lab.theory.theorems import StepSize

_ROOM = 20.0  # the ball W is so many times larger than the optima: no run leaves it


@dataclass(frozen=True)
class ConvergencePoint:
    """What a case came to."""

    case: ConvergenceCase
    step: StepSize
    error: Measure  # ||w_R - w*(p)||^2
    gap: Measure  # F(w_R) - F*
    output_gap: Measure  # F(w^) - F*
    residual: float
    ceiling: BoundTerms
    share: float
    projections: int


class CaseBench:
    """One case: its problem, its objectives and their optima."""

    def __init__(self, s: ConvergenceSettings, case: ConvergenceCase) -> None:
        self.settings, self.case = s, case
        self.problem, self.masking = case.problem(s), case.masking(s)
        self.original = MaskedObjective(self.problem)
        self.objective = MaskedObjective(self.problem, self.masking)
        self.best = self.original.optimum(math.inf)
        self.target = self.objective.optimum(math.inf)
        self.least = self.original.value(self.best)

    @cached_property
    def radius(self) -> float:
        """Of a ball that holds both optima."""
        return max(float(np.linalg.norm(w)) for w in (self.best, self.target))

    @property
    def residual(self) -> float:
        """F(w*(p)) - F(w*)."""
        return self.original.value(self.target) - self.least

    def gaps(self, points: FloatArray) -> FloatArray:
        """F - F* at the points."""
        many = np.broadcast_to(points, (self.problem.clients, *points.shape))
        return np.asarray(self.problem.losses(many).mean(0) - self.least)

    def plan(self, step: StepSize) -> TrialPlan:
        """How it is trained with a step size."""
        s, case = self.settings, self.case
        eta: float | tuple[float, ...] = step.eta
        if case.step_kind == "decaying":
            first, half = case.decay(s)
            eta = tuple(first / (1 + r / half) for r in range(case.rounds))
        return TrialPlan(self.masking, case.rounds, case.steps, eta, _ROOM * self.radius,
                         s.trials, s.seed)  # fmt: skip

    def exact(self, plan: TrialPlan) -> ExactTrajectory:
        """The expectations of what trials of the plan give, if they never leave the ball."""
        return exact_moments(self.problem, replace(plan, radius=math.inf))

    def choose_step(self) -> StepSize:
        """The theorem's step size, or the best of a grid by the exact error."""
        choices = self.case.step_choices(self.settings, self.problem)
        if len(choices) == 1:
            return choices[0]
        return min(choices, key=lambda c: self.exact(self.plan(c)).distances[-1])

    def ceiling(self, eta: float) -> BoundTerms:
        """The theorem's bound on E||w_R - w*||^2."""
        s, case, q = self.settings, self.case, self.problem
        shares = self.masking.capacities
        start = float(self.target @ self.target)
        if not case.rolls:
            sigma2 = self.objective.power_at(self.target)
            return theorem_1_bound(BoundFacts(
                eta, case.steps, case.rounds, case.clients, max(shares) * q.smoothness,
                min(shares) * q.convexity, max(shares) * q.noise**2, sigma2, start,
            ))  # fmt: skip
        radius = 1.5 * self.radius
        zeta2 = max(self.objective.spread_at(w) for w in sphere_points(q, radius, 16)[0])
        return theorem_3_bound(BoundFacts(
            eta, case.steps, s.dimension, case.clients, q.smoothness, q.convexity,
            case.share(s) * q.noise**2, zeta2, start, largest_gradient(q, radius),
            case.rounds // s.dimension,
        ))  # fmt: skip


def measure_point(s: ConvergenceSettings, case: ConvergenceCase) -> ConvergencePoint:
    """Run one case."""
    bench = CaseBench(s, case)
    step = bench.choose_step()
    plan = bench.plan(step)
    averages = case.step_kind == "averaged"
    late = range(case.rounds // 2, case.rounds + 1) if averages else [case.rounds]
    trajectory = run_trials(bench.problem, plan, late)
    w = np.mean([trajectory.iterates[r] for r in late], axis=0)
    errors = np.square(w - bench.target).sum(1)
    exact = None if trajectory.projections else bench.exact(plan)
    error = None if exact is None else float(exact.distances[-1])
    if averages and exact is not None:
        error = exact_average_error(bench.problem, plan, range(case.rounds // 2, case.rounds + 1))
    return ConvergencePoint(
        case, step,
        Measure.of(errors, error),
        Measure.of(bench.gaps(w), None if exact is None or averages else float(exact.gaps[-1])),
        Measure.of(bench.gaps(trajectory.output), None if exact is None else exact.output_gap),
        bench.residual, bench.ceiling(step.eta), case.share(s), trajectory.projections,
    )  # fmt: skip


def measure_floor(s: ConvergenceSettings, case: ConvergenceCase) -> tuple[Measure, float]:
    """Where F settles without noise: measured with the exact value, and F(w*(p)) - F(w*).

    Over the last half of a long run, iterates are averaged over rounds and trials. Their mean is
    not w*(p): a step size eta moves it by a drift of order eta K, which the exact value has.
    """
    quiet = replace(case, noise=0.0, rounds=max(s.rounds), step_kind="theorem 1")
    bench = CaseBench(s, quiet)
    plan = bench.plan(quiet.theorem_step(s, bench.problem))
    late = range(quiet.rounds // 2, quiet.rounds + 1)
    trajectory = run_trials(bench.problem, plan, late)
    means = np.mean([trajectory.iterates[r] for r in late], axis=0)
    centre = means.mean(0)
    # F at a mean of so many trials is above F at the true mean, by half a trace on average
    excess = float(np.trace(np.cov(means.T) @ bench.problem.matrices.mean(0))) / (2 * len(means))
    value = bench.original.value(centre) - bench.least - excess
    slopes = (means - centre) @ bench.original.gradient(centre)
    half = interval(slopes)[2] - interval(slopes)[0] + 2 * excess
    exact_mean = bench.exact(plan).means[late.start :].mean(0)
    exact = bench.original.value(exact_mean) - bench.least
    return Measure(value, value - half, value + half, exact), bench.residual
