"""What the points say beyond their sweeps: floors, the output, and random against rolling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from submodel_lab.theory.bounds import BoundTerms
from submodel_lab.theory.studies.convergence.cases import (
    ConvergenceCase,
    ConvergenceSettings,
    convergence_base,
)
from submodel_lab.theory.studies.convergence.points import (
    CaseBench,
    ConvergencePoint,
    measure_floor,
)
from submodel_lab.theory.studies.convergence.sweeps import ConvergenceSweep
from submodel_lab.theory.verdicts import (
    Statement,
    Verdict,
    exact_measure,
    judge_at_most,
    judge_equal,
    judge_positive,
)


def floor_statements(s: ConvergenceSettings) -> list[Statement]:
    """F at the mean of late iterates is F(w*(p)) - F(w*) and what the drift of order eta K adds."""
    base = convergence_base(s)
    cases = {
        f"random, p={base.p:g}": base,
        f"random, p_i of 1 and {base.p:g}": replace(base, unequal=True),
        f"rolling, s/d={replace(base, rolls=True).share(s):g}": replace(base, rolls=True),
    }
    claims = []
    for name, case in cases.items():
        if case.share(s) == 1:
            continue  # nothing is masked: there is no floor
        floor, residual = measure_floor(s, case)
        source = "Theorem 3" if case.rolls else "Theorem 1"
        exact = floor.exact or 0.0
        claims += [
            Statement(source, "floor", name, "F at the mean of late iterates, with its drift",
                      floor, "=", exact, judge_equal(floor, exact)),
            Statement(source, "floor", name, "the same over F(w*(p)) - F*: what the drift adds",
                      exact_measure(exact / residual), "-", 1.0, Verdict.NUMBER),
        ]  # fmt: skip
    return claims


def output_statements(
    s: ConvergenceSettings, points: Sequence[ConvergencePoint]
) -> list[Statement]:
    """The output against the last iterate, the schemes against each other, at the largest R."""
    last = [p for p in points if p.case.rounds == max(s.rounds)]

    def find(rolls: bool, noise: float, kind: str, p: float) -> ConvergencePoint:
        return next(
            x for x in last
            if (x.case.rolls, x.case.noise, x.case.step_kind, x.case.p, x.case.unequal)
            == (rolls, noise, kind, p, False)
        )  # fmt: skip

    least = min(s.capacities)
    quiet = find(False, 0.0, "theorem", least)
    random, rolling = (
        find(False, s.noise, "theorem", least),
        find(True, s.noise, "theorem 1", least),
    )
    name = f"p={least:g}, R={max(s.rounds)}"
    claims = []
    if least < 1:
        above = quiet.output_gap.minus(quiet.gap)
        claims.append(
            Statement("Algorithm 1", "output", f"random, {name}, no noise",
                      "F(w^) - F(w_R): what the output step's fresh masks add", above, ">", 0.0,
                      judge_positive(above)))  # fmt: skip
    for what, one, other in (
        ("F(w^): random - rolling, equal coordinates and step size", random.output_gap,
         rolling.output_gap),
        ("||w_R - w*||^2 to each one's optimum: random - rolling", random.error, rolling.error),
    ):  # fmt: skip
        difference = one.minus(other)
        claims.append(Statement("", "scheme", name, what, difference, ">", 0.0,
                                judge_positive(difference)))  # fmt: skip
    return claims


def step_statements(
    s: ConvergenceSettings,
    sweeps: Sequence[ConvergenceSweep],
    points: dict[ConvergenceCase, ConvergencePoint],
) -> list[Statement]:
    """What each choice of step sizes comes to at the largest R: numbers, nothing is stated."""
    base = convergence_base(s)
    cases = [(sweep.label, sweep.cases[-1]) for sweep in sweeps]
    return [
        Statement("", "step size", f"{label}, R={case.rounds}", "E||w_R - w*||^2",
                  points[case].error, "-", None, Verdict.NUMBER)
        for label, case in cases
        if replace(case, rounds=base.rounds, step_kind=base.step_kind) == base
    ]  # fmt: skip


def bound_statements(
    sweeps: Sequence[ConvergenceSweep], points: dict[ConvergenceCase, ConvergencePoint]
) -> list[Statement]:
    """Whether the error is below the bound of the theorem's proof, at the largest R."""
    claims: list[Statement] = []
    for sweep in sweeps:
        point = points[sweep.cases[-1]]
        if point.case.source != "Theorem 1" or point.step.unmet[:1] == ("one's own step size",):
            continue
        ratio = point.error.times(1 / point.ceiling.total)
        claims.append(
            Statement("Theorem 1", "value", f"{sweep.label}, R={point.case.rounds}",
                      "E||w_R - w*||^2 over the bound of the proof", ratio, "<=", 1.0,
                      judge_at_most(ratio, 1.0), point.step.note))  # fmt: skip
    return claims


def long_run(
    s: ConvergenceSettings, case: ConvergenceCase, factors: Sequence[int] = (1, 4, 16, 64)
) -> tuple[list[int], list[float], list[BoundTerms]]:
    """R, the exact E||w_R - w*||^2 and the proof's bound, for R that trials do not reach."""
    rounds = [max(s.rounds) * factor for factor in factors]
    errors: list[float] = []
    limits: list[BoundTerms] = []
    for number in rounds:
        bench = CaseBench(s, replace(case, rounds=number))
        step = bench.choose_step()
        errors.append(float(bench.exact(bench.plan(step)).distances[-1]))
        limits.append(bench.ceiling(step.eta))
    return rounds, errors, limits
