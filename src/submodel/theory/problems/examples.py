"""Losses of examples: what they share, and the linear models, logistic and ridge regression."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from submodel.randomness import generator
from submodel.theory.problems.base import FloatArray
from submodel.theory.problems.quadratic import Quadratic


@dataclass(frozen=True)
class Samples(ABC):
    """What losses of examples share: n examples for each client, one set per trial or for all."""

    x: FloatArray  # clients x (trials or 1) x n x features
    y: FloatArray  # clients x (trials or 1) x n
    l2: float = 0.0

    @property
    def clients(self) -> int:
        """N."""
        return len(self.x)

    @property
    def dimension(self) -> int:
        """d, for linear models the number of features."""
        return int(self.x.shape[-1])

    def draw(self, seed: int, round_: int, steps: int, trials: int) -> NDArray[Any]:
        """One example per step, uniformly and with replacement, as the paper samples."""
        rng = generator(seed, "samples", round_)
        return rng.integers(self.x.shape[2], size=(steps, self.clients, trials))

    def examples_at(self, xi: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
        """The examples xi, as sets of one."""
        i = np.arange(self.clients)[:, None]
        t = np.arange(xi.shape[1])[None] if self.x.shape[1] > 1 else np.zeros_like(xi)
        return self.x[i, t, xi][:, :, None], self.y[i, t, xi][:, :, None]

    def gradients(self, w: FloatArray) -> FloatArray:
        """The gradients of f_i at each point."""
        return self._gradients(w, self.x, self.y)

    def stochastic_gradients(self, w: FloatArray, xi: NDArray[Any]) -> FloatArray:
        """The gradient at one example."""
        return self._gradients(w, *self.examples_at(xi))

    @abstractmethod
    def _gradients(self, w: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
        """The gradients over these examples."""


@dataclass(frozen=True)
class Logistic(Samples):
    """f_i(w) = mean log(1 + exp(-y x'w)) + l2 ||w||^2 / 2, labels -1 and 1."""

    @cached_property
    def smoothness(self) -> float:
        """L = largest eigenvalue of X'X/(4 n) over clients, plus l2."""
        return float(_gram_eigenvalues(self.x)[..., -1].max()) / 4 + self.l2

    @property
    def convexity(self) -> float:
        """As l2 makes it: the loss itself is flat far out."""
        return self.l2

    def losses(self, w: FloatArray) -> FloatArray:
        """f_i at each point."""
        margins = self.y * (self.x @ w[..., None])[..., 0]
        penalty = self.l2 / 2 * np.square(w).sum(-1)
        return np.asarray(np.logaddexp(0, -margins).mean(-1) + penalty)

    def _gradients(self, w: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
        margins = y * (x @ w[..., None])[..., 0]
        slopes = -y * np.exp(-np.logaddexp(0, margins)) / y.shape[-1]
        return np.asarray((slopes[..., None, :] @ x)[..., 0, :] + self.l2 * w)


@dataclass(frozen=True)
class Ridge(Samples):
    """f_i(w) = mean (x'w - y)^2 / 2 + l2 ||w||^2 / 2; `quadratic` is the same in closed form."""

    @cached_property
    def _eigenvalues(self) -> FloatArray:
        return _gram_eigenvalues(self.x)

    @property
    def smoothness(self) -> float:
        """L."""
        return float(self._eigenvalues[..., -1].max()) + self.l2

    @property
    def convexity(self) -> float:
        """The least eigenvalue of any client, mu."""
        least = float(self._eigenvalues[..., 0].min())
        return (least if least > 1e-12 * self.smoothness else 0.0) + self.l2

    def losses(self, w: FloatArray) -> FloatArray:
        """f_i at each point."""
        errors = (self.x @ w[..., None])[..., 0] - self.y
        return np.asarray(np.square(errors).mean(-1) / 2 + self.l2 / 2 * np.square(w).sum(-1))

    def _gradients(self, w: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
        errors = ((x @ w[..., None])[..., 0] - y) / y.shape[-1]
        return np.asarray((errors[..., None, :] @ x)[..., 0, :] + self.l2 * w)

    def quadratic(self) -> Quadratic:
        """The same losses as matrices, for closed forms; of one dataset for all trials."""
        x, y, n = self.x[:, 0], self.y[:, 0], self.x.shape[2]
        matrices = x.transpose(0, 2, 1) @ x / n + self.l2 * np.eye(self.dimension)
        vectors = (x.transpose(0, 2, 1) @ y[..., None])[..., 0] / n
        return Quadratic(matrices, vectors, constants=np.square(y).mean(-1) / 2)


def _gram_eigenvalues(x: FloatArray) -> FloatArray:
    """Eigenvalues of X'X/n of every set."""
    return np.asarray(np.linalg.eigvalsh(x.swapaxes(-1, -2) @ x / x.shape[-2]), np.float64)
