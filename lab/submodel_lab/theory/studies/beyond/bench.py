"""One problem, many ways to train on it: settings, runs, and what each of them comes to."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from submodel_lab.theory.exact import exact_moments
from submodel_lab.theory.lab import TrialPlan, run_trials
from submodel_lab.theory.masking import Masking
from submodel_lab.theory.measures import Measure
from submodel_lab.theory.objective import MaskedObjective
from submodel_lab.theory.problems import FloatArray, Quadratic, quadratics
from submodel_lab.theory.results import OnProgress, ResultRow

_RADIUS = 50.0  # so large that no run leaves the ball


@dataclass(frozen=True)
class BeyondSettings:
    """Quadratics, as in the convergence study."""

    capacities: tuple[float, ...] = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2)
    budgets: tuple[int, ...] = (50, 200, 800)  # trained coordinates per client / (K d)
    p: float = 0.5
    rounds: tuple[int, ...] = (80, 160, 320, 640)
    steps: int = 5
    clients: int = 8
    dimension: int = 10
    mu: float = 1.0
    smoothness: float = 2.0
    heterogeneity: float = 1.0
    noise: float = 3.0
    trials: int = 200
    seed: int = 0


@dataclass(frozen=True)
class BeyondPoint:
    """What one way came to."""

    rounds: int
    error: Measure  # ||w_R - w*||^2, to its own optimum
    gap: Measure  # F(w_R) - F(w*)


class BeyondBench:
    """One problem, many ways to train on it."""

    def __init__(self, s: BeyondSettings, on_progress: OnProgress, total: int) -> None:
        self._s, self._on_progress, self._total, self._step_count = s, on_progress, total, 0
        self.problem = quadratics(s.clients, s.dimension, s.mu, s.smoothness, s.heterogeneity,
                                  s.noise, s.seed)  # fmt: skip
        self.quiet = Quadratic(self.problem.matrices, self.problem.vectors)
        self.original = MaskedObjective(self.problem)
        self.best = self.original.optimum(math.inf)
        self.least = self.original.value(self.best)

    def run(
        self, masking: Masking, rounds: int, noisy: bool = True, participants: int | None = None
    ) -> BeyondPoint:
        """Train, with Theorem 1's step size for the masked objective's own mu."""
        s = self._s
        scale = float(masking.factors(s.dimension)[0, 0])
        least = masking.capacities[0] * scale**2 * s.mu
        eta = math.log((s.steps * rounds) ** 2) / (least * s.steps * rounds)
        plan = TrialPlan(masking, rounds, s.steps, eta, _RADIUS, s.trials, s.seed, participants)
        return self.run_plan(self.problem if noisy else self.quiet, plan)

    def run_plan(self, problem: Quadratic, plan: TrialPlan) -> BeyondPoint:
        """Trials of a plan, and what they are exactly."""
        trajectory = run_trials(problem, plan, [plan.rounds])
        w = trajectory.iterates[plan.rounds]
        target = MaskedObjective(problem, plan.masking).optimum(math.inf)
        exact = None
        if not trajectory.projections:
            exact = exact_moments(problem, replace(plan, radius=math.inf))
        self._step_count += 1
        self._on_progress(self._step_count, self._total)
        errors = np.square(w - target).sum(1)
        same = problem.matrices is self.problem.matrices  # F* is that of the bench's problem
        return BeyondPoint(
            plan.rounds,
            Measure.of(errors, None if exact is None else float(exact.distances[-1])),
            Measure.of(self.gaps(w), float(exact.gaps[-1]) if exact is not None and same else None),
        )

    def gaps(self, points: FloatArray) -> FloatArray:
        """F - F(w*) at the points."""
        many = np.broadcast_to(points, (self.problem.clients, *points.shape))
        return np.asarray(self.problem.losses(many).mean(0) - self.least)

    def row(
        self, part: str, case: str, point: BeyondPoint | None, p: float, **facts: float
    ) -> ResultRow:
        """A row of the table."""
        s = self._s
        parameters = {
            "part": part, "case": case, "p": p, "R": point.rounds if point else "", "K": s.steps,
            "N": s.clients, "d": s.dimension, "seed": s.seed,
        }  # fmt: skip
        measures = {"distance2": point.error, "F(w_R)-F*": point.gap} if point else {}
        return ResultRow(parameters, measures, facts)
