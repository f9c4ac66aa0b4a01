"""Sharper statements than the paper's: the limit of masked training, and its distance from w*.

Near w*(p) the error u = w - w*(p) obeys u+ = u - eta K (H u + g) + ..., with the mean Hessian H and
the masked gradients g of a round, of mean 0. So E[u u'] tends to the solution S of
H S + S H = eta K Q, where Q is the covariance of g and of the noise, and E||u||^2 tends to
eta K tr(H^-1 Q) / 2; E u, of order eta, is the second-order bias. docs/theory/sharper.md has the
proofs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from submodel_lab.theory.masking import (
    MOST_LISTED,
    BernoulliLaw,
    FixedSizeLaw,
    ListLaw,
    Masking,
    MaskLaw,
)
from submodel_lab.theory.objective import MaskedObjective
from submodel_lab.theory.problems import FloatArray, Problem, Quadratic, Samples, TheoryError
from submodel_lab.theory.round_maps import four_moments


@dataclass(frozen=True, eq=False)
class Balance:
    """Balance of the error at w*(p) between the curvature H and the covariance of gradients."""

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

        ``convexity`` is mu~ of Theorem 1, or any number up to the least eigenvalue of H.
        """
        least = float(np.linalg.eigvalsh(self.hessian)[0])
        if convexity > least * (1 + 1e-9):
            raise TheoryError(
                f"mu~ = {convexity:g} is more than the least eigenvalue of H, {least:g}: with such "
                "a step the start is not forgotten in time"
            )
        return 2 * self.settled_error(steps) / convexity


def balance(problem: Problem, masking: Masking, radius: float = math.inf) -> Balance:
    """Compute H and the covariances at the optimum of the masked objective.

    For quadratics everything is exact; for examples with a list of all masks the covariances are
    exact, and H is computed by central differences. Windows cancel over an epoch, so their masks
    add nothing.

    >>> from submodel_lab.theory import bernoulli, quadratics
    >>> problem = quadratics(4, 10, 1.0, 2.0, noise=10.0)
    >>> round(balance(problem, bernoulli(0.5, 4)).rate_constant(5, 0.5), 4)
    7.0035
    """
    objective = MaskedObjective(problem, masking)
    optimum, law = objective.optimum(radius), masking.law(problem.dimension)
    factors = masking.factors(problem.dimension)
    d, n = problem.dimension, problem.clients
    masks = np.zeros((d, d))
    if _windows(law) is None:
        masks = _mask_covariance(problem, law, factors, optimum)
    return Balance(
        optimum,
        objective.hessian(optimum),
        masks,
        _noise_covariance(problem, law, factors, optimum) / n,
    )


def _windows(law: MaskLaw) -> ListLaw | None:
    """Return the law of the windows of an epoch; None for masks that are fresh every round."""
    if not isinstance(law, ListLaw) or (law.order == "fresh" and law.every == 1):
        return None
    if law.order == "fresh":
        raise TheoryError("masks that last for several rounds: no limit is known for them")
    return law


def _mask_covariance(
    problem: Problem, law: MaskLaw, factors: FloatArray, w: FloatArray
) -> FloatArray:
    """Return the covariance of the mean of S_i grad f_i(S_i w), S_i = m_i times its factor."""
    n = problem.clients
    if isinstance(law, ListLaw) and not law.independent:
        masks = law.masks.swapaxes(0, 1) * factors[:, None]
        gradients = (masks * problem.gradients(masks * w)).mean(0)
        away = gradients - law.chances @ gradients
        return np.asarray((law.chances[:, None] * away).T @ away)
    if not law.independent:
        raise TheoryError("these clients' parts have too many divisions to list: fewer coordinates")
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
    """Return the mean over clients of E[S_i Cov(stochastic gradient at S_i w) S_i]."""
    if isinstance(problem, Quadratic):
        first, _ = law.moments
        return np.diag((first * factors**2).mean(0)) * problem.noise**2 / problem.dimension
    if not isinstance(problem, Samples):
        raise TheoryError(f"{type(problem).__name__}: the noise of its gradients is not known")
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


def second_order_bias(problem: Quadratic, masking: Masking, steps: int) -> FloatArray:
    """Return lim E[w - w*] / eta for small eta in the stationary state (windows: at epoch ends).

    For other losses, changing curvature adds a term of the same order. With K = 1 and fresh masks
    there is no bias.

    >>> from submodel_lab.theory import bernoulli, quadratics
    >>> float(abs(second_order_bias(quadratics(), bernoulli(0.5, 4), 1)).max())
    0.0
    """
    d = problem.dimension
    law, factors = masking.law(d), masking.factors(d)
    objective = MaskedObjective(problem, masking)
    w = objective.optimum(math.inf)
    hessian = objective.hessian(w)
    if windows := _windows(law):
        return _window_bias(problem, windows, factors, w, steps, hessian)
    if not law.lists_all:
        raise TheoryError(f"d = {d}: the bias needs a list of all masks, and there are too many")
    masks, chances = law.list_masks()
    pulls = _curved_gradients(problem, masks * factors[:, None], w)
    mean = np.einsum("im,imd->d", chances, pulls) / problem.clients
    return np.asarray((steps - 1) / 2 * np.linalg.solve(hessian, mean))


def _curved_gradients(problem: Quadratic, masks: FloatArray, w: FloatArray) -> FloatArray:
    """Return S A_i S times S grad f_i(S w) of every client and mask; S is mask times factor."""
    gradients = masks * problem.gradients(masks * w)
    return np.asarray(masks * ((masks * gradients) @ problem.matrices))


def _window_bias(
    problem: Quadratic,
    law: ListLaw,
    factors: FloatArray,
    w: FloatArray,
    steps: int,
    hessian: FloatArray,
) -> FloatArray:
    masks = law.masks.swapaxes(0, 1) * factors[:, None]  # clients x windows x d
    gradients = (masks * problem.gradients(masks * w)).mean(0)  # g_j
    local = _curved_gradients(problem, masks, w).mean((0, 1))  # mean of v_j

    def pull(window: int, vector: FloatArray) -> FloatArray:
        own_masks = masks[:, window]
        return np.asarray(
            (own_masks * np.einsum("ide,ie->id", problem.matrices, own_masks * vector)).mean(0)
        )

    count = len(gradients)
    if law.order == "shuffled":  # j follows k with probability 1/2, and the sum of all g is 0
        passed_on = -sum(pull(j, gradients[j]) for j in range(count)) / 2
    else:
        behind = np.cumsum(gradients, 0) - gradients
        passed_on = sum(pull(j, behind[j]) for j in range(count))
    total = (steps - 1) / 2 * local + steps * np.asarray(passed_on) / count
    return np.asarray(np.linalg.solve(hessian, total))


def exact_residual(problem: Quadratic, masking: Masking) -> FloatArray:
    """Compute w*(1) - w*(p) = H^-1 grad F_p(w*).

    With Bernoulli masks grad F_p(w*) is the mean of p_i [grad f_i(w*) + (1 - p_i)(D_i - A_i) w*],
    D_i the diagonal of A_i; with other masks it is the mean of E[m_i (.) grad f_i(m_i (.) w*)].

    >>> from submodel_lab.theory import bernoulli, quadratics
    >>> float(abs(exact_residual(quadratics(), bernoulli(1.0, 4))).max()) < 1e-12
    True
    """
    best, objective = MaskedObjective(problem).optimum(math.inf), MaskedObjective(problem, masking)
    return np.asarray(np.linalg.solve(objective.hessian(best), objective.gradient(best)))


@dataclass(frozen=True)
class DistanceBounds:
    """Bounds on ||w*(1) - w*(p)||; NaN if one does not apply."""

    by_condition: float  # (1 - rho)(kappa_F - 1)||w*||: quadratics, equal laws of all clients
    unequal: float  # quadratics, any p_i: effects of differing p_i and of masking, over mean p_i
    smooth: float  # kappa sqrt((1 - p)/p)||w*||: any strongly convex losses, Bernoulli, equal p


def distance_bounds(problem: Problem, masking: Masking) -> DistanceBounds:
    """Compute the bounds for strongly convex problems and Bernoulli or fixed-size masks.

    rho is the probability that another coordinate is held, given one: p, or (s - 1)/(d - 1).
    docs/theory/sharper.md has the proofs.
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


def first_order_shift(problem: Problem, radius: float) -> FloatArray:
    """Return lim (w*(1) - w*(p)) / (1 - p) for p -> 1 with Bernoulli masks.

    For smooth strongly convex losses it is hess F(w*)^-1 times the sum over j of
    grad F(w* without j) without its entry j, as a missing coordinate affects the others only.
    """
    original = MaskedObjective(problem)
    w = original.optimum(radius)
    total = np.zeros(len(w))
    for j in range(len(w)):
        without = w.copy()
        without[j] = 0
        gradient = original.gradient(without)
        gradient[j] = 0
        total += gradient
    return np.asarray(np.linalg.solve(original.hessian(w), total))


def variance(powers: FloatArray, probabilities: FloatArray) -> float:
    """Return the variance of m/p (.) g, where ``powers`` are E[g_j^2].

    >>> variance(np.array([4.0, 1.0]), np.array([0.5, 0.5]))
    5.0
    """
    return float((powers * (1 / probabilities - 1)).sum())


def least_variance(powers: FloatArray, budget: float) -> FloatArray:
    """Return the p_j in (0, 1] of sum ``budget`` with the least `variance`: min(1, c sqrt(powers)).

    >>> least_variance(np.array([4.0, 1.0, 1.0]), 2.0)
    array([1. , 0.5, 0.5])
    """
    if not (powers > 0).all():
        raise TheoryError("a power of 0: such a coordinate needs no probability; leave it out")
    if not 0 < budget <= len(powers):
        raise TheoryError(f"a budget of {budget:g} for {len(powers)}: it must be in (0, d]")
    roots = np.sqrt(powers)
    largest_first = np.argsort(-roots, kind="stable")
    tail = np.cumsum(roots[largest_first][::-1])[::-1]  # of each one and all smaller ones
    for certain, rest in enumerate(tail):
        factor = (budget - certain) / rest
        if factor * roots[largest_first[certain]] <= 1:
            return np.asarray(np.minimum(1.0, factor * roots))
    return np.ones_like(roots)
