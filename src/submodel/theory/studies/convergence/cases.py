"""What the study of Theorems 1 and 3 sweeps over: its settings, and the cases they make."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from submodel.theory.masking import Masking, bernoulli, rolling
from submodel.theory.problems import Quadratic, TheoryError, quadratics
from submodel.theory.theorems import StepSize, theorem_1, theorem_3


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


@dataclass(frozen=True)
class ConvergenceCase:
    """One curve: what differs from the settings."""

    label: str
    p: float
    steps: int
    clients: int
    noise: float
    rolls: bool = False
    takes_theorem_1_step: bool = False  # though it rolls: to compare the schemes alone

    def problem(self, s: ConvergenceSettings) -> Quadratic:
        """Its problem; the same matrices for the same number of clients."""
        return quadratics(
            self.clients, s.dimension, s.mu, s.smoothness, s.heterogeneity, self.noise, s.seed
        )

    def masking(self, s: ConvergenceSettings) -> Masking:
        """Its masks."""
        if self.rolls:
            return rolling(self.p, self.clients, s.dimension)
        return bernoulli(self.p, self.clients)

    def logs(self, s: ConvergenceSettings) -> list[float]:
        """The logarithm in the step size, for every R: log(KR), or log T for rolling."""
        if self.rolls and not self.takes_theorem_1_step:
            return [math.log(rounds // s.dimension) for rounds in s.rounds]
        return [math.log(self.steps * rounds) for rounds in s.rounds]

    def step(self, s: ConvergenceSettings, problem: Quadratic, rounds: int) -> StepSize:
        """The theorem's step size, or one's own."""
        if s.eta is not None:
            return StepSize(s.eta, ("own step size",))
        if self.rolls and not self.takes_theorem_1_step:
            return theorem_3(problem, self.steps, s.dimension, rounds // s.dimension)
        return theorem_1(problem, self.p, self.steps, rounds)


def list_cases(s: ConvergenceSettings) -> list[ConvergenceCase]:
    """Several p, then other K, N, no noise, and rolling, each at the smallest p."""
    least = min(s.capacities)
    first = [ConvergenceCase(f"p={p:g}", p, s.steps, s.clients, s.noise) for p in s.capacities]
    base = ConvergenceCase("", least, s.steps, s.clients, s.noise)
    return [
        *first,
        replace(base, label=f"p={least:g}, K=1", steps=1),
        replace(base, label=f"p={least:g}, N={4 * s.clients}", clients=4 * s.clients),
        replace(base, label=f"p={least:g}, no noise", noise=0.0),
        replace(base, label="p=1, no noise", p=1.0, noise=0.0),
        replace(base, label=f"rolling, s/d={least:g}", rolls=True),
        replace(base, label="rolling, Thm 1's step", rolls=True, takes_theorem_1_step=True),
    ]


def check_rounds(s: ConvergenceSettings) -> None:
    """Refuse settings that the study cannot use."""
    if len(s.rounds) < 3:
        raise TheoryError(f"{len(s.rounds)} values of R: a slope needs at least 3")
    if wrong := [r for r in s.rounds if r % s.dimension or r < 2 * s.dimension]:
        raise TheoryError(
            f"R = {wrong[0]}: rolling needs whole epochs of d = {s.dimension} rounds, at least 2"
        )
