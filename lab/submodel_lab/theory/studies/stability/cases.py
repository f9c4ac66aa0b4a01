"""What the study of Theorems 5 and 6 sweeps over: its settings, its cases, and their datasets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from submodel.randomness import generator
from submodel_lab.theory.data import Directions
from submodel_lab.theory.masking import Masking, bernoulli, rolling
from submodel_lab.theory.problems import FloatArray, Logistic, TheoryError
from submodel_lab.theory.studies.comparison import mean_share
from submodel_lab.theory.theorems import StepSize, theorem_5, theorem_6


@dataclass(frozen=True)
class StabilitySettings:
    """Logistic regression, convex but not strongly; every trial draws its own dataset."""

    capacities: tuple[float, ...] = (1.0, 0.8, 0.5, 0.3)
    examples: tuple[int, ...] = (16, 32, 64, 128)
    clients: tuple[int, ...] = (2, 4, 8)
    dimension: int = 10
    heterogeneity: float = 0.3
    rounds: int = 60
    steps: int = 2
    radius: float = 50.0
    trials: int = 300
    seed: int = 0
    sweep_rounds: tuple[int, ...] = (60, 120, 240, 480)
    sweep_steps: tuple[int, ...] = (1, 2, 4, 8)
    sweep_heterogeneity: tuple[float, ...] = (0.1, 0.2, 0.4, 0.8)
    sweep_batches: tuple[int, ...] = (8, 4, 2, 1)  # examples a step: delta^2 is one over them
    test_examples: int = 10_000  # of every client, for the risk


@dataclass(frozen=True)
class StabilityCase:
    """One run on two neighbouring datasets."""

    p: float
    n: int
    clients: int
    rounds: int
    steps: int
    heterogeneity: float
    batch: int = 1
    rolls: bool = False
    eta_factor: float = 1.0  # of the theorem's step size: below 1 for a control

    def source(self, s: StabilitySettings) -> Directions:
        """Where its examples come from."""
        return Directions(self.clients, s.dimension, self.heterogeneity, s.seed)

    def masking(self, s: StabilitySettings) -> Masking:
        """Its masks."""
        if self.rolls:
            return rolling(self.p, self.clients, s.dimension)
        return bernoulli(self.p, self.clients)

    def share(self, s: StabilitySettings) -> float:
        """What is really held: a window is a whole number of coordinates."""
        return mean_share(self.masking(s), s.dimension)

    @property
    def theorem(self) -> str:
        """The theorem that speaks of it."""
        return "Theorem 6" if self.rolls else "Theorem 5"

    def step(self, s: StabilitySettings, problem: Logistic) -> StepSize:
        """The theorem's step size, or a part of it."""
        if self.rolls:
            step = theorem_6(problem, self.n, self.steps, s.dimension, self.rounds // s.dimension)
        else:
            step = theorem_5(problem, self.p, self.n, self.steps, self.rounds)
        return StepSize(step.eta * self.eta_factor, step.unmet)

    def words(self, s: StabilitySettings) -> str:
        """Its masks, by what is really held."""
        return f"rolling, s/d={self.share(s):g}" if self.rolls else f"random, p={self.p:g}"


@dataclass(frozen=True)
class BatchLogistic(Logistic):
    """Logistic regression with several examples a step, and an L that is not its own."""

    fixed_smoothness: float = 1.0
    batch: int = 1

    @property
    def smoothness(self) -> float:
        """As given: with two of them, the distance of outputs would show the change of L."""
        return self.fixed_smoothness

    def draw(self, seed: int, round_: int, steps: int, trials: int) -> NDArray[Any]:
        """So many examples per step, uniformly and with replacement."""
        rng = generator(seed, "samples", round_)
        shape = (steps, self.clients, trials, self.batch)
        return rng.integers(self.x.shape[2], size=shape)

    def examples_at(self, xi: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
        """The examples xi, as sets."""
        i = np.arange(self.clients)[:, None, None]
        t = np.arange(xi.shape[1])[None, :, None]
        return self.x[i, t, xi], self.y[i, t, xi]


def neighbours(source: Directions, trials: int, n: int) -> tuple[Logistic, Logistic]:
    """Datasets S and S^(i): client 0's first example is redrawn. Examples are exchangeable."""
    x, y = source.draw(trials, n, "examples")
    new_x, new_y = source.draw(trials, 1, "redrawn")
    other_x, other_y = x.copy(), y.copy()
    other_x[0, :, 0], other_y[0, :, 0] = new_x[0, :, 0], new_y[0, :, 0]
    return Logistic(x, y), Logistic(other_x, other_y)


def stability_base(s: StabilitySettings, rolls: bool = False) -> StabilityCase:
    """The case that sweeps start from: the smallest p."""
    return StabilityCase(min(s.capacities), s.examples[len(s.examples) // 2],
                         s.clients[len(s.clients) // 2], s.rounds, s.steps, s.heterogeneity,
                         rolls=rolls)  # fmt: skip


def check_stability(s: StabilitySettings) -> None:
    """Refuse settings that the study cannot use."""
    if wrong := [r for r in (s.rounds, *s.sweep_rounds) if r % s.dimension or r < s.dimension]:
        raise TheoryError(f"rounds = {wrong[0]}: not whole epochs of d = {s.dimension} windows")
