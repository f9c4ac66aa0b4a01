"""Exact expectations for quadratics: moments of every iterate, by recursion over masks.

Moments are stored as the upper triangle of E[z z'], P numbers. After r rounds of an epoch they
are Psi_r times those at its start. With fresh masks every round, Psi_1 suffices; with sequential
windows, Psi_r is a product in their order; with shuffled windows, it is the mean over all orders,
by recursion over the sets S of visited windows: Psi_S = (1/|S|) sum_{j in S} Phi_j Psi_{S - j}.

A round is a polynomial of degree 2 K in its step size, so with fresh masks a schedule of any length
needs the matrices at 2 K + 1 step sizes; interpolation between them is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from submodel_lab.theory.masking import ListLaw, MaskLaw
from submodel_lab.theory.objective import MaskedObjective
from submodel_lab.theory.problems import FloatArray, Quadratic, TheoryError
from submodel_lab.theory.round_maps import RoundMap, list_work, round_map
from submodel_lab.theory.trials import TrialPlan, check_plan

MOST_WINDOWS = 12
"""Largest number of windows for the mean over all orders."""
_MOST_NUMBERS = 1 << 28  # numbers in the matrices in memory
_MOST_TABULATED = 600  # moments; with more, a round is applied without its matrix
_BLOCK = 512  # rounds whose moments are in memory at once
MakeRound = Callable[[MaskLaw, float], RoundMap]
"""Makes a round from masks and a step size."""


@dataclass(frozen=True)
class Triangle:
    """Conversion of symmetric matrices to the numbers of their upper triangles."""

    size: int

    @property
    def _places(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        return np.triu_indices(self.size)

    @property
    def numbers(self) -> int:
        """Number of entries of the triangle, P."""
        return self.size * (self.size + 1) // 2

    def pack(self, matrices: FloatArray) -> FloatArray:
        """Return the upper triangles."""
        rows, columns = self._places
        return np.asarray(matrices[..., rows, columns])

    def unpack(self, numbers: FloatArray) -> FloatArray:
        """Return the matrices of upper triangles."""
        rows, columns = self._places
        matrices = np.zeros((*numbers.shape[:-1], self.size, self.size))
        matrices[..., rows, columns] = numbers
        matrices[..., columns, rows] = numbers
        return matrices

    def weigh(self, matrix: FloatArray) -> FloatArray:
        """Return the weights of the functional <matrix, Z> of a symmetric Z on its triangle."""
        rows, columns = self._places
        return self.pack((matrix + matrix.T) / 2) * np.where(rows == columns, 1.0, 2.0)

    def tabulate(self, map_: RoundMap) -> FloatArray:
        """Return the matrix of a round."""
        return np.ascontiguousarray(self.pack(map_(self.unpack(np.eye(self.numbers)))).T)


def epoch_length(law: MaskLaw) -> int:
    """Return the number of rounds after which masks are independent of earlier ones."""
    if not isinstance(law, ListLaw):
        return 1
    return law.every if law.order == "fresh" else len(law.masks)


def epoch_stages(
    law: MaskLaw, make_round: MakeRound, triangle: Triangle, etas: Sequence[float]
) -> list[FloatArray]:
    """Compute Psi_1 ... Psi_L of an epoch with these step sizes."""
    if not isinstance(law, ListLaw) or (law.order == "fresh" and law.every == 1):
        return [triangle.tabulate(make_round(law, etas[0]))]
    entries = len(law.masks)
    tables: dict[tuple[int, float], FloatArray] = {}

    def table(entry: int, eta: float) -> FloatArray:
        if (entry, eta) not in tables:
            one_mask = ListLaw(law.masks[entry : entry + 1], np.ones(1))
            tables[entry, eta] = triangle.tabulate(make_round(one_mask, eta))
        return tables[entry, eta]

    if entries * triangle.numbers**2 > _MOST_NUMBERS:
        raise TheoryError(
            f"{entries} masks of {triangle.size - 1} coordinates that last for several rounds: "
            "their maps do not fit in memory; take fewer"
        )
    if law.order == "fresh":
        stages = [np.zeros((triangle.numbers, triangle.numbers)) for _ in etas]
        for entry, chance in enumerate(law.chances):
            after = np.eye(triangle.numbers)
            for stage, eta in zip(stages, etas, strict=True):
                after = table(entry, eta) @ after
                stage += chance * after
        return stages
    if law.order == "sequential":
        stages = [np.eye(triangle.numbers)]
        for entry, eta in enumerate(etas):
            stages.append(table(entry, eta) @ stages[-1])
        return stages[1:]
    return list(_over_orders(entries, table, etas, triangle.numbers))


def _over_orders(
    windows: int, table: Callable[[int, float], FloatArray], etas: Sequence[float], numbers: int
) -> Iterator[FloatArray]:
    if windows > MOST_WINDOWS:
        raise TheoryError(
            f"{windows} shuffled windows: at most {MOST_WINDOWS} are possible, as all their sets "
            "are enumerated; take fewer windows, or the sequential order"
        )
    level: dict[frozenset[int], FloatArray] = {frozenset(): np.eye(numbers)}
    for size, eta in enumerate(etas, start=1):
        visits = [frozenset(members) for members in combinations(range(windows), size)]
        if len(visits) * numbers**2 > _MOST_NUMBERS:
            raise TheoryError(
                f"{windows} shuffled windows with {numbers} moments: the maps of all sets do not "
                "fit in memory; take fewer windows or coordinates"
            )
        level = {
            members: np.mean([table(j, eta) @ level[members - {j}] for j in members], 0)
            for members in visits
        }
        yield np.mean(list(level.values()), 0)


Stages = Callable[[Sequence[float]], list[FloatArray]]
"""Computes the matrices of an epoch's rounds for step sizes."""


def scheduled_rounds(
    plan: TrialPlan, length: int, stages: Stages, state: FloatArray
) -> Iterator[FloatArray]:
    """Yield the moments after every round."""
    distinct = set(map(plan.eta_at, range(plan.rounds)))
    if length == 1 and len(distinct) > 2 * plan.steps + 1:
        yield from _interpolated_rounds(plan, stages, state)
        return
    stages_of = lru_cache(maxsize=2 if length > 1 else None)(lambda etas: stages(etas))
    for epoch in range(0, plan.rounds, length):
        rounds = range(epoch, epoch + length)  # the last epoch may end early
        matrices = stages_of(tuple(plan.eta_at(min(r, plan.rounds - 1)) for r in rounds))
        start = state
        for _, matrix in zip(range(epoch, plan.rounds), matrices, strict=False):
            state = matrix @ start
            yield state


def applied_rounds(
    plan: TrialPlan, make_round: Callable[[float], RoundMap], triangle: Triangle, state: FloatArray
) -> Iterator[FloatArray]:
    """Yield the moments after every round without matrices, for fresh masks of many coordinates."""
    moments = triangle.unpack(state)
    map_of = lru_cache(maxsize=1)(make_round)
    for r in range(plan.rounds):
        moments = map_of(plan.eta_at(r))(moments)
        yield triangle.pack(moments)


def interpolation_weights(nodes: FloatArray, x: float) -> FloatArray:
    """Return Lagrange's weights of a polynomial's values at degree + 1 nodes for its value at x.

    >>> interpolation_weights(np.array([0.0, 1.0]), 0.25)
    array([0.75, 0.25])
    """
    away = x - nodes
    apart = nodes[:, None] - nodes
    np.fill_diagonal(apart, 1.0)
    others = np.where(np.eye(len(away), dtype=bool), 1.0, away)
    return np.asarray(np.prod(others, 1) / np.prod(apart, 1))


def _interpolated_rounds(
    plan: TrialPlan, stages: Stages, state: FloatArray
) -> Iterator[FloatArray]:
    etas = [plan.eta_at(r) for r in range(plan.rounds)]
    low, high, degree = min(etas), max(etas), 2 * plan.steps
    angles = (np.arange(degree + 1) + 0.5) * np.pi / (degree + 1)  # Chebyshev nodes: small weights
    nodes = (low + high) / 2 + (high - low) / 2 * np.cos(angles)
    tables = np.stack([stages((float(eta),))[0] for eta in nodes])
    for eta in etas:
        state = interpolation_weights(nodes, eta) @ (tables @ state)
        yield state


@dataclass(frozen=True, eq=False)
class ExactTrajectory:
    """Expectations over masks, noise, orders and participants; index r is the round, from 0.

    ``seconds`` holds E[(w_r - w*(p))(w_r - w*(p))'] of the requested rounds.
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
    """Compute the expectations of a plan's trials, by recursion over masks.

    The plan must have no projection (``radius=math.inf``); its trials and seed are ignored. Second
    moments are kept for the rounds in ``keep``.

    >>> import numpy as np
    >>> from submodel_lab.theory import TrialPlan, bernoulli
    >>> problem = Quadratic(np.ones((1, 1, 1)), np.ones((1, 1)))
    >>> plan = TrialPlan(bernoulli(0.5, 1), 2, 1, 0.5, math.inf)
    >>> exact_moments(problem, plan).means.ravel()  # half of the distance, in half of the rounds
    array([0.    , 0.25  , 0.4375])
    """
    check_plan(problem, plan)
    if plan.radius != math.inf:
        raise TheoryError(
            f"radius = {plan.radius:g}: moments cannot be computed with a projection; give "
            "math.inf, and check Trajectory.projections for whether it ever acts"
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
    """Compute means, distances and gaps from the moments of each round."""

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
        """Add the moments of the next round."""
        self._states.append(state)
        if len(self._states) == _BLOCK:
            self._flush()

    def _flush(self) -> None:
        if self._states:
            self._values.append(np.stack(self._states) @ self._table)
            self._states = []

    def second(self, state: FloatArray) -> FloatArray:
        """Return E[u u'], u = w - w*(p)."""
        return self._triangle.unpack(state)[:-1, :-1]

    def read(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the means, distances and gaps of all rounds."""
        self._flush()
        values = np.concatenate(self._values)
        return values[:, :-2] + self._target, values[:, -2], values[:, -1]


def _unit(dimension: int, j: int) -> FloatArray:
    """Return the matrix with <matrix, E[z z']> = E[z_j]."""
    matrix = np.zeros((dimension + 1, dimension + 1))
    matrix[j, dimension] = 1
    return matrix


def _after_output(
    problem: Quadratic, plan: TrialPlan, law: MaskLaw, moments: FloatArray, centre: FloatArray
) -> FloatArray:
    """Return E[z z'] of w^, after a noiseless step 1/L with fresh masks or all windows."""
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
            f"{plan.rounds} rounds are not a multiple of the {law.every} that share masks: the "
            "output step would depend on the last masks"
        )
    return round_map(work, law)(moments)


def exact_average_error(problem: Quadratic, plan: TrialPlan, late: range) -> float:
    """Return E||mean of w_r over ``late`` - w*(p)||^2 for masks that are fresh every round.

    With z = (w - w*, 1), E[z_s z_r'] = E[z_s z_s'] (P')^(r-s) for s < r, P the mean of a round, so
    sums over pairs follow round by round: C_r = sum_{s <= r} E[z_s z_r'].
    """
    exact = exact_moments(problem, replace(plan, radius=math.inf), keep=late)
    d = problem.dimension
    factors = plan.masking.factors(d)
    work = list_work(problem, factors, plan.steps, plan.eta_at(0), exact.target)
    mean_map = np.eye(d + 1)
    mean_map[:d] += round_map(work, plan.masking.law(d)).drift
    pairs, total = np.zeros((d + 1, d + 1)), 0.0
    for r in late:
        mean = (exact.means[r] - exact.target)[:, None]
        square = np.block([[exact.seconds[r], mean], [mean.T, np.ones((1, 1))]])  # E[z z']
        pairs = pairs @ mean_map.T
        total += 2 * float(np.trace(pairs[:d, :d])) + float(np.trace(square[:d, :d]))
        pairs = pairs + square
    return total / len(late) ** 2
