"""The exact error of averaged iterates, which depend on each other from round to round."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from submodel_lab.theory.exact import exact_moments
from submodel_lab.theory.exact.local_maps import list_work
from submodel_lab.theory.exact.round_maps import round_map
from submodel_lab.theory.lab import TrialPlan
from submodel_lab.theory.problems import FloatArray, Quadratic


def exact_average_error(problem: Quadratic, plan: TrialPlan, late: range) -> float:
    """E||mean of w_r over ``late`` - w*(p)||^2, for masks that are fresh every round.

    With z = (w - w*, 1), E[z_s z_r'] = E[z_s z_s'] (P')^(r-s) for s < r, P the mean of a round, so
    sums over pairs follow round by round: C_r = sum_{s <= r} E[z_s z_r'].

    Args:
        problem: Quadratic losses.
        plan: How they are trained, with one step size.
        late: The rounds whose iterates are averaged; the last is the plan's.
    """
    exact = exact_moments(problem, replace(plan, radius=math.inf), keep=late)
    d = problem.dimension
    factors = plan.masking.factors(d)
    work = list_work(problem, factors, plan.steps, plan.eta_at(0), exact.target)
    mean_map = np.eye(d + 1)
    mean_map[:d] += round_map(work, plan.masking.law(d)).drift
    pairs, total = np.zeros((d + 1, d + 1)), 0.0
    for r in late:
        square = _with_border(exact.seconds[r], exact.means[r] - exact.target)
        pairs = pairs @ mean_map.T
        total += 2 * float(np.trace(pairs[:d, :d])) + float(np.trace(square[:d, :d]))
        pairs = pairs + square
    return total / len(late) ** 2


def _with_border(second: FloatArray, mean: FloatArray) -> FloatArray:
    """E[z z'] of z = (u, 1)."""
    return np.block([[second, mean[:, None]], [mean[None], np.ones((1, 1))]])
