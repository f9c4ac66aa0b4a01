"""The first two moments of every w_r, and of the output, for quadratics: no trial, no luck."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

import numpy as np

from submodel_lab.theory.exact.epochs import Triangle, epoch_length, epoch_stages
from submodel_lab.theory.exact.local_maps import list_work
from submodel_lab.theory.exact.round_maps import RoundMap, round_map
from submodel_lab.theory.exact.schedules import applied_rounds, scheduled_rounds
from submodel_lab.theory.lab import TrialPlan, check_plan
from submodel_lab.theory.mask_laws import ListLaw, MaskLaw
from submodel_lab.theory.objective import MaskedObjective
from submodel_lab.theory.problems import FloatArray, Quadratic, TheoryError

_MOST_TABULATED = 600  # moments; with more of them a round is applied, not written as a matrix
_BLOCK = 512  # rounds whose moments are in memory at a time


@dataclass(frozen=True, eq=False)
class ExactTrajectory:
    """Expectations over masks, noise, orders and participants; index r is the round, from 0.

    ``seconds`` holds E[(w_r - w*(p))(w_r - w*(p))'] of the rounds that were asked for.
    """

    target: FloatArray  # w*(p), or w*(m)
    means: FloatArray  # E w_r: (R + 1) x d
    distances: FloatArray  # E||w_r - w*(p)||^2
    gaps: FloatArray  # E F(w_r) - F(w*)
    seconds: dict[int, FloatArray]
    output_mean: FloatArray
    output_distance: float
    output_gap: float


def exact_moments(
    problem: Quadratic, plan: TrialPlan, keep: Collection[int] = ()
) -> ExactTrajectory:
    """What trials of a plan come to on average, by recursion over masks.

    Args:
        problem: Quadratic losses.
        plan: As for `run_trials`, whose trials and seed play no part, and without a projection
            (``radius=math.inf``).
        keep: Rounds whose second moments are wanted.

    >>> import numpy as np
    >>> from submodel_lab.theory import TrialPlan, bernoulli
    >>> problem = Quadratic(np.ones((1, 1, 1)), np.ones((1, 1)))
    >>> plan = TrialPlan(bernoulli(0.5, 1), 2, 1, 0.5, math.inf)
    >>> exact_moments(problem, plan).means.ravel()  # a half of the way, every other time
    array([0.    , 0.25  , 0.4375])
    """
    check_plan(problem, plan)
    if plan.radius != math.inf:
        raise TheoryError(
            f"radius = {plan.radius:g}: what a projection makes of moments is not a matter of "
            "moments; give math.inf, and see in Trajectory.projections whether it ever acts"
        )
    d, law = problem.dimension, plan.masking.law(problem.dimension)
    target = MaskedObjective(problem, plan.masking).optimum(math.inf)
    centre, triangle = target, Triangle(d + 1)
    factors = plan.masking.factors(d)

    def make_round(masks: MaskLaw, eta: float) -> RoundMap:
        work = list_work(problem, factors, plan.steps, eta, centre)
        return round_map(work, masks, plan.participants)

    reader = _Reader(problem, target, triangle)
    start = -centre if plan.start is None else plan.start - centre
    state = triangle.pack(np.outer([*start, 1.0], [*start, 1.0]))
    seconds = {0: reader.second(state)} if 0 in keep else {}
    reader.see(state)
    if triangle.numbers > _MOST_TABULATED and epoch_length(law) == 1:
        rounds = applied_rounds(plan, partial(make_round, law), triangle, state)
    else:
        stages = partial(epoch_stages, law, make_round, triangle)
        rounds = scheduled_rounds(plan, epoch_length(law), stages, state)
    for r, state in enumerate(rounds, start=1):
        reader.see(state)
        if r in keep:
            seconds[r] = reader.second(state)
    means, distances, gaps = reader.read()
    if not np.isfinite(distances).all():
        raise TheoryError("the second moments diverge: the step size is too large")
    output = _after_output(problem, plan, law, triangle.unpack(state), centre)
    after = _Reader(problem, target, triangle)
    after.see(triangle.pack(output))
    mean, distance, gap = after.read()
    return ExactTrajectory(
        target, means, distances, gaps, seconds, mean[0], float(distance[0]), float(gap[0])
    )


class _Reader:
    """Takes what is asked for from the moments of round after round."""

    def __init__(self, problem: Quadratic, target: FloatArray, triangle: Triangle) -> None:
        d = problem.dimension
        matrix, vector = problem.matrices.mean(0), problem.vectors.mean(0)
        original = MaskedObjective(problem)
        best = original.optimum(math.inf)
        distance, gap = np.zeros((d + 1, d + 1)), np.zeros((d + 1, d + 1))
        distance[:d, :d] = np.eye(d)
        # F(c + u) - F(w*) = u'Au/2 + u'(Ac - b) + F(c) - F(w*), the last (c - w*)'A(c - w*)/2
        gap[:d, :d] = matrix / 2
        gap[:d, d] = matrix @ target - vector
        gap[d, d] = (target - best) @ matrix @ (target - best) / 2
        self._triangle, self._target = triangle, target
        means = [triangle.weigh(_unit(d, j)) for j in range(d)]
        self._table = np.stack([*means, triangle.weigh(distance), triangle.weigh(gap)], 1)
        self._states: list[FloatArray] = []
        self._values: list[FloatArray] = []

    def see(self, state: FloatArray) -> None:
        """The moments of the next round."""
        self._states.append(state)
        if len(self._states) == _BLOCK:
            self._flush()

    def _flush(self) -> None:
        if self._states:
            self._values.append(np.stack(self._states) @ self._table)
            self._states = []

    def second(self, state: FloatArray) -> FloatArray:
        """E[u u'], u = w - w*(p)."""
        return self._triangle.unpack(state)[:-1, :-1]

    def read(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Means, distances and gaps of all that was seen."""
        self._flush()
        values = np.concatenate(self._values)
        return values[:, :-2] + self._target, values[:, -2], values[:, -1]


def _unit(dimension: int, j: int) -> FloatArray:
    """<matrix, E[z z']> is E[z_j]."""
    matrix = np.zeros((dimension + 1, dimension + 1))
    matrix[j, dimension] = 1
    return matrix


def _after_output(
    problem: Quadratic, plan: TrialPlan, law: MaskLaw, moments: FloatArray, centre: FloatArray
) -> FloatArray:
    """E[z z'] of w^: a step 1/L without noise, of all clients, with fresh masks or all windows."""
    quiet = Quadratic(problem.matrices, problem.vectors)
    factors = plan.masking.factors(problem.dimension)
    work = list_work(quiet, factors, 1, 1 / problem.smoothness, centre)
    if isinstance(law, ListLaw) and law.order != "fresh":
        drift = round_map(work, law).drift
        step = np.eye(len(moments))
        step[:-1] += drift
        return np.asarray(step @ moments @ step.T)
    if isinstance(law, ListLaw) and plan.rounds % law.every:
        raise TheoryError(
            f"{plan.rounds} rounds are no whole number of the {law.every} that share masks: the "
            "output step would depend on the last of them"
        )
    return round_map(work, law)(moments)
