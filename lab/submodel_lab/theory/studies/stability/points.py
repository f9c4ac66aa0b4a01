"""What one case comes to: distances of neighbours, losses, the gap, and what the theorem bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from submodel_lab.theory.bounds import BoundTerms, StabilityFacts, theorem_5_bound, theorem_6_bound
from submodel_lab.theory.lab import MaskDraws, TrialPlan, run_trials
from submodel_lab.theory.measures import Measure
from submodel_lab.theory.problems import FloatArray, Logistic
from submodel_lab.theory.studies.stability.cases import (
    BatchLogistic,
    StabilityCase,
    StabilitySettings,
    neighbours,
)
from submodel_lab.theory.theorems import StepSize

GRADIENT = 1.0
"""G: examples have norm 1, so every logistic loss has gradients of norm at most 1."""


@dataclass(frozen=True)
class StabilityPoint:
    """What a case came to."""

    case: StabilityCase
    step: StepSize
    share: float
    output: Measure  # ||w^ - w^'||
    iterate: Measure  # ||w_R - w_R'||
    output_loss: Measure  # training loss of w^
    iterate_loss: Measure  # training loss of w_R
    gap: Measure  # risk - training loss of w^
    ceiling: BoundTerms
    noise: float  # delta
    distance: float  # D_max


def measure_stability(s: StabilitySettings, case: StabilityCase) -> StabilityPoint:
    """Train on both datasets, with shared masks and samples."""
    source = case.source(s)
    raw, raw_other = neighbours(source, s.trials, case.n)
    step = case.step(s, raw)
    masking = case.masking(s)
    plan = TrialPlan(masking, case.rounds, case.steps, step.eta, s.radius, s.trials, s.seed)
    first, second = (
        BatchLogistic(data.x, data.y, data.l2, raw.smoothness, case.batch)
        for data in (raw, raw_other)
    )
    one, other = (run_trials(problem, plan, [case.rounds]) for problem in (first, second))
    w, w_other = one.iterates[case.rounds], other.iterates[case.rounds]
    noise2, power = _gradient_powers(s, case, first, w)
    facts = StabilityFacts(case.clients, case.n, case.share(s) * raw.smoothness, noise2, GRADIENT,
                           source.distance, power)  # fmt: skip
    losses = _training_losses(first, one.output)
    risk = _risk(s, case, one.output)
    return StabilityPoint(
        case, step, case.share(s),
        Measure.of(np.linalg.norm(one.output - other.output, axis=1)),
        Measure.of(np.linalg.norm(w - w_other, axis=1)),
        Measure.of(losses), Measure.of(_training_losses(first, w)), Measure.of(risk - losses),
        theorem_6_bound(facts) if case.rolls else theorem_5_bound(facts),
        float(np.sqrt(noise2)), source.distance,
    )  # fmt: skip


def train_once(s: StabilitySettings, case: StabilityCase) -> tuple[float, float]:
    """The mean training loss of w_R and of w^, on the first dataset alone."""
    raw, _ = neighbours(case.source(s), s.trials, case.n)
    problem = BatchLogistic(raw.x, raw.y, raw.l2, raw.smoothness, case.batch)
    eta = case.step(s, raw).eta
    plan = TrialPlan(case.masking(s), case.rounds, case.steps, eta, s.radius, s.trials, s.seed)
    trajectory = run_trials(problem, plan, [case.rounds])
    points = (trajectory.iterates[case.rounds], trajectory.output)
    iterate, output = (float(_training_losses(problem, w).mean()) for w in points)
    return iterate, output


def _training_losses(problem: Logistic, w: FloatArray) -> FloatArray:
    many = np.broadcast_to(w, (problem.clients, *w.shape))
    return np.asarray(problem.losses(many).mean(0))


def _risk(s: StabilitySettings, case: StabilityCase, w: FloatArray) -> FloatArray:
    """The loss on fresh examples of every client, the same for all trials."""
    x, y = case.source(s).draw(1, s.test_examples, "test")
    total = np.zeros(len(w))
    for client_x, client_y in zip(x[:, 0], y[:, 0], strict=True):
        total += np.logaddexp(0, -client_y * (w @ client_x.T)).mean(1)
    return total / case.clients


def _gradient_powers(
    s: StabilitySettings, case: StabilityCase, problem: BatchLogistic, w: FloatArray
) -> tuple[float, float]:
    """delta^2 and sigma_*^2, as they are at w_R with fresh masks."""
    masks = MaskDraws(case.masking(s), s.dimension, len(w), s.seed)(case.rounds)
    gradients = masks * problem.gradients(masks * w)
    xi = problem.draw(s.seed + 1, case.rounds, 1, len(w))[0]
    away = masks * problem.stochastic_gradients(masks * w, xi) - gradients
    return float(np.square(away).sum(-1).mean()), float(np.square(gradients).sum(-1).mean())
