"""Masked objectives F_p and F_m, their optima, and the constants of the theorems.

Random masks: F_p(w) = (1/N) sum_i E f_i(m_i (.) w), m_i ~ Ber(p_i). Rolling: F_m is the mean over
all windows. Quadratics need only the masks' first two moments, so both are exact for them:
E[(m.w)'A(m.w)] = w'(A o E[mm'])w. Other problems average over a list of masks: all windows, all
2^d masks for d <= 10, or else a fixed sample of Bernoulli masks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from submodel.core import generator, needs_extra
from submodel_lab.theory.masking import Masking, bernoulli
from submodel_lab.theory.problems import FloatArray, Problem, Quadratic, Samples, TheoryError

with needs_extra("server", "the lab"):
    from scipy import optimize

_STEP = 1e-5  # of central differences
_MASKS = 64  # masks for delta^2 without a closed form
_DRAWS = 128  # stochastic gradients of an own problem


class MaskedObjective:
    """Objective of masked training."""

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
            self._masks, self._chances = self.masking.scaled_masks(problem.dimension)

    def value(self, w: FloatArray) -> float:
        """Return F_p(w) or F_m(w) at a point."""
        if self._exact is not None:
            return float(self._exact.losses(_everywhere(w, self._exact)).mean())
        values = self.problem.losses(self._masks * w)
        return float((values * self._chances).sum(1).mean())

    def gradient(self, w: FloatArray) -> FloatArray:
        """Return the gradient at a point."""
        if self._exact is not None:
            return np.asarray(self._exact.gradients(_everywhere(w, self._exact))[:, 0].mean(0))
        mask_gradients = self._masks * self.problem.gradients(self._masks * w)
        return np.asarray(
            np.einsum("im,imd->d", self._chances, mask_gradients) / self.problem.clients
        )

    def gradients_at(self, points: FloatArray) -> FloatArray:
        """Return the gradient at each of the points (points x d)."""
        if self._exact is not None:
            many = np.broadcast_to(points, (self.problem.clients, *points.shape))
            return np.asarray(self._exact.gradients(many).mean(0))
        return np.stack([self.gradient(w) for w in points])

    def hessian(self, w: FloatArray) -> FloatArray:
        """Return the Hessian: exact for quadratics, by central differences otherwise."""
        if self._exact is not None:
            return np.asarray(self._exact.matrices.mean(0))
        steps = _STEP * np.eye(len(w))
        hessian = np.array(
            [(self.gradient(w + e) - self.gradient(w - e)) / (2 * _STEP) for e in steps]
        )
        return np.asarray((hessian + hessian.T) / 2)

    def optimum(self, radius: float, start: FloatArray | None = None) -> FloatArray:
        """Return the minimum w*(p) in the ball: exact for quadratics, else by L-BFGS."""
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
        """Return (1/N) sum_i E||m_i (.) grad f_i(m_i (.) w) - grad F_p(w)||^2, at most zeta^2."""
        return self.power_at(w) - float(np.square(self.gradient(w)).sum())

    def power_at(self, w: FloatArray) -> float:
        """Return (1/N) sum_i E||m_i (.) grad f_i(m_i (.) w)||^2; at w*(p) it is sigma_*^2."""
        if self._exact is None:
            masks, chances = self._masks, self._chances
        else:
            masks, chances = self.masking.scaled_masks(self.problem.dimension)
        mask_gradients = masks * self.problem.gradients(masks * w)
        return float((np.square(mask_gradients).sum(-1) * chances).sum(1).mean())


def _everywhere(w: FloatArray, problem: Problem) -> FloatArray:
    return np.broadcast_to(w, (problem.clients, 1, len(w)))


def _ball_minimum(matrix: FloatArray, vector: FloatArray, radius: float) -> FloatArray:
    """Return the minimum of w'Aw/2 - b'w over ||w|| <= radius, by the eigenvalues of A."""
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


@dataclass(frozen=True)
class Constants:
    """Constants of the theorems.

    ``estimates`` names the inexact ones: maxima over drawn points (``G``, ``delta2``, ``zeta2``),
    means over drawn masks (``sigma2``), and a lower bound from the labels (``D_max``).
    """

    L: float
    mu: float
    G: float
    delta2: float
    sigma2: float
    zeta2: float
    D_max: float  # NaN: not known
    F_star: float
    residual: float  # F(w*(p)) - F(w*)
    distance: float  # ||w*(1) - w*(p)||
    estimates: tuple[str, ...]


def largest_gradient(problem: Problem, radius: float) -> float:
    """Return G, the largest ||grad f_i|| in the ball: exact for quadratics, else drawn points."""
    if isinstance(problem, Quadratic):
        pairs = zip(problem.matrices, problem.vectors, strict=True)
        return max(_largest_residual(a, b, radius) for a, b in pairs)
    points = sphere_points(problem, radius, 512)
    return float(np.linalg.norm(problem.gradients(points), axis=-1).max())


def _largest_residual(matrix: FloatArray, vector: FloatArray, radius: float) -> float:
    """Return the largest ||A w - b|| in the ball, where (nu - A^2) w = -A b with nu >= L^2."""
    values, basis = np.linalg.eigh(matrix)
    coordinates = basis.T @ vector
    pull = -values * coordinates
    top = float(values[-1] ** 2)

    def excess(nu: float) -> float:
        return float(np.linalg.norm(pull / (nu - values**2))) - radius

    reach = top + float(np.linalg.norm(pull)) / radius + 1e-9
    least = top + 1e-12 * max(1.0, top)
    if excess(least) > 0:
        nu = float(optimize.brentq(excess, least, reach, xtol=1e-15))
        u = pull / (nu - values**2)
    else:  # the hard case: fill up along the largest eigenvector
        gaps = np.where(values**2 < top, top - values**2, math.inf)
        u = pull / gaps
        u[-1] += math.sqrt(max(0.0, radius**2 - float(u @ u)))
    return float(np.linalg.norm(values * u - coordinates))


def gradient_variance(problem: Problem, masking: Masking, radius: float) -> float:
    """Return delta^2 (Assumption 3), the maximum over clients and points.

    It is exact for quadratics, else the maximum over drawn points with drawn masks; own problems
    also need drawn gradients.
    """
    d = problem.dimension
    if isinstance(problem, Quadratic):
        powers = np.einsum("idd->id", masking.moments(d)[1])  # E[m^2], with the masks' factors
        return float(powers.mean(1).max()) * problem.noise**2
    masks, chances = masking.scaled_masks(d)
    if masks.shape[1] > _MASKS:  # sample the whole list, which may be ordered
        choice = generator(0, "masks of a variance").permutation(masks.shape[1])[:_MASKS]
        masks, chances = masks[:, choice], chances[:, choice]
    worst = 0.0
    for w in sphere_points(problem, radius, 8)[0]:
        total = _example_variance(problem, masks, w)
        worst = max(worst, float(((total * chances).sum(1) / chances.sum(1)).max()))
    return worst


def _example_variance(problem: Problem, masks: FloatArray, w: FloatArray) -> FloatArray:
    """Return E||m (.) (stochastic gradient - gradient)||^2 at masked points: clients x masks."""
    point = masks * w
    mean = problem.gradients(point)
    total = np.zeros(point.shape[:2])
    if isinstance(problem, Samples):
        every = np.arange(problem.x.shape[2])
        draws = [np.repeat(np.minimum(j, problem.counts - 1)[:, None], point.shape[1], 1)
                 for j in every]  # fmt: skip
        weights = problem.example_weights.T[..., None]  # 0 for padding
    else:
        draws = list(problem.draw(0, 0, _DRAWS, point.shape[1]))
        weights = np.full((_DRAWS, problem.clients, 1), 1 / _DRAWS)
    for xi, weight in zip(draws, weights, strict=True):
        away = masks * (problem.stochastic_gradients(point, xi) - mean)
        total += weight * np.square(away).sum(-1)
    return total


def constants(
    problem: Problem, masking: Masking, radius: float, start: FloatArray | None = None
) -> Constants:
    """Compute all constants of a problem under a masking.

    >>> from submodel_lab.theory import bernoulli, quadratics
    >>> constants(quadratics(), bernoulli(1.0, 4), radius=3.0).residual
    0.0
    """
    original, objective = MaskedObjective(problem), MaskedObjective(problem, masking)
    w, w_p = original.optimum(radius, start), objective.optimum(radius, start)
    points = sphere_points(problem, radius, 16)[0]
    least = original.value(w)
    estimates = ["zeta2"]
    if not isinstance(problem, Quadratic):
        estimates = ["G", "delta2", "zeta2", "D_max"]
    if not masking.law(problem.dimension).lists_all:
        estimates.append("sigma2")
    return Constants(
        L=problem.smoothness,
        mu=problem.convexity,
        G=largest_gradient(problem, radius),
        delta2=gradient_variance(problem, masking, radius),
        sigma2=objective.power_at(w_p),
        zeta2=max(objective.spread_at(point) for point in points),
        D_max=client_distance(problem),
        F_star=least,
        residual=original.value(w_p) - least,
        distance=float(np.linalg.norm(w - w_p)),
        estimates=tuple(estimates),
    )


def client_distance(problem: Problem) -> float:
    """Return D_max, the largest total variation between two clients, of labels or of losses.

    A client of a quadratic has one loss, so the distance of two clients is 0 or 1. It is unknown
    (NaN) for own problems.
    """
    if isinstance(problem, Samples):
        weights = problem.example_weights[:, None]
        kinds = np.unique(problem.y[np.broadcast_to(weights > 0, problem.y.shape)])
        shares = np.array([
            [((labels == kind) * weight).sum(-1).mean() for kind in kinds]
            for labels, weight in zip(problem.y, weights, strict=True)
        ])  # fmt: skip
        return max(float(np.abs(one - other).sum()) / 2 for one in shares for other in shares)
    if isinstance(problem, Quadratic):
        same = (problem.matrices == problem.matrices[0]).all()
        return float(not (same and (problem.vectors == problem.vectors[0]).all()))
    return math.nan  # the data of an own problem are unknown


def sphere_points(problem: Problem, radius: float, count: int) -> FloatArray:
    """Return points of the sphere of W, the same for every client: clients x points x d."""
    points = generator(0, "points of the ball").standard_normal((count, problem.dimension))
    points *= radius / np.linalg.norm(points, axis=1, keepdims=True)
    return np.broadcast_to(points, (problem.clients, *points.shape))
