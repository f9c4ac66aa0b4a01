"""L of losses without a closed form: the largest curvature that is met."""

from __future__ import annotations

import numpy as np

from submodel.randomness import generator
from submodel_lab.theory.problems.base import FloatArray, Problem

_POINTS, _ITERATIONS, _STEP = 64, 30, 1e-5


def largest_curvature(problem: Problem, radius: float, centre: FloatArray | None = None) -> float:
    """The largest curvature of any f_i at 64 points of a ball, by power iteration: no bound of L.

    Args:
        problem: The clients' losses.
        radius: Of the ball.
        centre: Of the ball; None: 0.
    """
    rng = generator(0, "curvature")
    shape = (problem.clients, _POINTS, problem.dimension)
    w = rng.standard_normal(shape)
    w *= radius * rng.random((*shape[:2], 1)) / np.linalg.norm(w, axis=-1, keepdims=True)
    if centre is not None:
        w = w + centre
    v = rng.standard_normal(shape)
    for _ in range(_ITERATIONS):
        v /= np.linalg.norm(v, axis=-1, keepdims=True)
        change = problem.gradients(w + _STEP * v) - problem.gradients(w - _STEP * v)
        v = change / (2 * _STEP)
    return float(np.linalg.norm(v, axis=-1).max())
