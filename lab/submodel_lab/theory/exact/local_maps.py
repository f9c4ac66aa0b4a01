"""What K local steps make of w, for every mask of a client: an affine map each, and noise.

With S = F M (mask times factors), A~ = F A F, b~ = F b and B = I - eta M A~ M, a client's change is
x_K - w = -eta (I + B + ... + B^(K-1)) M (A~ M w - b~), and its noise has the covariance
eta^2 (sigma^2/d) sum_k B^k S^2 B^k'. With z = (w - c, 1), c a centre, the change is D z.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from submodel_lab.theory.problems import FloatArray, Quadratic


@dataclass(frozen=True, eq=False)
class ClientWork:
    """A client's loss with its factors in it, and how it is trained."""

    matrix: FloatArray  # F A F
    vector: FloatArray  # F b
    noise: FloatArray  # of every coordinate, the variance times the factor's square
    steps: int
    eta: float
    centre: FloatArray

    def change_maps(self, masks: FloatArray) -> tuple[FloatArray, FloatArray]:
        """D (masks x d x (d+1)) and the covariance of the noise (masks x d x d), of each mask."""
        count, d = masks.shape
        rows = masks[:, :, None]
        curvature = rows * self.matrix * masks[:, None]
        step = np.eye(d) - self.eta * curvature
        power_sum = np.zeros((count, d, d))
        covariance = np.zeros((count, d, d))
        diagonal = np.zeros((count, d, d))
        diagonal[:, range(d), range(d)] = self.eta**2 * masks * self.noise
        for _ in range(self.steps):
            power_sum = np.eye(d) + step @ power_sum
            covariance = step @ covariance @ step + diagonal
        pull = masks * ((masks * self.centre) @ self.matrix - self.vector)
        gradient = np.concatenate([curvature, pull[:, :, None]], 2)
        return -self.eta * power_sum @ gradient, covariance


def list_work(
    problem: Quadratic, factors: FloatArray, steps: int, eta: float, centre: FloatArray
) -> list[ClientWork]:
    """What each client does in a round."""
    variance = problem.noise**2 / problem.dimension
    return [
        ClientWork(f[:, None] * a * f, f * b, variance * f**2, steps, eta, centre)
        for a, b, f in zip(problem.matrices, problem.vectors, factors, strict=True)
    ]
