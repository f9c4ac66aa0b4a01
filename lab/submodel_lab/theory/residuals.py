"""How far masking moves the optimum: exact, and bounds that do not grow with d.

H (w*(1) - w*(p)) = grad F_p(w*), with H the Hessian of F_p, averaged between the two points. For
quadratics both sides are known; for the others a bound on grad F_p(w*) is one on the distance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from submodel_lab.theory.mask_laws import BernoulliLaw, FixedSizeLaw
from submodel_lab.theory.masking import Masking
from submodel_lab.theory.objective import MaskedObjective
from submodel_lab.theory.problems import FloatArray, Problem, Quadratic, TheoryError


def exact_residual(problem: Quadratic, masking: Masking) -> FloatArray:
    """w*(1) - w*(p) = H^-1 grad F_p(w*).

    With Bernoulli masks grad F_p(w*) is the mean of p_i [grad f_i(w*) + (1 - p_i)(D_i - A_i) w*],
    D_i the diagonal of A_i; with any others it is that of E[m_i (.) grad f_i(m_i (.) w*)].

    Args:
        problem: Quadratic losses.
        masking: How they are masked.

    >>> from submodel_lab.theory import bernoulli, quadratics
    >>> float(abs(exact_residual(quadratics(), bernoulli(1.0, 4))).max()) < 1e-12
    True
    """
    best = MaskedObjective(problem).optimum(math.inf)
    hessian = (problem.matrices * masking.moments(problem.dimension)[1]).mean(0)
    return np.asarray(np.linalg.solve(hessian, MaskedObjective(problem, masking).gradient(best)))


@dataclass(frozen=True)
class DistanceBounds:
    """Bounds on ||w*(1) - w*(p)||; NaN where one does not apply."""

    by_condition: float  # (1 - rho)(kappa_F - 1)||w*||: quadratics, the same masks for everyone
    unequal: float  # quadratics, any p_i: what differing p_i and masking add, over the mean of p_i
    smooth: float  # kappa sqrt((1 - p)/p)||w*||: any strongly convex losses, Bernoulli, equal p


def distance_bounds(problem: Problem, masking: Masking) -> DistanceBounds:
    """The bounds of docs/theory.md, for strongly convex problems.

    Args:
        problem: The clients' losses.
        masking: Bernoulli, or of fixed sizes; rho is the chance that another coordinate is held,
            given one: p, or (s - 1)/(d - 1).
    """
    if problem.convexity <= 0:
        raise TheoryError("the bounds need a strongly convex problem: mu = 0 here")
    best = MaskedObjective(problem).optimum(math.inf)
    norm = float(np.linalg.norm(best))
    law = masking.law(problem.dimension)
    first, second = law.moments
    if not isinstance(law, BernoulliLaw | FixedSizeLaw) or np.ptp(first, axis=1).max() > 0:
        raise TheoryError("the bounds are for Bernoulli masks and fixed sizes, plain p_i")
    if (masking.factors(problem.dimension) != 1).any():
        raise TheoryError("the bounds are for plain masks, not for those divided by their chance")
    p, kappa = first[:, 0], problem.smoothness / problem.convexity
    rho = second[:, 0, -1] / p if problem.dimension > 1 else np.ones_like(p)
    equal = float(np.ptp(p)) == 0
    by_condition = unequal = smooth = math.nan
    if isinstance(problem, Quadratic):
        spectrum = np.linalg.eigvalsh(problem.matrices.mean(0))
        gradients = problem.matrices @ best - problem.vectors
        covariance = float(np.linalg.norm(((p - p.mean())[:, None] * gradients).mean(0)))
        spread = problem.smoothness - problem.convexity
        masked_part = float((p * (1 - rho)).mean()) * spread * norm
        unequal = (covariance + masked_part) / (float(p.mean()) * problem.convexity)
        if equal:
            by_condition = float(1 - rho[0]) * (float(spectrum[-1] / spectrum[0]) - 1) * norm
    if equal and isinstance(law, BernoulliLaw):
        smooth = kappa * math.sqrt((1 - p[0]) / p[0]) * norm
    return DistanceBounds(by_condition, unequal, smooth)


def first_order_shift(problem: Problem, radius: float, step: float = 1e-5) -> FloatArray:
    """Lim (w*(1) - w*(p)) / (1 - p) for p -> 1, Bernoulli masks, any smooth strongly convex losses.

    It is hess F(w*)^-1 times the sum over j of grad F(w* without j), but for its own entry j: what
    is missing is felt by the others only.

    Args:
        problem: The clients' losses.
        radius: Of the ball in which w* is looked for.
        step: Of the central differences that make the Hessian.
    """
    original = MaskedObjective(problem)
    w = original.optimum(radius)
    d = len(w)
    total = np.zeros(d)
    for j in range(d):
        without = w.copy()
        without[j] = 0
        gradient = original.gradient(without)
        gradient[j] = 0
        total += gradient
    steps = step * np.eye(d)
    hessian = np.array(
        [(original.gradient(w + e) - original.gradient(w - e)) / (2 * step) for e in steps]
    )
    return np.asarray(np.linalg.solve((hessian + hessian.T) / 2, total))
