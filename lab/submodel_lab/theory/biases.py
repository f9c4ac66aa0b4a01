"""How far E w settles from w*(p), to first order in the step size: K local steps, and windows.

A round's expansion is u+ = u - eta K (H_r u + g_r) + eta^2 K(K-1)/2 v_r, where over clients H_r is
the mean of M_i A_i M_i, g_r of M_i grad f_i(M_i w*), and v_r of M_i A_i M_i grad f_i(M_i w*). Fresh
masks have E g = 0, which leaves E u = eta (K-1)/2 H^-1 E v. Windows have sum g_j = 0 over an epoch,
and what one leaves behind the next ones see: eta^2 K^2 times the sum of H_j g_k, j after k.
"""

from __future__ import annotations

import math

import numpy as np

from submodel_lab.theory.mask_laws import ListLaw
from submodel_lab.theory.masking import Masking
from submodel_lab.theory.objective import MaskedObjective
from submodel_lab.theory.problems import FloatArray, Quadratic, TheoryError


def second_order_bias(problem: Quadratic, masking: Masking, steps: int) -> FloatArray:
    """Lim E[w - w*] / eta for small eta, where training settles (windows: at the ends of epochs).

    Args:
        problem: Quadratic losses. With others, curvature that changes adds a term of that order.
        masking: How they are masked.
        steps: K; with K = 1 and fresh masks there is no bias.

    >>> from submodel_lab.theory import bernoulli, quadratics
    >>> float(abs(second_order_bias(quadratics(), bernoulli(0.5, 4), 1)).max())
    0.0
    """
    d = problem.dimension
    law, factors = masking.law(d), masking.factors(d)
    w = MaskedObjective(problem, masking).optimum(math.inf)
    hessian = (problem.matrices * masking.moments(d)[1]).mean(0)
    if isinstance(law, ListLaw) and (law.order != "fresh" or law.every > 1):
        if law.order == "fresh":
            raise TheoryError("masks that last for several rounds: no limit is known for them")
        return _window_bias(problem, law, factors, w, steps, hessian)
    if not law.lists_all:
        raise TheoryError(f"d = {d}: the bias needs all masks, and they are too many to list")
    masks, chances = law.list_masks()
    pulls = _curved_gradients(problem, masks * factors[:, None], w)
    mean = np.einsum("im,imd->d", chances, pulls) / problem.clients
    return np.asarray((steps - 1) / 2 * np.linalg.solve(hessian, mean))


def _curved_gradients(problem: Quadratic, masks: FloatArray, w: FloatArray) -> FloatArray:
    """S A_i S times S grad f_i(S w), of every client and mask; S is the mask times its factor."""
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
    if law.order == "shuffled":  # j is after k half of the time, and the sum of all g is 0
        passed_on = -sum(pull(j, gradients[j]) for j in range(count)) / 2
    else:
        behind = np.cumsum(gradients, 0) - gradients
        passed_on = sum(pull(j, behind[j]) for j in range(count))
    total = (steps - 1) / 2 * local + steps * np.asarray(passed_on) / count
    return np.asarray(np.linalg.solve(hessian, total))
