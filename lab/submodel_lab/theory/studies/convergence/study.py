"""The study of Theorems 1 and 3: every case is measured, then what the theorems say of them."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

from submodel_lab.theory.limits import balance
from submodel_lab.theory.results import OnProgress, ResultRow, Study, report_nothing
from submodel_lab.theory.studies.comparison import slope_statement
from submodel_lab.theory.studies.convergence.cases import (
    ConvergenceCase,
    ConvergenceSettings,
    check_rounds,
    convergence_base,
)
from submodel_lab.theory.studies.convergence.panels import convergence_panels
from submodel_lab.theory.studies.convergence.points import (
    CaseBench,
    ConvergencePoint,
    measure_point,
)
from submodel_lab.theory.studies.convergence.statements import (
    bound_statements,
    floor_statements,
    long_run,
    output_statements,
    step_statements,
)
from submodel_lab.theory.studies.convergence.sweeps import parameter_sweeps, round_sweeps
from submodel_lab.theory.verdicts import Statement, Verdict, exact_measure, judge_at_most

_CLOSE = 0.01  # of a limit


def study_convergence(s: ConvergenceSettings, on_progress: OnProgress = report_nothing) -> Study:
    """Measure everything."""
    check_rounds(s)
    by_rounds, others = round_sweeps(s), parameter_sweeps(s)
    sweeps = [*by_rounds, *others]
    cases = list(dict.fromkeys(case for sweep in sweeps for case in sweep.cases))
    total = sum(case.rounds for case in cases)
    points: dict[ConvergenceCase, ConvergencePoint] = {}
    rounds = 0
    for case in cases:
        points[case] = measure_point(s, case)
        rounds += case.rounds
        on_progress(rounds, total)
    claims = [sweep.statement(s, points) for sweep in sweeps]
    claims += bound_statements(by_rounds, points)
    quiet = replace(convergence_base(s), noise=0.0)
    long, noisy = long_run(s, quiet), long_run(s, convergence_base(s))
    for name, (many, errors, limits) in (("", noisy), (", no noise", long)):
        claims.append(slope_statement(
            "Theorem 1", "R", f"random, p={quiet.p:g}{name}, R={many[0]} to {many[-1]}",
            "exact E||w_R - w*||^2", many, [exact_measure(e) for e in errors], limits,
            speaks=s.eta is None))  # fmt: skip
    if s.eta is None:
        claims += [_limit_statement(s, many[-1], errors[-1], noise)
                   for (many, errors, _), noise in ((noisy, s.noise), (long, 0.0))
                   if noise or quiet.p < 1]  # fmt: skip
        ratio = exact_measure(long[1][-1] / long[2][-1].total)
        claims.append(Statement(
            "Theorem 1", "value", f"random, p={quiet.p:g}, no noise, R={long[0][-1]}",
            "exact E||w_R - w*||^2 over the bound of the proof", ratio, "<=", 1.0,
            judge_at_most(ratio, 1.0)))  # fmt: skip
    claims += floor_statements(s)
    claims += output_statements(s, list(points.values()))
    claims += step_statements(s, by_rounds, points)
    return Study(
        "convergence", "Theorems 1 and 3: convergence to w*(p), quadratics", asdict(s),
        [_row(s, point) for point in points.values()],
        convergence_panels(s, by_rounds, others, points, long), claims, _notes(points),
    )  # fmt: skip


def _limit_statement(s: ConvergenceSettings, rounds: int, error: float, noise: float) -> Statement:
    """The sharper statement: R E||w_R - w*||^2 / log(KR) has a limit, and which."""
    bench = CaseBench(s, replace(convergence_base(s), noise=noise))
    least = min(bench.masking.capacities) * s.mu
    limit = balance(bench.problem, bench.masking).rate_constant(s.steps, least)
    measure = exact_measure(rounds * error / math.log(s.steps * rounds))
    close = Verdict.YES if abs(measure.mean / limit - 1) < _CLOSE else Verdict.NO
    return Statement("Theorem A", "R", f"random, p={bench.case.p:g}, noise {noise:g}, R={rounds}",
                     "exact R E||w_R - w*||^2 / log(KR)", measure, "->", limit, close)  # fmt: skip


def _row(s: ConvergenceSettings, point: ConvergencePoint) -> ResultRow:
    case = point.case
    return ResultRow(
        {
            "scheme": "rolling" if case.rolls else "random",
            "p": case.p, "share": point.share, "unequal": case.unequal, "R": case.rounds,
            "K": case.steps, "N": case.clients, "d": s.dimension, "mu": s.mu,
            "L": case.smoothness, "heterogeneity": s.heterogeneity, "spread": case.spread,
            "noise": case.noise,
            "step": case.step_kind, "eta": point.step.eta, "seed": s.seed,
        },
        {"distance2": point.error, "F(w_R)-F*": point.gap, "F(w^)-F*": point.output_gap},
        {"residual": point.residual, "bound": point.ceiling.total,
         "projections": float(point.projections),
         "condition": point.step.note},
    )  # fmt: skip


def _notes(points: dict[ConvergenceCase, ConvergencePoint]) -> list[str]:
    """One line per kind of case whose theorem's condition is not met."""
    lines: dict[str, list[str]] = {}
    for case, point in points.items():
        if case.source and point.step.unmet:
            lines.setdefault(f"{case.source}, {case.words}", []).append(point.step.note)
    counts = {key: sum(case.source + ", " + case.words == key for case in points) for key in lines}
    return [
        f"{key}: at {len(notes)} of {counts[key]} points the theorem's condition is {notes[-1]}"
        for key, notes in lines.items()
    ]
