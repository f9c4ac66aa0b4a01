"""Theorems 5 and 6: how far one changed example moves the trained model."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

import numpy as np

from submodel.theory.data import Directions
from submodel.theory.lab import TrialPlan, run
from submodel.theory.masked import bernoulli, rolling
from submodel.theory.problems import Array, Logistic, TheoryError
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
from submodel.theory.theorems import theorem_5, theorem_6

_TOLERANCE = 0.15


@dataclass(frozen=True)
class Settings:
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
class Case:
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


def distances(s: Settings, case: Case) -> tuple[Array, Array, str]:
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
        run(_Fixed.of(problem, first.smoothness), plan, [s.rounds]) for problem in (first, second)
    )
    output = np.linalg.norm(one.output - other.output, axis=1)
    return output, np.linalg.norm(one.kept[s.rounds] - other.kept[s.rounds], axis=1), step.note


@dataclass(frozen=True)
class _Fixed(Logistic):
    """A logistic problem with a given L."""

    given: float = 1.0

    @classmethod
    def of(cls, problem: Logistic, smoothness: float) -> _Fixed:
        return cls(problem.x, problem.y, problem.l2, smoothness)

    @property
    def smoothness(self) -> float:
        return self.given


def study(s: Settings, report: Report = silent) -> Study:
    """Measure everything."""
    if s.trials < 2:
        raise TheoryError(f"trials = {s.trials}: at least 2 are needed for an interval")
    if s.rounds % s.dimension or s.rounds < s.dimension:
        raise TheoryError(f"rounds = {s.rounds}: not whole epochs of d = {s.dimension} windows")
    middle = s.clients[len(s.clients) // 2]
    base = Case(1.0, s.examples[len(s.examples) // 2], middle)
    wanted = [Case(p, n, middle) for p in s.capacities for n in s.examples]
    wanted += [replace(base, p=min(s.capacities), clients=c) for c in s.clients]
    wanted += [replace(base, p=1.0, clients=c) for c in s.clients]
    wanted += [replace(base, p=p, rolls=True) for p in s.capacities]
    wanted = list(dict.fromkeys(wanted))
    found: dict[Case, Array] = {}
    before: dict[Case, Array] = {}
    rows = []
    for number, case in enumerate(wanted):
        found[case], before[case], note = distances(s, case)
        mean, low, high = interval(found[case])
        source = Directions(case.clients, s.dimension, s.heterogeneity, s.seed)
        rows.append({
            "scheme": "rolling" if case.rolls else "random", "p": case.p, "n": case.n,
            "N": case.clients, "distance": mean, "low": low, "high": high,
            "of w_R": float(before[case].mean()),
            "1/sqrt(Nn)": 1 / math.sqrt(case.clients * case.n), "D_max": source.distance,
            "condition": note,
        })  # fmt: skip
        report(number + 1, len(wanted))
    settings = {**asdict(s), "D_max": "see rows"}
    notes = sorted({f"theorem's condition {r['condition']}" for r in rows} - {
        "theorem's condition met"})  # fmt: skip
    return Study(
        "stability",
        "Theorems 5 and 6: one changed example, shared randomness",
        settings,
        rows,
        _panels(s, found, before, base),
        _claims(s, found, before, base),
        notes,
    )


def _claims(
    s: Settings, found: dict[Case, Array], before: dict[Case, Array], base: Case
) -> list[Statement]:
    claims = []
    for rolls in (False, True):
        chain = sorted(s.capacities, reverse=True)
        own = [found[replace(base, p=p, rolls=rolls)] for p in chain]
        for (p, larger), (q, smaller) in zip(
            zip(chain, own, strict=True), list(zip(chain, own, strict=True))[1:], strict=False
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
    for what, values_of in (("w^", found), ("w_R", before)):
        for p in s.capacities:
            chosen = [Case(p, n, base.clients) for n in s.examples]
            claims.append(_slope_claim(f"{what}, n varies, p={p:g}", chosen, values_of))
        for p in (1.0, min(s.capacities)):
            chosen = [replace(base, p=p, clients=c) for c in s.clients]
            claims.append(_slope_claim(f"{what}, N varies, p={p:g}", chosen, values_of))
    return claims


def _slope_claim(what: str, chosen: list[Case], values: dict[Case, Array]) -> Statement:
    x = [float(c.clients * c.n) for c in chosen]
    fitted, low, high = slope_interval(x, [values[c] for c in chosen])
    close = "shallower, within 0.15" if fitted <= -0.5 + _TOLERANCE else "no"
    verdict = "undecided" if math.isnan(fitted) else "yes" if low <= -0.5 else close
    shown = f"{fitted:.2f} [{low:.2f}, {high:.2f}]"
    return Statement(f"slope in N n: {what}", shown, "-0.5 or steeper", verdict)


def _panels(
    s: Settings, found: dict[Case, Array], before: dict[Case, Array], base: Case
) -> list[Panel]:
    x = [float(base.clients * n) for n in s.examples]
    ascending = sorted(s.capacities)
    by_clients = [float(c * base.n) for c in s.clients]
    return [
        Panel("by the number of examples", "N n (n varies)", "E||w^ - w^'||",
              [Line.of(f"p={p:g}", x, [found[Case(p, n, base.clients)] for n in s.examples])
               for p in s.capacities], -0.5),
        Panel("by the number of clients", "N n (N varies)", "E||w^ - w^'||",
              [Line.of(f"p={p:g}", by_clients,
                       [found[replace(base, p=p, clients=c)] for c in s.clients])
               for p in (1.0, min(s.capacities))], -0.5),
        Panel("the iterate w_R, before the output step", "N n (n varies)", "E||w_R - w_R'||",
              [Line.of(f"p={p:g}", x, [before[Case(p, n, base.clients)] for n in s.examples])
               for p in s.capacities], -0.5),
        Panel(f"by the capacity, N={base.clients}, n={base.n}", "p", "E||w^ - w^'||",
              [Line.of("rolling" if rolls else "random", ascending,
                       [found[replace(base, p=p, rolls=rolls)] for p in ascending])
               for rolls in (False, True)], log=(False, False)),
    ]  # fmt: skip
