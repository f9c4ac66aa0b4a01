"""Theorems 2 and 4: stationarity of the masked objective, and of the original one."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from submodel.theory.data import Directions
from submodel.theory.lab import TrialPlan, run
from submodel.theory.masked import Masked, Masking, bernoulli, rolling
from submodel.theory.problems import Array, Net, TheoryError
from submodel.theory.results import (
    Line,
    Panel,
    Report,
    Statement,
    Study,
    interval,
    silent,
    slope_interval,
)
from submodel.theory.theorems import theorem_2, theorem_4

_PLACES = 3  # iterates looked at between r and 2r


@dataclass(frozen=True)
class Settings:
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


def study(s: Settings, report: Report = silent) -> Study:
    """Measure everything."""
    if len(s.rounds) < 3:
        raise TheoryError(f"{len(s.rounds)} values of R: a slope needs at least 3")
    x, y = Directions(s.clients, s.features, s.heterogeneity, s.seed).draw(1, s.examples, "net")
    problem = Net(x, y, hidden=s.hidden)
    d = problem.dimension
    if wrong := [r for r in s.rounds if r % d]:
        raise TheoryError(f"R = {wrong[0]}: rolling needs whole epochs of d = {d} rounds")
    maskings: dict[str, Masking] = {f"p={p:g}": bernoulli(p, s.clients) for p in s.capacities}
    least = min(s.capacities)
    maskings[f"rolling, s/d={least:g}"] = rolling(least, s.clients, d)
    curves: dict[str, list[tuple[Array, Array]]] = {}
    rows = []
    total, done = len(maskings) * len(s.rounds), 0
    for label, masking in maskings.items():
        for rounds in s.rounds:
            if "rolling" in label:
                step = theorem_4(problem, s.steps, d, rounds // d)
            else:
                step = theorem_2(problem, s.steps, rounds)
            values = norms(s, problem, masking, step.eta, rounds)
            curves.setdefault(label, []).append(values)
            masked, low, high = interval(values[0])
            rows.append({
                "case": label, "R": rounds, "eta": step.eta, "mean |grad F_p|^2": masked,
                "low": low, "high": high, "mean |grad F|^2": float(values[1].mean()),
                "condition": step.note,
            })  # fmt: skip
            done += 1
            report(done, total)
    settings = {**asdict(s), "d": d, "L (largest met)": problem.smoothness}
    notes = [
        "no projection: W is R^d in both proofs",
        "L is the largest curvature met in a ball of radius 3, not a proven bound",
        *sorted({f"{r['case']}: {r['condition']}" for r in rows if r["condition"] != "met"}),
    ]
    return Study("nonconvex", "Theorems 2 and 4: a small tanh net", settings, rows,
                 _panels(s, curves), _claims(s, curves), notes)  # fmt: skip


def norms(
    s: Settings, problem: Net, masking: Masking, eta: float, rounds: int
) -> tuple[Array, Array]:
    """The mean over iterates of ||grad F_p||^2 and ||grad F||^2, for every trial."""
    places, weights = quadrature(rounds)
    plan = TrialPlan(masking, rounds, s.steps, eta, np.inf, s.trials, s.seed)
    found = run(problem, plan, set(places))
    points = np.concatenate([found.kept[r] for r in places])
    both = []
    for objective in (Masked(problem, masking), Masked(problem)):
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


def _claims(s: Settings, curves: dict[str, list[tuple[Array, Array]]]) -> list[Statement]:
    claims = []
    for label, values in curves.items():
        fitted, low, high = slope_interval(s.rounds, [v[0] for v in values])
        verdict = "yes" if fitted <= -0.35 else "no"
        claims.append(
            Statement(
                f"slope of mean ||grad||^2 of the masked objective, {label}",
                f"{fitted:.2f} [{low:.2f}, {high:.2f}]",
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


def _panels(s: Settings, curves: dict[str, list[tuple[Array, Array]]]) -> list[Panel]:
    def lines(which: int) -> list[Line]:
        return [Line.of(c, s.rounds, [v[which] for v in values]) for c, values in curves.items()]

    return [
        Panel("the objective that masking induces", "rounds R", "mean over r of ||grad F_p(w_r)||²",
              lines(0), -0.5),
        Panel("the original objective at the same points", "rounds R",
              "mean over r of ||grad F(w_r)||²", lines(1)),
    ]  # fmt: skip
