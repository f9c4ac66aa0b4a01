"""What the study of Theorems 1 and 3 runs: its settings, its cases, and what each comes to."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from submodel.schemes import Random
from submodel_lab.theory.exact import ExactTrajectory, exact_average_error, exact_moments
from submodel_lab.theory.masking import Masking
from submodel_lab.theory.measures import Measure, interval
from submodel_lab.theory.objective import MaskedObjective, largest_gradient, sphere_points
from submodel_lab.theory.problems import FloatArray, Quadratic, TheoryError, mean_losses, quadratics
from submodel_lab.theory.studies.sweeps import MaskedCase
from submodel_lab.theory.theorems import (
    BoundFacts,
    BoundTerms,
    StepSize,
    theorem_1,
    theorem_1_bound,
    theorem_3,
    theorem_3_bound,
)
from submodel_lab.theory.trials import TrialPlan, run_trials

StepChoice = Literal["theorem", "theorem 1", "tuned", "decaying", "averaged", "given"]
_GRID = tuple(2.0**power for power in range(-6, 2))  # of the theorem's step, to tune over
_ROOM = 20.0  # the ball W is so many times larger than the optima: no run leaves it


@dataclass(frozen=True)
class ConvergenceSettings:
    """Defaults put the largest R well into the regime where gradient noise dominates."""

    capacities: tuple[float, ...] = (1.0, 0.75, 0.5)
    rounds: tuple[int, ...] = (80, 160, 320, 640, 1280)
    steps: int = 5
    clients: int = 4
    dimension: int = 10
    mu: float = 1.0
    smoothness: float = 2.0
    heterogeneity: float = 1.0
    noise: float = 10.0
    trials: int = 200
    seed: int = 0
    eta: float | None = None  # one's own, the same for every R
    sweep_rounds: int = 320  # R of the sweeps over everything else
    sweep_capacities: tuple[float, ...] = (1.0, 0.7, 0.5, 0.3)
    sweep_steps: tuple[int, ...] = (1, 2, 5, 10)
    sweep_clients: tuple[int, ...] = (2, 4, 8, 16)
    sweep_smoothness: tuple[float, ...] = (4.0, 8.0, 16.0, 32.0)
    sweep_spread: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)  # of optima, matrices being the same
    sweep_noise: tuple[float, ...] = (3.0, 10.0, 30.0, 100.0)

    def check(self) -> None:
        """Refuse settings that the study cannot use."""
        if self.mu <= 0:
            raise TheoryError(
                f"theorems 1 and 3 need a strongly convex problem: mu = {self.mu:g} here"
            )
        if self.noise == 0:
            raise TheoryError(
                "noise = 0: the study has cases without noise as well; give more than 0"
            )
        if len(self.rounds) < 3:
            raise TheoryError(f"{len(self.rounds)} values of R: a slope needs at least 3")
        d = self.dimension
        if wrong := [r for r in (*self.rounds, self.sweep_rounds) if r % d or r < 2 * d]:
            raise TheoryError(
                f"R = {wrong[0]}: rolling needs whole epochs of d = {d} rounds, at least 2"
            )


@dataclass(frozen=True)
class ConvergenceCase(MaskedCase):
    """One run: a scheme, a problem and a step size; with its objectives and their optima."""

    s: ConvergenceSettings
    noise: float
    smoothness: float
    spread: float = 1.0  # of the clients' optima, over that of the settings
    step_kind: StepChoice = "theorem"
    kinds: int = 0  # different clients, of which all others are copies; 0: all differ
    unequal: bool = False  # p_i of 1 and p in turns, as the paper's experiments have them
    theorems: ClassVar[tuple[str, str]] = ("Theorem 1", "Theorem 3")

    @cached_property
    def problem(self) -> Quadratic:
        """Its problem; the same matrices for the same number of clients."""
        s, kinds = self.s, self.kinds or self.clients
        problem = quadratics(kinds, s.dimension, s.mu, self.smoothness, s.heterogeneity,
                             self.noise, s.seed)  # fmt: skip
        if kinds < self.clients:
            copies = np.arange(self.clients) % kinds
            problem = Quadratic(problem.matrices[copies], problem.vectors[copies], self.noise)
        return spread_optima(problem, self.spread)

    @property
    def masking(self) -> Masking:
        """How coordinates are masked."""
        if not self.unequal:
            return super().masking
        return Masking(Random(), tuple(1.0 if i % 2 else self.p for i in range(self.clients)))

    @property
    def source(self) -> str:
        """The theorem that speaks of it, or "" where none does."""
        return super().source if self.step_kind == "theorem" else ""

    @property
    def kind(self) -> str:
        """What it is, but for what a sweep varies."""
        step = "" if self.step_kind == "theorem" else f", {self.step_kind} step"
        return self.scheme + (", p_i of 1 and p" if self.unequal else "") + step

    @cached_property
    def original(self) -> MaskedObjective:
        """F."""
        return MaskedObjective(self.problem)

    @cached_property
    def objective(self) -> MaskedObjective:
        """F_p or F_m."""
        return MaskedObjective(self.problem, self.masking)

    @cached_property
    def best(self) -> FloatArray:
        """w*."""
        return self.original.optimum(math.inf)

    @cached_property
    def target(self) -> FloatArray:
        """w*(p) or w*(m)."""
        return self.objective.optimum(math.inf)

    @property
    def radius(self) -> float:
        """Of a ball that holds both optima."""
        return max(float(np.linalg.norm(w)) for w in (self.best, self.target))

    @cached_property
    def least(self) -> float:
        """F(w*)."""
        return self.original.value(self.best)

    @property
    def residual(self) -> float:
        """F(w*(p)) - F(w*)."""
        return self.original.value(self.target) - self.least

    def gaps(self, points: FloatArray) -> FloatArray:
        """F - F* at the points."""
        return mean_losses(self.problem, points) - self.least

    @property
    def theorem_step(self) -> StepSize:
        """The step size of the theorem that the case is nearest to."""
        s = self.s
        if s.eta is not None:
            return StepSize(s.eta, ("one's own step size",))
        if self.rolls and self.step_kind == "theorem":
            return theorem_3(self.problem, self.steps, s.dimension, self.rounds // s.dimension)
        return theorem_1(self.problem, min(self.masking.capacities), self.steps, self.rounds)

    @property
    def decay(self) -> tuple[float, float]:
        """Eta_0 and after how many rounds it is halved: eta_r = 2 / (mu~ K (r + 4 kappa~))."""
        least = min(self.masking.capacities) * self.s.mu
        rounds = 4 * self.smoothness / least
        return 2 / (least * self.steps * rounds), rounds

    def choose_step(self) -> StepSize:
        """The theorem's step size, or the best of a grid by the exact error."""
        if self.step_kind == "decaying":
            return StepSize(self.decay[0], ("decaying",))
        step = self.theorem_step
        if self.step_kind != "tuned":
            return step
        grid = [StepSize(step.eta * factor, ("tuned",)) for factor in _GRID]
        return min(grid, key=lambda c: self.exact(self.plan(c)).distances[-1])

    def plan(self, step: StepSize) -> TrialPlan:
        """How it is trained with a step size."""
        eta: float | tuple[float, ...] = step.eta
        if self.step_kind == "decaying":
            first, half = self.decay
            eta = tuple(first / (1 + r / half) for r in range(self.rounds))
        return TrialPlan(self.masking, self.rounds, self.steps, eta, _ROOM * self.radius,
                         self.s.trials, self.s.seed)  # fmt: skip

    def exact(self, plan: TrialPlan) -> ExactTrajectory:
        """The expectations of what trials of the plan give, if they never leave the ball."""
        return exact_moments(self.problem, replace(plan, radius=math.inf))

    def ceiling(self, eta: float) -> BoundTerms:
        """The theorem's bound on E||w_R - w*||^2."""
        d, q, shares = self.s.dimension, self.problem, self.masking.capacities
        start = float(self.target @ self.target)
        if not self.rolls:
            sigma2 = self.objective.power_at(self.target)
            return theorem_1_bound(BoundFacts(
                eta, self.steps, self.rounds, self.clients, max(shares) * q.smoothness,
                min(shares) * q.convexity, max(shares) * q.noise**2, sigma2, start,
            ))  # fmt: skip
        radius = 1.5 * self.radius
        zeta2 = max(self.objective.spread_at(w) for w in sphere_points(q, radius, 16)[0])
        return theorem_3_bound(BoundFacts(
            eta, self.steps, d, self.clients, q.smoothness, q.convexity,
            self.share * q.noise**2, zeta2, start, largest_gradient(q, radius),
            self.rounds // d,
        ))  # fmt: skip


@dataclass(frozen=True)
class ConvergencePoint:
    """What a case came to."""

    case: ConvergenceCase
    step: StepSize
    error: Measure  # ||w_R - w*(p)||^2
    gap: Measure  # F(w_R) - F*
    output_gap: Measure  # F(w^) - F*
    ceiling: BoundTerms
    projections: int


def spread_optima(problem: Quadratic, factor: float) -> Quadratic:
    """The clients' optima so many times as far from their mean; the matrices stay."""
    if factor == 1:
        return problem
    optima = np.linalg.solve(problem.matrices, problem.vectors[..., None])[..., 0]
    centre = optima.mean(0)
    vectors = (problem.matrices @ (centre + factor * (optima - centre))[..., None])[..., 0]
    return Quadratic(problem.matrices, vectors, problem.noise)


def convergence_base(s: ConvergenceSettings) -> ConvergenceCase:
    """The case that sweeps start from: the smallest p, the settings' everything else."""
    return ConvergenceCase(s, min(s.capacities), s.sweep_rounds, s.steps, s.clients, s.noise,
                           s.smoothness)  # fmt: skip


def measure_point(case: ConvergenceCase) -> ConvergencePoint:
    """Run one case."""
    step = case.choose_step()
    plan = case.plan(step)
    averages = case.step_kind == "averaged"
    late = range(case.rounds // 2 if averages else case.rounds, case.rounds + 1)
    trajectory = run_trials(case.problem, plan, late)
    w = np.mean([trajectory.iterates[r] for r in late], axis=0)
    errors = np.square(w - case.target).sum(1)
    error = gap = output_gap = None
    if not trajectory.projections:
        exact = case.exact(plan)
        error, gap, output_gap = float(exact.distances[-1]), float(exact.gaps[-1]), exact.output_gap
        if averages:
            error, gap = exact_average_error(case.problem, plan, late), None
    return ConvergencePoint(
        case, step, Measure.of(errors, error), Measure.of(case.gaps(w), gap),
        Measure.of(case.gaps(trajectory.output), output_gap), case.ceiling(step.eta),
        trajectory.projections,
    )  # fmt: skip


def measure_floor(case: ConvergenceCase) -> tuple[Measure, float]:
    """Where F settles without noise: measured with the exact value, and F(w*(p)) - F(w*).

    Over the last half of a long run, iterates are averaged over rounds and trials. Their mean is
    not w*(p): a step size eta moves it by a drift of order eta K, which the exact value has.
    """
    quiet = replace(case, noise=0.0, rounds=max(case.s.rounds), step_kind="theorem 1")
    plan = quiet.plan(quiet.theorem_step)
    late = range(quiet.rounds // 2, quiet.rounds + 1)
    trajectory = run_trials(quiet.problem, plan, late)
    means = np.mean([trajectory.iterates[r] for r in late], axis=0)
    centre = means.mean(0)
    # F at a mean of so many trials is above F at the true mean, by half a trace on average
    excess = float(np.trace(np.cov(means.T) @ quiet.problem.matrices.mean(0))) / (2 * len(means))
    value = quiet.original.value(centre) - quiet.least - excess
    slopes = (means - centre) @ quiet.original.gradient(centre)
    half = interval(slopes)[2] - interval(slopes)[0] + 2 * excess
    exact_mean = quiet.exact(plan).means[late.start :].mean(0)
    exact = quiet.original.value(exact_mean) - quiet.least
    return Measure(value, value - half, value + half, exact), quiet.residual
