"""Algorithms 1 and 2 for many trials at once, with the schemes and merge rule of `submodel`.

Trial 0 draws the masks that training with the same seed draws. A Bernoulli draw of T d
coordinates equals T draws of d, so one call of the scheme serves all trials of a client.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from submodel.algorithm import FILL_IN, average, shrinkage
from submodel.core import generator
from submodel.model import COORDINATES
from submodel.schemes import Draw, Random, Rolling, output_passes
from submodel_lab.theory.masking import CoordinateChances, Masking, epoch_windows
from submodel_lab.theory.problems import FloatArray, Problem, TheoryError

OnTrialRound = Callable[[int], None]


@dataclass(frozen=True)
class TrialPlan:
    """Parameters of Algorithm 1 or 2. ``rounds`` counts all rounds: T R for rolling."""

    masking: Masking
    rounds: int
    steps: int  # K
    eta: float | tuple[float, ...]  # for all rounds, or for each
    radius: float  # of the ball W; math.inf: no projection
    trials: int = 200
    seed: int = 0
    participants: int | None = None  # clients per round; None: all, as in the paper
    start: FloatArray | None = None  # w_0; None: 0, as in both algorithms

    def eta_at(self, round_: int) -> float:
        """Return the step size of a round, counted from 0."""
        return self.eta[round_] if isinstance(self.eta, tuple) else self.eta


@dataclass(frozen=True)
class Trajectory:
    """Requested iterates (trials x d each) and the output w^.

    ``projections`` counts the rounds of trials in which the projection moved w.
    """

    iterates: dict[int, FloatArray]
    output: FloatArray
    projections: int = 0


class MaskDraws:
    """Draw the masks m_i^r of all trials, round after round: clients x trials x d."""

    def __init__(self, masking: Masking, dimension: int, trials: int, seed: int) -> None:
        self._masking, self._dimension = masking, dimension
        self._trials, self._seeds = trials, seed + np.arange(trials)
        rolls = isinstance(masking.mask_scheme, Rolling)
        self._table = masking.list_masks(dimension)[0] if rolls else np.empty(0)
        self._epoch, self._windows = -1, np.empty((0, 0), np.int64)

    def __call__(self, round_: int) -> FloatArray:
        """Draw the masks of a round."""
        scheme, d = self._masking.mask_scheme, self._dimension
        if isinstance(scheme, Rolling):
            epoch, r = divmod(round_, scheme.windows)
            if epoch != self._epoch:
                self._windows = epoch_windows(self._masking, self._seeds, epoch)
                self._epoch = epoch
            return np.asarray(self._table[:, self._windows[:, r]])
        capacities = enumerate(self._masking.capacities)
        is_bernoulli = isinstance(scheme, Random) and scheme.sampling == "bernoulli"
        if is_bernoulli or isinstance(scheme, CoordinateChances):  # one draw of T d coordinates
            seed, size = int(self._seeds[0]), self._trials * d
            flat = [
                scheme.select(COORDINATES, size, p, Draw(seed, round_, i)) for i, p in capacities
            ]
            return np.stack(flat).reshape(-1, self._trials, d).astype(float)
        return np.array(
            [
                [
                    scheme.select(COORDINATES, d, p, Draw(int(s), round_, i, place=i))
                    for s in self._seeds
                ]
                for i, p in capacities
            ],
            float,
        )


def run_trials(
    problem: Problem,
    plan: TrialPlan,
    keep: Collection[int] = (),
    on_round: OnTrialRound | None = None,
) -> Trajectory:
    """Run the algorithm and keep the iterates w_r of the rounds in ``keep``; w_0 is the start."""
    check_plan(problem, plan)
    n, d = problem.clients, problem.dimension
    masks_of = MaskDraws(plan.masking, d, plan.trials, plan.seed)
    scales = plan.masking.factors(problem.dimension)[:, None]
    w = np.zeros((plan.trials, d))
    if plan.start is not None:
        w = w + plan.start
    projections = 0
    iterates = {0: w} if 0 in keep else {}
    for r in range(plan.rounds):
        masks = masks_of(r)
        scaled_masks = masks * scales
        xi = problem.draw(plan.seed, r, plan.steps, plan.trials)
        local, eta = np.broadcast_to(w, (n, plan.trials, d)), plan.eta_at(r)
        for k in range(plan.steps):
            # coordinates outside the mask stay unchanged: the paper's virtual iterates
            local = local - eta * scaled_masks * problem.stochastic_gradients(
                scaled_masks * local, xi[k]
            )
        present = _present(plan, n, r)
        holders = masks if present is None else masks * present
        mean_point = _merge(w, local - w, holders, plan.participants or n)
        w = _project(mean_point, plan.radius)
        projections += int((w != mean_point.numpy()).any(1).sum())
        if r + 1 in keep:
            iterates[r + 1] = w
        if on_round is not None:
            on_round(r + 1)
    if not np.isfinite(w).all():
        largest = max(map(plan.eta_at, range(plan.rounds)))
        raise TheoryError(f"the iterates diverged: eta = {largest:g} is too large")
    return Trajectory(iterates, take_output_step(problem, plan, w), projections)


def take_output_step(problem: Problem, plan: TrialPlan, w: FloatArray) -> FloatArray:
    """Take the final step: w^ = P(w_R - (1/L)(1/N) sum_i m_i (.) grad f_i(m_i (.) w_R))."""
    scales = plan.masking.factors(problem.dimension)[:, None]
    gradient_sum = np.zeros_like(w)
    passes = output_passes(plan.masking.mask_scheme)
    for scheme in passes:  # rolling averages over all its windows
        pass_masking = replace(plan.masking, scheme=scheme)
        if isinstance(scheme, Rolling):
            table = np.array([
                scheme.select(COORDINATES, w.shape[1], p, Draw(plan.seed, plan.rounds, i))
                for i, p in enumerate(pass_masking.capacities)
            ], float)  # fmt: skip
            masks = np.repeat(table[:, None], len(w), 1)
        else:
            masks = MaskDraws(pass_masking, w.shape[1], len(w), plan.seed)(plan.rounds)
        scaled_masks = masks * scales
        gradient_sum += (scaled_masks * problem.gradients(scaled_masks * w)).sum(0)
    step = -gradient_sum / problem.smoothness
    count = float(problem.clients * len(passes))
    whole, holders = torch.from_numpy(w), torch.full((1,), count, dtype=torch.float64)
    new = average(whole, torch.from_numpy(step), holders, count, FILL_IN)
    return _project(new, plan.radius)


def _merge(w: FloatArray, change: FloatArray, holders: FloatArray, clients: int) -> torch.Tensor:
    change_sum = torch.from_numpy((change * holders).sum(0))
    holder_counts = torch.from_numpy(holders.sum(0))
    return average(torch.from_numpy(w), change_sum, holder_counts, float(clients), FILL_IN)


def _project(points: torch.Tensor, radius: float) -> FloatArray:
    factors = shrinkage(torch.linalg.vector_norm(points, dim=1), radius)
    projection: FloatArray = (points * factors[:, None]).numpy()
    return projection


def _present(plan: TrialPlan, clients: int, round_: int) -> NDArray[np.bool_] | None:
    """Draw the participants: clients x trials x 1; None: all."""
    if plan.participants is None or plan.participants == clients:
        return None
    order = generator(plan.seed, "participants", round_).random((clients, plan.trials)).argsort(0)
    return np.asarray(order.argsort(0) < plan.participants)[..., None]


def check_plan(problem: Problem, plan: TrialPlan) -> None:
    """Raise an error for a plan that cannot run."""
    counts = {"rounds": plan.rounds, "steps (K)": plan.steps, "trials": plan.trials}
    for name, count in counts.items():
        if count < 1:
            raise TheoryError(f"{name} = {count}: at least 1 is needed")
    if isinstance(plan.eta, tuple) and len(plan.eta) != plan.rounds:
        raise TheoryError(f"{len(plan.eta)} step sizes for {plan.rounds} rounds: give one each")
    if not (least := min(map(plan.eta_at, range(plan.rounds)))) > 0:
        raise TheoryError(f"eta = {least:g} is not positive")
    if plan.start is not None and plan.start.shape != (problem.dimension,):
        raise TheoryError(
            f"a start of shape {plan.start.shape}: {problem.dimension} coordinates are needed"
        )
    if not plan.radius > 0:
        raise TheoryError(f"radius = {plan.radius:g} is not positive")
    if len(plan.masking.capacities) != problem.clients:
        raise TheoryError(
            f"{len(plan.masking.capacities)} capacities for {problem.clients} clients"
        )
    if plan.participants is not None and not 1 <= plan.participants <= problem.clients:
        raise TheoryError(f"{plan.participants} participants of {problem.clients} clients")
