"""The constants in the theorems, measured or in closed form, for one problem and one masking."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from submodel.extras import needs_extra
from submodel.randomness import generator
from submodel_lab.theory.masking import Masking
from submodel_lab.theory.objective import MaskedObjective
from submodel_lab.theory.problems import FloatArray, Problem, Quadratic, Samples

with needs_extra("server", "the lab"):
    from scipy import optimize


_MASKS = 64  # over which delta^2 is taken, where it is no closed form
_DRAWS = 128  # stochastic gradients of a problem of one's own


@dataclass(frozen=True)
class Constants:
    """What the theorems speak of.

    ``estimates`` names those that are not exact: largest values over drawn points (``G``,
    ``delta2``, ``zeta2``), means over drawn masks (``sigma2``), of the labels alone (``D_max``: a
    lower bound).
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
    """G: the largest ||grad f_i|| in the ball; exact for quadratics, else over drawn points."""
    if isinstance(problem, Quadratic):
        pairs = zip(problem.matrices, problem.vectors, strict=True)
        return max(_largest_residual(a, b, radius) for a, b in pairs)
    points = sphere_points(problem, radius, 512)
    return float(np.linalg.norm(problem.gradients(points), axis=-1).max())


def _largest_residual(matrix: FloatArray, vector: FloatArray, radius: float) -> float:
    """The largest ||A w - b|| in the ball: on its boundary, (nu - A^2) w = -A b, nu >= L^2."""
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
    """delta^2 (Assumption 3): largest over clients, and over points where it depends on them.

    Exact for quadratics; else over drawn points and masks, and for problems of one's own over drawn
    gradients too.

    Args:
        problem: The clients' losses.
        masking: How they are masked.
        radius: Of the sphere where the points are.
    """
    d = problem.dimension
    if isinstance(problem, Quadratic):
        powers = np.einsum("idd->id", masking.moments(d)[1])  # E[m^2], with the masks' factors
        return float(powers.mean(1).max()) * problem.noise**2
    masks, chances = masking.list_masks(d)
    if masks.shape[1] > _MASKS:  # of a list in order: some from everywhere in it
        choice = generator(0, "masks of a variance").permutation(masks.shape[1])[:_MASKS]
        masks, chances = masks[:, choice], chances[:, choice]
    masks = masks * masking.factors(d)[:, None]
    worst = 0.0
    for w in sphere_points(problem, radius, 8)[0]:
        total = _example_variance(problem, masks, w)
        worst = max(worst, float(((total * chances).sum(1) / chances.sum(1)).max()))
    return worst


def _example_variance(problem: Problem, masks: FloatArray, w: FloatArray) -> FloatArray:
    """E||m (.) (stochastic gradient - gradient)||^2 at every masked point: clients x masks."""
    point = masks * w
    mean = problem.gradients(point)
    total = np.zeros(point.shape[:2])
    if isinstance(problem, Samples):
        every = np.arange(problem.x.shape[2])
        draws = [np.repeat(np.minimum(j, problem.counts - 1)[:, None], point.shape[1], 1)
                 for j in every]  # fmt: skip
        weights = problem.example_weights.T[..., None]  # 0 for what a client does not have
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
    """All of them, for one problem and one masking.

    Args:
        problem: The clients' losses.
        masking: How they are masked.
        radius: Of the ball W.
        start: Where optima are looked for, if losses are not convex; None: from 0.

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
    if not masking.lists_every_mask(problem.dimension):
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


def total_variation(first: FloatArray, second: FloatArray) -> float:
    """Half the l1 distance of two discrete distributions.

    >>> total_variation(np.array([0.5, 0.5]), np.array([1.0, 0.0]))
    0.5
    """
    return float(np.abs(first - second).sum()) / 2


def largest_distance(distributions: FloatArray) -> float:
    """D_max: the largest total variation between two clients (clients x outcomes)."""
    return max(total_variation(a, b) for a in distributions for b in distributions)


def client_distance(problem: Problem) -> float:
    """D_max of a problem's clients: of their labels, or of their losses if they have no examples.

    A client of a quadratic has one loss, so two clients are as far apart as can be, or equal. Of a
    problem of one's own it is not known: NaN.
    """
    if isinstance(problem, Samples):
        weights = problem.example_weights[:, None]
        kinds = np.unique(problem.y[np.broadcast_to(weights > 0, problem.y.shape)])
        shares = [
            [((labels == kind) * weight).sum(-1).mean() for kind in kinds]
            for labels, weight in zip(problem.y, weights, strict=True)
        ]
        return largest_distance(np.array(shares))
    if isinstance(problem, Quadratic):
        same = (problem.matrices == problem.matrices[0]).all()
        return float(not (same and (problem.vectors == problem.vectors[0]).all()))
    return math.nan  # a problem of one's own says nothing of the data behind its losses


def sphere_points(problem: Problem, radius: float, count: int) -> FloatArray:
    """Points of the sphere of W, the same for every client: clients x points x d."""
    points = generator(0, "points of the ball").standard_normal((count, problem.dimension))
    points *= radius / np.linalg.norm(points, axis=1, keepdims=True)
    return np.broadcast_to(points, (problem.clients, *points.shape))
