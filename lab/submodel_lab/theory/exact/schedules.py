"""Moments round after round, with one step size or many.

A round is a polynomial of degree 2 K in its step size, so with fresh masks a schedule of any length
needs the matrices at 2 K + 1 step sizes; those between follow by interpolation, without error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from submodel_lab.theory.exact.epochs import Triangle
from submodel_lab.theory.exact.round_maps import RoundMap
from submodel_lab.theory.lab import TrialPlan
from submodel_lab.theory.problems import FloatArray

Stages = Callable[[Sequence[float]], list[FloatArray]]
"""The matrices of an epoch's rounds, from its start on, for these step sizes."""


def scheduled_rounds(
    plan: TrialPlan, length: int, stages: Stages, state: FloatArray
) -> Iterator[FloatArray]:
    """The moments after every round.

    Args:
        plan: How many rounds, and their step sizes.
        length: Rounds of an epoch.
        stages: The matrices of an epoch.
        state: The moments of w_0.
    """
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
    """The same without matrices: for fresh masks of many coordinates."""
    moments = triangle.unpack(state)
    map_of = lru_cache(maxsize=1)(make_round)
    for r in range(plan.rounds):
        moments = map_of(plan.eta_at(r))(moments)
        yield triangle.pack(moments)


@dataclass(frozen=True)
class Interpolation:
    """Weights that give a polynomial at x from its values at nodes, as many as its degree + 1."""

    nodes: FloatArray

    @classmethod
    def between(cls, low: float, high: float, degree: int) -> Interpolation:
        """Chebyshev's nodes, where weights stay small."""
        angles = (np.arange(degree + 1) + 0.5) * np.pi / (degree + 1)
        return cls((low + high) / 2 + (high - low) / 2 * np.cos(angles))

    def weights(self, x: float) -> FloatArray:
        """Lagrange's.

        >>> Interpolation(np.array([0.0, 1.0])).weights(0.25)
        array([0.75, 0.25])
        """
        away = x - self.nodes
        apart = self.nodes[:, None] - self.nodes
        np.fill_diagonal(apart, 1.0)
        others = np.where(np.eye(len(away), dtype=bool), 1.0, away)
        return np.asarray(np.prod(others, 1) / np.prod(apart, 1))


def _interpolated_rounds(
    plan: TrialPlan, stages: Stages, state: FloatArray
) -> Iterator[FloatArray]:
    etas = [plan.eta_at(r) for r in range(plan.rounds)]
    nodes = Interpolation.between(min(etas), max(etas), 2 * plan.steps)
    tables = np.stack([stages((float(eta),))[0] for eta in nodes.nodes])
    for eta in etas:
        state = nodes.weights(eta) @ (tables @ state)
        yield state
