"""What the study of Theorems 1 and 3 sweeps over: its settings, and the cases they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from submodel.schemes import Random
from submodel_lab.theory.masking import Masking, rolling
from submodel_lab.theory.problems import Quadratic, TheoryError, quadratics
from submodel_lab.theory.studies.comparison import mean_share
from submodel_lab.theory.theorems import StepSize, theorem_1, theorem_3

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
    """The clients' optima so many times as far from their mean; the matrices stay.

    Args:
        problem: Quadratic losses.
        factor: 1 changes nothing, 0 makes all optima equal.
    """
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
