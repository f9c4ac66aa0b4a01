"""Theorems 2 and 4: stationarity of the masked objective, and of the original one."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from submodel.theory.data import Directions
from submodel.theory.lab import TrialPlan, run_trials
from submodel.theory.masking import Masking, bernoulli, rolling
from submodel.theory.objective import MaskedObjective
from submodel.theory.problems import FloatArray, Net, TheoryError
from submodel.theory.results import (
    OnProgress,
    Panel,
    PlotLine,
    Statement,
    Study,
    interval,
    report_nothing,
    slope_interval,
)
from submodel.theory.theorems import theorem_2, theorem_4

_PLACES = 3  # iterates looked at between r and 2r


@dataclass(frozen=True)
class NonconvexSettings:
    """A net of two tanh units on four features: d = 8, so that F_p is exact over all masks."""

    capacities: tuple[float, ...] = (1.0, 0.75, 0.5)
    rounds: tuple[int, ...] = (64, 128, 256, 512, 1024)
    steps: int = 2
    clients: int = 4
    examples: int = 16
    features: int = 4
    hidden: int = 2
    heterogeneity: float = 0.3
    trials: int = 100
    seed: int = 0


def study_nonconvex(s: NonconvexSettings, on_progress: OnProgress = report_nothing) -> Study:
    """Measure everything."""
    if len(s.rounds) < 3:
        raise TheoryError(f"{len(s.rounds)} values of R: a slope needs at least 3")
    x, y = Directions(s.clients, s.features, s.heterogeneity, s.seed).draw(1, s.examples, "net")
    problem = Net(x, y, hidden_units=s.hidden)
    d = problem.dimension
    if wrong := [r for r in s.rounds if r % d]:
        raise TheoryError(f"R = {wrong[0]}: rolling needs whole epochs of d = {d} rounds")
    maskings: dict[str, Masking] = {f"p={p:g}": bernoulli(p, s.clients) for p in s.capacities}
    least = min(s.capacities)
    maskings[f"rolling, s/d={least:g}"] = rolling(least, s.clients, d)
    curves: dict[str, list[tuple[FloatArray, FloatArray]]] = {}
    rows = []
    total, steps = len(maskings) * len(s.rounds), 0
    for label, masking in maskings.items():
        for rounds in s.rounds:
            if "rolling" in label:
                step = theorem_4(problem, s.steps, d, rounds // d)
            else:
                step = theorem_2(problem, s.steps, rounds)
            values = norms(s, problem, masking, step.eta, rounds)
            curves.setdefault(label, []).append(values)
            mean, low, high = interval(values[0])
            rows.append({
                "case": label, "R": rounds, "eta": step.eta, "mean |grad F_p|^2": mean,
                "low": low, "high": high, "mean |grad F|^2": float(values[1].mean()),
                "condition": step.note,
            })  # fmt: skip
            steps += 1
            on_progress(steps, total)
    settings = {**asdict(s), "d": d, "L (largest met)": problem.smoothness}
    notes = [
        "no projection: W is R^d in both proofs",
        "L is the largest curvature met in a ball of radius 3, not a proven bound",
        *sorted({f"{r['case']}: {r['condition']}" for r in rows if r["condition"] != "met"}),
    ]
    return Study("nonconvex", "Theorems 2 and 4: a small tanh net", settings, rows,
                 _panels(s, curves), _claims(s, curves), notes)  # fmt: skip


def norms(
    s: NonconvexSettings, problem: Net, masking: Masking, eta: float, rounds: int
) -> tuple[FloatArray, FloatArray]:
    """The mean over iterates of ||grad F_p||^2 and ||grad F||^2, for every trial."""
    places, weights = quadrature(rounds)
    plan = TrialPlan(masking, rounds, s.steps, eta, np.inf, s.trials, s.seed)
    trajectory = run_trials(problem, plan, set(places))
    points = np.concatenate([trajectory.iterates[r] for r in places])
    both = []
    for objective in (MaskedObjective(problem, masking), MaskedObjective(problem)):
        squares = np.square(objective.gradients_at(points)).sum(1)
        both.append(np.asarray(weights) @ squares.reshape(len(places), -1))
    return both[0], both[1]


def quadrature(rounds: int) -> tuple[list[int], list[float]]:
    """Rounds and weights for a mean over r = 1 .. R: early rounds, where much happens, closely.

    >>> quadrature(3), sum(quadrature(1000)[1])
    (([1, 2, 3], [0.3333333333333333, 0.3333333333333333, 0.3333333333333333]), 1.0)
    """
    places, weights, start = [], [], 1
    while start <= rounds:
        stop = min(2 * start, rounds + 1)
        for part in np.array_split(np.arange(start, stop), min(_PLACES, stop - start)):
            places.append(int(part[len(part) // 2]))
            weights.append(len(part) / rounds)
        start = stop
    return places, weights


def _claims(
    s: NonconvexSettings, curves: dict[str, list[tuple[FloatArray, FloatArray]]]
) -> list[Statement]:
    claims = []
    for label, values in curves.items():
        slope, low, high = slope_interval(s.rounds, [v[0] for v in values])
        verdict = "yes" if slope <= -0.35 else "no"
        claims.append(
            Statement(
                f"slope of mean ||grad||^2 of the masked objective, {label}",
                f"{slope:.2f} [{low:.2f}, {high:.2f}]",
                "-0.5 or steeper",
                verdict,
            )
        )
        if label != "p=1":
            last = values[-1]
            ratio = float(last[1].mean() / last[0].mean())
            claims.append(Statement(f"||grad F||^2 / ||grad F_p||^2 at the largest R, {label}",
                                f"{ratio:.1f}", "above 1: F keeps a residual",
                                "yes" if ratio > 1 else "no"))  # fmt: skip
    return claims


def _panels(
    s: NonconvexSettings, curves: dict[str, list[tuple[FloatArray, FloatArray]]]
) -> list[Panel]:
    def lines(which: int) -> list[PlotLine]:
        return [
            PlotLine.of(c, s.rounds, [v[which] for v in values]) for c, values in curves.items()
        ]

    return [
        Panel("the objective that masking induces", "rounds R", "mean over r of ||grad F_p(w_r)||²",
              lines(0), -0.5),
        Panel("the original objective at the same points", "rounds R",
              "mean over r of ||grad F(w_r)||²", lines(1)),
    ]  # fmt: skip
