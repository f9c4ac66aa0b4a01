"""What one case comes to: its errors for every R, and the floor where F settles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from submodel.randomness import generator
from submodel.theory.lab import TrialPlan, run_trials
from submodel.theory.masking import Masking
from submodel.theory.objective import MaskedObjective
from submodel.theory.problems import FloatArray, Quadratic
from submodel.theory.results import OnProgress
from submodel.theory.studies.convergence.cases import ConvergenceCase, ConvergenceSettings
from submodel.theory.theorems import theorem_1


@dataclass(frozen=True)
class ConvergenceCurve:
    """What a case came to, for each R: values over trials."""

    case: ConvergenceCase
    errors: Sequence[FloatArray]  # ||w_R - w*(p)||^2
    iterate_gaps: Sequence[FloatArray]  # F(w_R) - F*
    output_gaps: Sequence[FloatArray]  # F(w^) - F*
    residual: float
    output_floor: float
    notes: Sequence[str]


def measure_case(
    s: ConvergenceSettings,
    case: ConvergenceCase,
    radius: float,
    on_progress: OnProgress,
    rounds_before: int,
    total: int,
) -> ConvergenceCurve:
    """Run one case for every R."""
    problem, masking = case.problem(s), case.masking(s)
    original, masked_objective = MaskedObjective(problem), MaskedObjective(problem, masking)
    best, target = original.optimum(radius), masked_objective.optimum(radius)
    least = original.value(best)

    def gaps(points: FloatArray) -> FloatArray:
        many = np.broadcast_to(points, (problem.clients, *points.shape))
        return np.asarray(problem.losses(many).mean(0) - least)

    errors, iterate_gaps, output_gaps, notes = [], [], [], []
    for rounds in s.rounds:
        step = case.step(s, problem, rounds)
        plan = TrialPlan(masking, rounds, case.steps, step.eta, radius, s.trials, s.seed)
        trajectory = run_trials(
            problem, plan, [rounds], partial(_forward, on_progress, rounds_before, total)
        )
        rounds_before += rounds
        errors.append(np.square(trajectory.iterates[rounds] - target).sum(1))
        iterate_gaps.append(gaps(trajectory.iterates[rounds]))
        output_gaps.append(gaps(trajectory.output))
        notes.append(step.note)
    residual = original.value(target) - least
    floor = residual + output_variance(problem, masking, target)
    if case.rolls:  # the output step uses all windows: no randomness is left in it
        after = target - masked_objective.gradient(target) / problem.smoothness
        floor = original.value(after) - least
    return ConvergenceCurve(case, errors, iterate_gaps, output_gaps, residual, floor, notes)


def _forward(on_progress: OnProgress, rounds_before: int, total: int, round_: int) -> None:
    on_progress(rounds_before + round_, total)


def output_variance(problem: Quadratic, masking: Masking, w: FloatArray) -> float:
    """What the output step's fresh masks add to E F(w^) at w = w*(p), where its mean is zero.

    E F(w - g/L) - F(w) = tr(A Cov(g)) / (2 L^2) + the change by the mean of g, which is 0 there;
    g is the mean over clients of m_i (.) grad f_i(m_i (.) w).
    """
    masks, chances = masking.list_masks(problem.dimension)
    scaled_masks = masks * masking.factors(problem.dimension)[:, None]
    gradients = scaled_masks * problem.gradients(scaled_masks * w)
    mean = np.einsum("im,imd->id", chances, gradients)
    away = gradients - mean[:, None]
    covariance = np.einsum("im,imd,ime->de", chances, away, away) / problem.clients**2
    return float(np.trace(problem.matrices.mean(0) @ covariance) / (2 * problem.smoothness**2))


def measure_floor(
    s: ConvergenceSettings,
    case: ConvergenceCase,
    radius: float,
    on_progress: OnProgress,
    rounds_before: int,
    total: int,
) -> tuple[float, float, float, float]:
    """Where F settles: measured, its 95 % interval, and the exact F(w*(p)) - F(w*).

    Without noise, over the last half of the longest run, iterates are averaged over rounds and
    trials: what is left is the objective's own floor and the drift of order eta K.
    """
    quiet = replace(case, noise=0.0)
    problem, masking, rounds = quiet.problem(s), quiet.masking(s), max(s.rounds)
    original = MaskedObjective(problem)
    least = original.value(original.optimum(radius))
    eta = s.eta or theorem_1(problem, case.p, case.steps, rounds).eta
    plan = TrialPlan(masking, rounds, case.steps, eta, radius, s.trials, s.seed)
    late = range(rounds // 2, rounds + 1)
    trajectory = run_trials(
        problem, plan, late, partial(_forward, on_progress, rounds_before, total)
    )
    means = np.mean([trajectory.iterates[r] for r in late], axis=0)
    rng = generator(s.seed, "floor")
    again = [
        original.value(means[rng.integers(len(means), size=len(means))].mean(0)) - least
        for _ in range(200)
    ]
    low, high = np.percentile(again, [2.5, 97.5])
    exact = original.value(MaskedObjective(problem, masking).optimum(radius)) - least
    return original.value(means.mean(0)) - least, float(low), float(high), exact
