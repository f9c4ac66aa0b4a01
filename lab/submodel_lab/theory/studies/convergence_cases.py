"""What the study of Theorems 1 and 3 runs: its settings, its cases, and what each comes to."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from submodel.schemes import Random
from submodel_lab.theory.exact import ExactTrajectory, exact_average_error, exact_moments
from submodel_lab.theory.masking import Masking, rolling
from submodel_lab.theory.measures import Measure, interval
from submodel_lab.theory.objective import MaskedObjective, largest_gradient, sphere_points
from submodel_lab.theory.problems import FloatArray, Quadratic, TheoryError, quadratics
from submodel_lab.theory.studies.sweeps import mean_share
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

_ROOM = 20.0  # the ball W is so many times larger than the optima: no run leaves it
StepChoice = Literal["theorem", "theorem 1", "tuned", "decaying", "averaged", "given"]
_GRID = tuple(2.0**power for power in range(-6, 2))  # of the theorem's step, to tune over


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


@dataclass(frozen=True)
class ConvergenceCase:
    """One run: a scheme, a problem and a step size."""

    p: float
    rounds: int
    steps: int
    clients: int
    noise: float
    smoothness: float
    spread: float = 1.0  # of the clients' optima, over that of the settings
    rolls: bool = False
    step_kind: StepChoice = "theorem"
    kinds: int = 0  # different clients, of which all others are copies; 0: all differ
    unequal: bool = False  # p_i of 1 and p in turns, as the paper's experiments have them

    def problem(self, s: ConvergenceSettings) -> Quadratic:
        """Its problem; the same matrices for the same number of clients."""
        kinds = self.kinds or self.clients
        problem = quadratics(kinds, s.dimension, s.mu, self.smoothness, s.heterogeneity,
                             self.noise, s.seed)  # fmt: skip
        if kinds < self.clients:
            copies = np.arange(self.clients) % kinds
            problem = Quadratic(problem.matrices[copies], problem.vectors[copies], self.noise)
        return spread_optima(problem, self.spread)

    def masking(self, s: ConvergenceSettings) -> Masking:
        """Its masks."""
        if self.rolls:
            return rolling(self.p, self.clients, s.dimension)
        shares = [1.0 if self.unequal and i % 2 else self.p for i in range(self.clients)]
        return Masking(Random(), tuple(shares))

    def share(self, s: ConvergenceSettings) -> float:
        """The share of the coordinates that is really held."""
        return mean_share(self.masking(s), s.dimension)

    @property
    def source(self) -> str:
        """The theorem that speaks of it, or "" where none does."""
        if self.step_kind != "theorem":
            return ""
        return "Theorem 3" if self.rolls else "Theorem 1"

    def theorem_step(self, s: ConvergenceSettings, problem: Quadratic) -> StepSize:
        """The step size of the theorem that the case is nearest to."""
        if s.eta is not None:
            return StepSize(s.eta, ("one's own step size",))
        if self.rolls and self.step_kind == "theorem":
            return theorem_3(problem, self.steps, s.dimension, self.rounds // s.dimension)
        return theorem_1(problem, min(self.masking(s).capacities), self.steps, self.rounds)

    def step_choices(self, s: ConvergenceSettings, problem: Quadratic) -> list[StepSize]:
        """The step sizes to choose from: one, but for what is tuned."""
        step = self.theorem_step(s, problem)
        if self.step_kind == "decaying":
            return [StepSize(self.decay(s)[0], ("decaying",))]
        if self.step_kind != "tuned":
            return [step]
        return [StepSize(step.eta * factor, ("tuned",)) for factor in _GRID]

    def decay(self, s: ConvergenceSettings) -> tuple[float, float]:
        """Eta_0 and after how many rounds it is halved: eta_r = 2 / (mu~ K (r + 4 kappa~))."""
        least = min(self.masking(s).capacities) * s.mu
        rounds = 4 * self.smoothness / least
        return 2 / (least * self.steps * rounds), rounds

    @property
    def words(self) -> str:
        """What it is, but for what a sweep varies."""
        name = "rolling" if self.rolls else "random"
        kind = "" if self.step_kind == "theorem" else f", {self.step_kind} step"
        return name + (", p_i of 1 and p" if self.unequal else "") + kind


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
    return ConvergenceCase(min(s.capacities), s.sweep_rounds, s.steps, s.clients, s.noise,
                           s.smoothness)  # fmt: skip


def check_rounds(s: ConvergenceSettings) -> None:
    """Refuse settings that the study cannot use."""
    if s.mu <= 0:
        raise TheoryError(f"theorems 1 and 3 need a strongly convex problem: mu = {s.mu:g} here")
    if s.noise == 0:
        raise TheoryError("noise = 0: the study has cases without noise as well; give more than 0")
    if len(s.rounds) < 3:
        raise TheoryError(f"{len(s.rounds)} values of R: a slope needs at least 3")
    every = [*s.rounds, s.sweep_rounds]
    if wrong := [r for r in every if r % s.dimension or r < 2 * s.dimension]:
        raise TheoryError(
            f"R = {wrong[0]}: rolling needs whole epochs of d = {s.dimension} rounds, at least 2"
        )


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
