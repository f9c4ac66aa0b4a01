"""What the study of Theorems 2 and 4 sweeps over: its settings, its cases, and their problem."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from submodel.randomness import generator
from submodel_lab.theory.data import Directions
from submodel_lab.theory.masking import Masking, bernoulli, rolling
from submodel_lab.theory.problems import FloatArray, Net, Problem, TheoryError
from submodel_lab.theory.studies.comparison import mean_share
from submodel_lab.theory.theorems import StepSize, theorem_2, theorem_4


@dataclass(frozen=True)
class NonconvexSettings:
    """A net of two tanh units on four features: d = 8, so that F_p is exact over all masks."""

    capacities: tuple[float, ...] = (1.0, 0.75, 0.5)
    rounds: tuple[int, ...] = (64, 128, 256, 512, 1024)
    steps: int = 2
    clients: int = 4
    examples: int = 16
    features: int = 4
    hidden: int = 2
    heterogeneity: float = 0.3
    trials: int = 100
    seed: int = 0
    sweep_rounds: int = 256
    sweep_capacities: tuple[float, ...] = (1.0, 0.75, 0.5, 0.25)
    sweep_steps: tuple[int, ...] = (1, 2, 4, 8)
    sweep_clients: tuple[int, ...] = (2, 4, 8, 16)
    sweep_heterogeneity: tuple[float, ...] = (0.1, 0.2, 0.4, 0.8)
    sweep_noise: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class NonconvexCase:
    """One run."""

    p: float
    rounds: int
    steps: int
    clients: int
    heterogeneity: float
    noise: float | None = None  # Gaussian, of this norm; None: one example a step
    rolls: bool = False
    kinds: int = 0  # different clients, of which all others are copies; 0: all differ

    def problem(self, s: NonconvexSettings) -> Problem:
        """Its net, and where its gradients' noise comes from."""
        kinds = self.kinds or self.clients
        net = _make_net(kinds, s.features, self.heterogeneity, s.seed, s.examples, s.hidden)
        if kinds < self.clients:
            copies = np.arange(self.clients) % kinds
            net = Net(net.x[copies], net.y[copies], hidden_units=s.hidden)
        return net if self.noise is None else NoisyGradients(net, self.noise)

    def masking(self, s: NonconvexSettings) -> Masking:
        """Its masks."""
        if self.rolls:
            return rolling(self.p, self.clients, s.features * s.hidden)
        return bernoulli(self.p, self.clients)

    def share(self, s: NonconvexSettings) -> float:
        """What is really held."""
        return mean_share(self.masking(s), s.features * s.hidden)

    @property
    def source(self) -> str:
        """The theorem that speaks of it."""
        return "Theorem 4" if self.rolls else "Theorem 2"

    def step(self, problem: Problem) -> StepSize:
        """The theorem's step size."""
        d = problem.dimension
        if self.rolls:
            return theorem_4(problem, self.steps, d, self.rounds // d)
        return theorem_2(problem, self.steps, self.rounds)

    def words(self, s: NonconvexSettings) -> str:
        """Its masks, by what is really held."""
        name = "rolling, s/d" if self.rolls else "random, p"
        return f"{name}={self.share(s):g}"


def nonconvex_base(s: NonconvexSettings, rolls: bool = False) -> NonconvexCase:
    """The case that sweeps start from."""
    return NonconvexCase(min(s.capacities), s.sweep_rounds, s.steps, s.clients, s.heterogeneity,
                         rolls=rolls)  # fmt: skip


def check_nonconvex(s: NonconvexSettings) -> None:
    """Refuse settings that the study cannot use."""
    if len(s.rounds) < 3:
        raise TheoryError(f"{len(s.rounds)} values of R: a slope needs at least 3")
    d = s.features * s.hidden
    if wrong := [r for r in (*s.rounds, s.sweep_rounds) if r % d]:
        raise TheoryError(f"R = {wrong[0]}: rolling needs whole epochs of d = {d} rounds")


@lru_cache(maxsize=32)
def _make_net(
    clients: int, features: int, heterogeneity: float, seed: int, examples: int, hidden: int
) -> Net:
    x, y = Directions(clients, features, heterogeneity, seed).draw(1, examples, "net")
    return Net(x, y, hidden_units=hidden)


@dataclass(frozen=True)
class NoisyGradients:
    """A problem's gradients with Gaussian noise of E||xi||^2 = noise^2, so that delta is known."""

    problem: Problem
    noise: float

    @property
    def clients(self) -> int:
        """N."""
        return self.problem.clients

    @property
    def dimension(self) -> int:
        """The number of coordinates, d."""
        return self.problem.dimension

    @property
    def smoothness(self) -> float:
        """L."""
        return self.problem.smoothness

    @property
    def convexity(self) -> float:
        """The problem's, mu."""
        return self.problem.convexity

    def losses(self, w: FloatArray) -> FloatArray:
        """f_i at each point."""
        return self.problem.losses(w)

    def gradients(self, w: FloatArray) -> FloatArray:
        """The gradients of f_i at each point."""
        return self.problem.gradients(w)

    def draw(self, seed: int, round_: int, steps: int, trials: int) -> NDArray[Any]:
        """Standard normal vectors."""
        rng = generator(seed, "noise", round_)
        return rng.standard_normal((steps, self.clients, trials, self.dimension))

    def stochastic_gradients(self, w: FloatArray, xi: NDArray[Any]) -> FloatArray:
        """The gradient and its noise."""
        return np.asarray(self.gradients(w) + self.noise / np.sqrt(self.dimension) * xi)
