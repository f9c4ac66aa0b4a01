"""What masking makes of a problem: F_p, F_m, their optima, and the distance to the original.

Random masks: F_p(w) = (1/N) sum_i E f_i(m_i (.) w), m_i ~ Ber(p_i). Rolling: F_m is the mean over
all windows. Quadratics need only the masks' first two moments, so both are exact for them:
E[(m.w)'A(m.w)] = w'(A o E[mm'])w. Other problems average over a list of masks: all windows, all
2^d masks for d <= 10, or else a fixed list of Bernoulli masks.
"""

from __future__ import annotations

import numpy as np

from submodel.extras import needs_extra
from submodel_lab.theory.masking import Masking, bernoulli
from submodel_lab.theory.problems import FloatArray, Problem, Quadratic, TheoryError

with needs_extra("server", "the lab"):
    from scipy import optimize


class MaskedObjective:
    """The objective that masked training minimises."""

    def __init__(self, problem: Problem, masking: Masking | None = None) -> None:
        if masking is not None and len(masking.capacities) != problem.clients:
            raise TheoryError(
                f"{len(masking.capacities)} capacities for {problem.clients} clients: give one each"
            )
        self.problem = problem
        self.masking = masking or bernoulli(1.0, problem.clients)
        self._exact: Quadratic | None = None
        if isinstance(problem, Quadratic):
            first, second = self.masking.moments(problem.dimension)
            self._exact = Quadratic(
                problem.matrices * second, problem.vectors * first, constants=problem.constants
            )
        else:
            masks, self._chances = self.masking.list_masks(problem.dimension)
            self._masks = masks * self.masking.factors(problem.dimension)[:, None]

    def value(self, w: FloatArray) -> float:
        """F_p(w) or F_m(w) at one point."""
        if self._exact is not None:
            return float(self._exact.losses(_everywhere(w, self._exact)).mean())
        values = self.problem.losses(self._masks * w)
        return float((values * self._chances).sum(1).mean())

    def gradient(self, w: FloatArray) -> FloatArray:
        """Its gradient."""
        if self._exact is not None:
            return np.asarray(self._exact.gradients(_everywhere(w, self._exact))[:, 0].mean(0))
        mask_gradients = self._masks * self.problem.gradients(self._masks * w)
        return np.asarray(
            np.einsum("im,imd->d", self._chances, mask_gradients) / self.problem.clients
        )

    def gradients_at(self, points: FloatArray) -> FloatArray:
        """The gradient at each of the points (points x d)."""
        if self._exact is not None:
            many = np.broadcast_to(points, (self.problem.clients, *points.shape))
            return np.asarray(self._exact.gradients(many).mean(0))
        return np.stack([self.gradient(w) for w in points])

    def optimum(self, radius: float, start: FloatArray | None = None) -> FloatArray:
        """w*(p): the least point in the ball; exact for quadratics, L-BFGS otherwise.

        Args:
            radius: Of the ball.
            start: Where L-BFGS starts; None: at 0. Where losses are not convex it matters.
        """
        d = self.problem.dimension
        if self._exact is not None:
            return _ball_minimum(self._exact.matrices.mean(0), self._exact.vectors.mean(0), radius)
        first = np.zeros(d) if start is None else start
        solution = optimize.minimize(
            lambda w: (self.value(w), self.gradient(w)), first, jac=True, method="L-BFGS-B",
            options={"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-10},
        )  # fmt: skip
        w = np.asarray(solution.x)
        norm = float(np.linalg.norm(w))
        if norm > radius:
            raise TheoryError(
                f"the optimum has norm {norm:.3g}, outside the ball of radius {radius:g}: "
                "give a larger radius"
            )
        return w

    def spread_at(self, w: FloatArray) -> float:
        """(1/N) sum_i E||m_i (.) grad f_i(m_i (.) w) - grad F_p(w)||^2; zeta^2 is its largest."""
        return self.power_at(w) - float(np.square(self.gradient(w)).sum())

    def power_at(self, w: FloatArray) -> float:
        """(1/N) sum_i E||m_i (.) grad f_i(m_i (.) w)||^2; sigma_*^2 at w*(p) (Definition 1)."""
        if self._exact is None:
            masks, chances = self._masks, self._chances
        else:
            mask_list, chances = self.masking.list_masks(self.problem.dimension)
            masks = mask_list * self.masking.factors(self.problem.dimension)[:, None]
        mask_gradients = masks * self.problem.gradients(masks * w)
        return float((np.square(mask_gradients).sum(-1) * chances).sum(1).mean())


def _everywhere(w: FloatArray, problem: Problem) -> FloatArray:
    return np.broadcast_to(w, (problem.clients, 1, len(w)))


def _ball_minimum(matrix: FloatArray, vector: FloatArray, radius: float) -> FloatArray:
    """The least point of w'Aw/2 - b'w over ||w|| <= radius, by the eigenvalues of A."""
    values, basis = np.linalg.eigh(matrix)
    coordinates = basis.T @ vector
    if values[0] <= 1e-12 * values[-1]:
        raise TheoryError(
            "the masked problem is singular: its optimum is not unique; raise mu (or l2), or p"
        )
    if np.linalg.norm(coordinates / values) <= radius:
        return np.asarray(basis @ (coordinates / values))

    def outside(shift: float) -> float:
        return float(np.linalg.norm(coordinates / (values + shift))) - radius

    shift = optimize.brentq(outside, 0.0, float(np.linalg.norm(vector)) / radius)
    return np.asarray(basis @ (coordinates / (values + shift)))
