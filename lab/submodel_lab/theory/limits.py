"""Where masked training settles: to first order in the step size, for every kind of mask.

Near w*(p) the error u = w - w*(p) obeys u+ = u - eta K (H u + g) + ..., with the mean Hessian H and
the masked gradients g of a round, of mean 0. So E[u u'] settles where H S + S H = eta K Q, Q being
the covariance of g and of the noise, and E||u||^2 = eta K tr(H^-1 Q) / 2; E u, of order eta, is the
second-order bias. docs/theory.md has the proofs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from submodel_lab.theory.exact.four_moments import four_moments
from submodel_lab.theory.mask_laws import MOST_LISTED, ListLaw, MaskLaw
from submodel_lab.theory.masking import Masking
from submodel_lab.theory.objective import MaskedObjective
from submodel_lab.theory.problems import FloatArray, Problem, Quadratic, Samples, TheoryError

_STEP = 1e-5  # of central differences, for Hessians of losses that are not quadratic


@dataclass(frozen=True, eq=False)
class Balance:
    """What holds the error at w*(p) in balance: the pull H and what keeps it moving."""

    optimum: FloatArray  # w*(p), or w*(m)
    hessian: FloatArray  # H, of F_p
    mask_covariance: FloatArray  # of the mean over clients of m_i (.) grad f_i(m_i (.) w*)
    noise_covariance: FloatArray  # of the mean over clients of one step's noise

    def settled_error(self, steps: int) -> float:
        """Lim E||w - w*||^2 / (eta K) for small eta: tr(H^-1 Q) / 2, Q = masks + noise / K."""
        total = self.mask_covariance + self.noise_covariance / steps
        return float(np.trace(np.linalg.solve(self.hessian, total))) / 2

    def rate_constant(self, steps: int, convexity: float) -> float:
        """Lim R E||w_R - w*||^2 / log(KR) with eta = 2 log(KR) / (``convexity`` K R).

        Args:
            steps: K.
            convexity: mu~ of Theorem 1, or any number up to the least eigenvalue of H.
        """
        least = float(np.linalg.eigvalsh(self.hessian)[0])
        if convexity > least * (1 + 1e-9):
            raise TheoryError(
                f"mu~ = {convexity:g} is more than the least eigenvalue of H, {least:g}: with such "
                "a step the start is not forgotten in time"
            )
        return 2 * self.settled_error(steps) / convexity


def balance(problem: Problem, masking: Masking, radius: float = math.inf) -> Balance:
    """H and the covariances at the optimum of the masked objective.

    Args:
        problem: The clients' losses; of quadratics everything is exact, of examples too where all
            masks are listed, but for H, by central differences.
        masking: How they are masked; windows cancel over an epoch, so their masks add nothing.
        radius: Of the ball in which the optimum is looked for.

    >>> from submodel_lab.theory import bernoulli, quadratics
    >>> problem = quadratics(4, 10, 1.0, 2.0, noise=10.0)
    >>> round(balance(problem, bernoulli(0.5, 4)).rate_constant(5, 0.5), 4)
    7.0035
    """
    objective = MaskedObjective(problem, masking)
    optimum, law = objective.optimum(radius), masking.law(problem.dimension)
    factors = masking.factors(problem.dimension)
    d, n = problem.dimension, problem.clients
    if isinstance(law, ListLaw) and (law.order != "fresh" or law.every > 1):
        masks = np.zeros((d, d))
        if law.order == "fresh":
            raise TheoryError("masks that last for several rounds: no limit is known for them")
    else:
        masks = _mask_covariance(problem, law, factors, optimum)
    return Balance(
        optimum,
        _hessian(problem, masking, objective, optimum),
        masks,
        _noise_covariance(problem, law, factors, optimum) / n,
    )


def _hessian(
    problem: Problem, masking: Masking, objective: MaskedObjective, w: FloatArray
) -> FloatArray:
    if isinstance(problem, Quadratic):
        return np.asarray((problem.matrices * masking.moments(problem.dimension)[1]).mean(0))
    steps = _STEP * np.eye(len(w))
    columns = [(objective.gradient(w + e) - objective.gradient(w - e)) / (2 * _STEP) for e in steps]
    hessian = np.array(columns)
    return np.asarray((hessian + hessian.T) / 2)


def _mask_covariance(
    problem: Problem, law: MaskLaw, factors: FloatArray, w: FloatArray
) -> FloatArray:
    """Of the mean over clients of S_i grad f_i(S_i w), S_i = m_i times its factor."""
    n = problem.clients
    if isinstance(law, ListLaw) and not law.independent:
        masks = law.masks.swapaxes(0, 1) * factors[:, None]
        gradients = (masks * problem.gradients(masks * w)).mean(0)
        away = gradients - law.chances @ gradients
        return np.asarray((law.chances[:, None] * away).T @ away)
    if not law.independent:
        raise TheoryError("the parts of these clients are too many ways to deal: fewer coordinates")
    most = max(law.count(i) for i in range(n))
    by_moments = four_moments(law)
    if isinstance(problem, Quadratic) and most > MOST_LISTED and by_moments is not None:
        total, (first, second) = np.zeros((len(w), len(w))), law.moments
        here = np.zeros((len(w) + 1, len(w) + 1))
        here[-1, -1] = 1  # z = (w - centre, 1) at the centre
        for i, moments in enumerate(by_moments):
            f = factors[i]
            matrix, vector = f[:, None] * problem.matrices[i] * f, f * problem.vectors[i]
            mean = (matrix * second[i]) @ w - first[i] * vector
            total += moments.gradient_square(matrix, vector, w, here) - np.outer(mean, mean)
        return total / n**2
    masks, chances = law.list_masks()
    scaled_masks = masks * factors[:, None]
    gradients = scaled_masks * problem.gradients(scaled_masks * w)
    away = gradients - np.einsum("im,imd->id", chances, gradients)[:, None]
    return np.asarray(np.einsum("im,imd,ime->de", chances, away, away) / n**2)


def _noise_covariance(
    problem: Problem, law: MaskLaw, factors: FloatArray, w: FloatArray
) -> FloatArray:
    """The mean over clients of E[S_i Cov(stochastic gradient at S_i w) S_i]."""
    if isinstance(problem, Quadratic):
        first, _ = law.moments
        return np.diag((first * factors**2).mean(0)) * problem.noise**2 / problem.dimension
    if not isinstance(problem, Samples):
        raise TheoryError(f"{type(problem).__name__}: its gradients' noise is not known here")
    masks, chances = law.list_masks()
    scaled_masks = masks * factors[:, None]
    point = scaled_masks * w
    mean = problem.gradients(point)
    total = np.zeros((len(w), len(w)))
    for j, weights in enumerate(problem.example_weights.T):
        at = np.broadcast_to(np.minimum(j, problem.counts - 1)[:, None], point.shape[:2])
        away = scaled_masks * (problem.stochastic_gradients(point, at) - mean)
        total += np.einsum("i,im,imd,ime->de", weights, chances, away, away)
    return total / problem.clients
