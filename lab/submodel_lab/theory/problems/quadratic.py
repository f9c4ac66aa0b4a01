"""Quadratic losses, for which everything has a closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from submodel.randomness import generator
from submodel_lab.theory.problems.base import FloatArray, TheoryError


@dataclass(frozen=True)
class Quadratic:
    """f_i(w) = w'A_i w / 2 - b_i'w + c_i; stochastic gradients add Gaussian noise.

    The noise has E||xi||^2 = ``noise``^2, spread evenly over the coordinates.
    """

    matrices: FloatArray  # clients x d x d
    vectors: FloatArray  # clients x d
    noise: float = 0.0
    constants: FloatArray | None = None

    @property
    def clients(self) -> int:
        """N."""
        return len(self.matrices)

    @property
    def dimension(self) -> int:
        """The number of coordinates, d."""
        return int(self.matrices.shape[1])

    @cached_property
    def eigenvalues(self) -> FloatArray:
        """Of every client's matrix, ascending."""
        return np.asarray(np.linalg.eigvalsh(self.matrices), np.float64)

    @property
    def smoothness(self) -> float:
        """L, the largest eigenvalue of any client."""
        return float(self.eigenvalues[:, -1].max())

    @property
    def convexity(self) -> float:
        """mu, the least eigenvalue of any client."""
        least = float(self.eigenvalues[:, 0].min())
        return least if least > 1e-12 * self.smoothness else 0.0

    def losses(self, w: FloatArray) -> FloatArray:
        """f_i at each point."""
        values = np.einsum("itd,itd->it", w, w @ self.matrices / 2 - self.vectors[:, None])
        return np.asarray(values if self.constants is None else values + self.constants[:, None])

    def gradients(self, w: FloatArray) -> FloatArray:
        """A_i w - b_i."""
        return np.asarray(w @ self.matrices - self.vectors[:, None])

    def draw(self, seed: int, round_: int, steps: int, trials: int) -> NDArray[Any]:
        """Standard normal vectors; nothing if there is no noise."""
        if self.noise == 0:
            return np.zeros((steps, 1, 1, 1))
        rng = generator(seed, "noise", round_)
        return rng.standard_normal((steps, self.clients, trials, self.dimension))

    def stochastic_gradients(self, w: FloatArray, xi: NDArray[Any]) -> FloatArray:
        """The gradient and its noise."""
        return np.asarray(self.gradients(w) + self.noise / np.sqrt(self.dimension) * xi)


def quadratics(
    clients: int = 4,
    dimension: int = 10,
    mu: float = 1.0,
    smoothness: float = 4.0,
    heterogeneity: float = 1.0,
    noise: float = 1.0,
    seed: int = 0,
) -> Quadratic:
    """Heterogeneous quadratics: eigenvalues spread over [mu, L], rotated for every client.

    The clients' optima lie around a common point of norm 1, at a distance of about
    ``heterogeneity``; both end eigenvalues are attained.

    >>> problem = quadratics(mu=0.5, smoothness=2.0)
    >>> round(problem.convexity, 9), round(problem.smoothness, 9)
    (0.5, 2.0)
    """
    if not 0 <= mu <= smoothness or smoothness <= 0:
        raise TheoryError(f"mu = {mu:g} and L = {smoothness:g}: 0 <= mu <= L and L > 0 are needed")
    rng = generator(seed, "quadratics")
    common = rng.standard_normal(dimension)
    common /= np.linalg.norm(common)
    base = np.linalg.qr(rng.standard_normal((dimension, dimension)))[0]
    spectrum = np.linspace(mu, smoothness, dimension)
    matrices, vectors = [], []
    for _ in range(clients):
        client_basis = base
        if heterogeneity:
            client_basis = np.linalg.qr(
                base + 0.3 * heterogeneity * rng.standard_normal(base.shape)
            )[0]
        matrix = (client_basis * spectrum) @ client_basis.T
        away = rng.standard_normal(dimension) / np.sqrt(dimension)
        matrices.append((matrix + matrix.T) / 2)
        vectors.append(matrix @ (common + heterogeneity * away))
    return Quadratic(np.stack(matrices), np.stack(vectors), noise)
