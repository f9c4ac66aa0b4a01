"""Theorems 5 and 6: how far one changed example moves the trained model."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

import numpy as np

from submodel.theory.data import Directions
from submodel.theory.lab import TrialPlan, run_trials
from submodel.theory.masking import bernoulli, rolling
from submodel.theory.problems import FloatArray, Logistic, TheoryError
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
from submodel.theory.theorems import theorem_5, theorem_6

_TOLERANCE = 0.15


@dataclass(frozen=True)
class StabilitySettings:
    """Logistic regression, convex but not strongly; every trial draws its own dataset."""

    capacities: tuple[float, ...] = (1.0, 0.75, 0.5, 0.25)
    examples: tuple[int, ...] = (16, 32, 64, 128)
    clients: tuple[int, ...] = (2, 4, 8)
    dimension: int = 10
    heterogeneity: float = 0.3
    rounds: int = 60
    steps: int = 2
    radius: float = 50.0
    trials: int = 300
    seed: int = 0


@dataclass(frozen=True)
class StabilityCase:
    """One setting of the sweep."""

    p: float
    n: int
    clients: int
    rolls: bool = False


def neighbours(source: Directions, trials: int, n: int) -> tuple[Logistic, Logistic]:
    """Datasets S and S^(i): client 0's first example is redrawn. Examples are exchangeable."""
    x, y = source.draw(trials, n, "examples")
    new_x, new_y = source.draw(trials, 1, "redrawn")
    other_x, other_y = x.copy(), y.copy()
    other_x[0, :, 0], other_y[0, :, 0] = new_x[0, :, 0], new_y[0, :, 0]
    return Logistic(x, y), Logistic(other_x, other_y)


def neighbour_distances(
    s: StabilitySettings, case: StabilityCase
) -> tuple[FloatArray, FloatArray, str]:
    """||w^ - w^'|| and ||w_R - w_R'|| of every trial, with shared randomness; the condition."""
    source = Directions(case.clients, s.dimension, s.heterogeneity, s.seed)
    first, second = neighbours(source, s.trials, case.n)
    if case.rolls:
        masking = rolling(case.p, case.clients, s.dimension)
        epochs = s.rounds // s.dimension
        step = theorem_6(first, case.n, s.steps, s.dimension, epochs)
    else:
        masking = bernoulli(case.p, case.clients)
        step = theorem_5(first, case.p, case.n, s.steps, s.rounds)
    plan = TrialPlan(masking, s.rounds, s.steps, step.eta, s.radius, s.trials, s.seed)
    # the output step of both uses one 1/L: with two, the distance would show the change of L
    one, other = (
        run_trials(_LogisticOfSmoothness.of(problem, first.smoothness), plan, [s.rounds])
        for problem in (first, second)
    )
    output = np.linalg.norm(one.output - other.output, axis=1)
    iterate = np.linalg.norm(one.iterates[s.rounds] - other.iterates[s.rounds], axis=1)
    return output, iterate, step.note


@dataclass(frozen=True)
class _LogisticOfSmoothness(Logistic):
    """A logistic problem whose L is not its own."""

    fixed_smoothness: float = 1.0

    @classmethod
    def of(cls, problem: Logistic, smoothness: float) -> _LogisticOfSmoothness:
        return cls(problem.x, problem.y, problem.l2, smoothness)

    @property
    def smoothness(self) -> float:
        return self.fixed_smoothness


def study_stability(s: StabilitySettings, on_progress: OnProgress = report_nothing) -> Study:
    """Measure everything."""
    if s.trials < 2:
        raise TheoryError(f"trials = {s.trials}: at least 2 are needed for an interval")
    if s.rounds % s.dimension or s.rounds < s.dimension:
        raise TheoryError(f"rounds = {s.rounds}: not whole epochs of d = {s.dimension} windows")
    middle = s.clients[len(s.clients) // 2]
    base = StabilityCase(1.0, s.examples[len(s.examples) // 2], middle)
    cases = [StabilityCase(p, n, middle) for p in s.capacities for n in s.examples]
    cases += [replace(base, p=min(s.capacities), clients=c) for c in s.clients]
    cases += [replace(base, p=1.0, clients=c) for c in s.clients]
    cases += [replace(base, p=p, rolls=True) for p in s.capacities]
    cases = list(dict.fromkeys(cases))
    distances: dict[StabilityCase, FloatArray] = {}
    iterate_distances: dict[StabilityCase, FloatArray] = {}
    rows = []
    for number, case in enumerate(cases):
        distances[case], iterate_distances[case], note = neighbour_distances(s, case)
        mean, low, high = interval(distances[case])
        source = Directions(case.clients, s.dimension, s.heterogeneity, s.seed)
        rows.append({
            "scheme": "rolling" if case.rolls else "random", "p": case.p, "n": case.n,
            "N": case.clients, "distance": mean, "low": low, "high": high,
            "of w_R": float(iterate_distances[case].mean()),
            "1/sqrt(Nn)": 1 / math.sqrt(case.clients * case.n), "D_max": source.distance,
            "condition": note,
        })  # fmt: skip
        on_progress(number + 1, len(cases))
    settings = {**asdict(s), "D_max": "see rows"}
    notes = sorted({f"theorem's condition {r['condition']}" for r in rows} - {
        "theorem's condition met"})  # fmt: skip
    return Study(
        "stability",
        "Theorems 5 and 6: one changed example, shared randomness",
        settings,
        rows,
        _panels(s, distances, iterate_distances, base),
        _claims(s, distances, iterate_distances, base),
        notes,
    )


def _claims(
    s: StabilitySettings,
    distances: dict[StabilityCase, FloatArray],
    iterate_distances: dict[StabilityCase, FloatArray],
    base: StabilityCase,
) -> list[Statement]:
    claims = []
    for rolls in (False, True):
        chain = sorted(s.capacities, reverse=True)
        chain_distances = [distances[replace(base, p=p, rolls=rolls)] for p in chain]
        for (p, larger), (q, smaller) in zip(
            zip(chain, chain_distances, strict=True),
            list(zip(chain, chain_distances, strict=True))[1:],
            strict=False,
        ):
            mean, low, high = interval(larger - smaller)  # paired: the same datasets
            verdict = "yes" if low > 0 else ("no" if high < 0 else "undecided")
            name = "rolling" if rolls else "random"
            claims.append(
                Statement(
                    f"{name}: p={q:g} is more stable than p={p:g}",
                    f"{mean:.5f} [{low:.5f}, {high:.5f}] less",
                    "> 0",
                    verdict,
                )
            )
    for what, values_of in (("w^", distances), ("w_R", iterate_distances)):
        for p in s.capacities:
            cases = [StabilityCase(p, n, base.clients) for n in s.examples]
            claims.append(_slope_claim(f"{what}, n varies, p={p:g}", cases, values_of))
        for p in (1.0, min(s.capacities)):
            cases = [replace(base, p=p, clients=c) for c in s.clients]
            claims.append(_slope_claim(f"{what}, N varies, p={p:g}", cases, values_of))
    return claims


def _slope_claim(
    what: str, cases: list[StabilityCase], values: dict[StabilityCase, FloatArray]
) -> Statement:
    x = [float(c.clients * c.n) for c in cases]
    slope, low, high = slope_interval(x, [values[c] for c in cases])
    close = "shallower, within 0.15" if slope <= -0.5 + _TOLERANCE else "no"
    verdict = "undecided" if math.isnan(slope) else "yes" if low <= -0.5 else close
    measurement = f"{slope:.2f} [{low:.2f}, {high:.2f}]"
    return Statement(f"slope in N n: {what}", measurement, "-0.5 or steeper", verdict)


def _panels(
    s: StabilitySettings,
    distances: dict[StabilityCase, FloatArray],
    iterate_distances: dict[StabilityCase, FloatArray],
    base: StabilityCase,
) -> list[Panel]:
    x = [float(base.clients * n) for n in s.examples]
    ascending = sorted(s.capacities)
    by_clients = [float(c * base.n) for c in s.clients]
    return [
        Panel("by the number of examples", "N n (n varies)", "E||w^ - w^'||",
              [PlotLine.of(f"p={p:g}", x,
                           [distances[StabilityCase(p, n, base.clients)] for n in s.examples])
               for p in s.capacities], -0.5),
        Panel("by the number of clients", "N n (N varies)", "E||w^ - w^'||",
              [PlotLine.of(f"p={p:g}", by_clients,
                       [distances[replace(base, p=p, clients=c)] for c in s.clients])
               for p in (1.0, min(s.capacities))], -0.5),
        Panel("the iterate w_R, before the output step", "N n (n varies)", "E||w_R - w_R'||",
              [PlotLine.of(f"p={p:g}", x, [iterate_distances[StabilityCase(p, n, base.clients)]
                                           for n in s.examples])
               for p in s.capacities], -0.5),
        Panel(f"by the capacity, N={base.clients}, n={base.n}", "p", "E||w^ - w^'||",
              [PlotLine.of("rolling" if rolls else "random", ascending,
                       [distances[replace(base, p=p, rolls=rolls)] for p in ascending])
               for rolls in (False, True)], log=(False, False)),
    ]  # fmt: skip
