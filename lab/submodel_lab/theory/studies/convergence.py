"""Theorems 1 and 3: the rate to w*(p), the floor of F, random against rolling masks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from operator import attrgetter

from submodel_lab.theory.drawing import Panel, PlotLine, guide_through
from submodel_lab.theory.limits import balance
from submodel_lab.theory.measures import (
    Measure,
    Statement,
    Verdict,
    exact_measure,
    judge_at_most,
    judge_equal,
    judge_positive,
)
from submodel_lab.theory.results import OnProgress, ResultRow, Study, report_nothing
from submodel_lab.theory.studies.convergence_cases import (
    ConvergenceCase,
    ConvergencePoint,
    ConvergenceSettings,
    convergence_base,
    measure_floor,
    measure_point,
)
from submodel_lab.theory.studies.sweeps import Sweep, run_cases, slope_statement
from submodel_lab.theory.theorems import BoundTerms

_ERROR = "E||w_R - w*||^2"
_CLOSE = 0.01  # of a limit
_AXIS = "rounds R"

Points = Mapping[ConvergenceCase, ConvergencePoint]
Sweeps = Sequence[Sweep[ConvergenceCase]]
LongRun = tuple[list[int], list[float], list[BoundTerms]]
"""R, the exact E||w_R - w*||^2 and the proof's bound, for R that trials do not reach."""


def round_sweeps(s: ConvergenceSettings) -> list[Sweep[ConvergenceCase]]:
    """Along R: by p, without noise, rolling, and other step sizes at the smallest p."""
    base = convergence_base(s)
    least, rolling = f"random, p={base.p:g}", replace(base, rolls=True)
    cases = [
        *((f"random, p={p:g}", replace(base, p=p)) for p in s.capacities),
        (f"random, p_i of 1 and {base.p:g}", replace(base, unequal=True)),
        ("random, p=1, no noise", replace(base, p=1.0, noise=0.0)),
        (f"{least}, no noise", replace(base, noise=0.0)),
        (rolling.words, rolling),
        (f"{rolling.words}, no noise", replace(rolling, noise=0.0)),
        (f"{rolling.words}, Thm 1's step", replace(rolling, step_kind="theorem 1")),
        (f"{least}, tuned step", replace(base, step_kind="tuned")),
        (f"{least}, decaying step", replace(base, step_kind="decaying")),
        (f"{least}, averaged iterates", replace(base, step_kind="averaged")),
    ]
    return [Sweep.along("R", case, "rounds", s.rounds, label) for label, case in cases]


def parameter_sweeps(s: ConvergenceSettings) -> list[Sweep[ConvergenceCase]]:
    """Along K, N, p, kappa, noise and heterogeneity, with random and with rolling masks."""
    sweeps: list[Sweep[ConvergenceCase]] = []
    kappas = [ell / s.mu for ell in s.sweep_smoothness]
    for rolls in (False, True):
        base = replace(convergence_base(s), rolls=rolls)
        name, copied = base.words, replace(base, kinds=min(s.sweep_clients))
        p_values = sorted(s.sweep_capacities, reverse=True)
        inverses = [1 / replace(base, p=p).share for p in p_values]
        sweeps += [
            Sweep.along("K", base, "steps", s.sweep_steps, name),
            Sweep.along("N", copied, "clients", s.sweep_clients, f"{name}, clients copied"),
            Sweep.along("1/p", base, "p", p_values, base.scheme, inverses),
            Sweep.along("kappa", base, "smoothness", s.sweep_smoothness, name, kappas),
            Sweep.along("noise", base, "noise", s.sweep_noise, name),
            Sweep.along("zeta", replace(base, noise=0.0), "spread", s.sweep_spread,
                        f"{name}, no noise"),
        ]  # fmt: skip
    whole, name = replace(convergence_base(s), p=1.0, noise=0.0), "random, p=1, no noise"
    return [
        *sweeps,
        Sweep.along("zeta", whole, "spread", s.sweep_spread, name),
        Sweep.along("kappa", whole, "smoothness", s.sweep_smoothness, name, kappas),
    ]


def study_convergence(s: ConvergenceSettings, on_progress: OnProgress = report_nothing) -> Study:
    """Measure every case, then say what the theorems say of them."""
    s.check()
    by_rounds, others = round_sweeps(s), parameter_sweeps(s)
    sweeps, judges = [*by_rounds, *others], s.eta is None
    points = run_cases((case for sweep in sweeps for case in sweep.cases), measure_point,
                       on_progress, lambda case: case.rounds)  # fmt: skip
    claims = [w.statement(points, _ERROR, attrgetter("error"), bool(w.cases[0].source) and judges)
              for w in sweeps]  # fmt: skip
    claims += _bound_statements(by_rounds, points)
    base = convergence_base(s)
    quiet = replace(base, noise=0.0)
    noisy, long = _long_run(base), _long_run(quiet)
    for name, (many, errors, limits) in (("", noisy), (", no noise", long)):
        claims.append(slope_statement(
            "Theorem 1", "R", f"{base.words}{name}, R={many[0]} to {many[-1]}",
            "exact E||w_R - w*||^2", many, [exact_measure(e) for e in errors], limits,
            speaks=judges))  # fmt: skip
    if judges:
        claims += [_limit_statement(case, many[-1], errors[-1])
                   for (many, errors, _), case in ((noisy, base), (long, quiet))
                   if case.noise or case.p < 1]  # fmt: skip
        ratio = exact_measure(long[1][-1] / long[2][-1].total)
        claims.append(Statement(
            "Theorem 1", "value", f"{base.words}, no noise, R={long[0][-1]}",
            "exact E||w_R - w*||^2 over the bound of the proof", ratio, "<=", 1.0,
            judge_at_most(ratio, 1.0)))  # fmt: skip
    claims += floor_statements(s)
    claims += _output_statements(base, points)
    claims += [
        Statement("", "step size", f"{sweep.label}, R={case.rounds}", _ERROR, points[case].error,
                  "-", None, Verdict.NUMBER)
        for sweep in by_rounds
        for case in sweep.cases[-1:]
        if replace(case, rounds=base.rounds, step_kind=base.step_kind) == base
    ]  # fmt: skip
    return Study(
        "convergence", "Theorems 1 and 3: convergence to w*(p), quadratics", asdict(s),
        [_row(point) for point in points.values()],
        _panels(base, by_rounds, others, points, long), claims, _notes(points),
    )  # fmt: skip


def _bound_statements(sweeps: Sweeps, points: Points) -> list[Statement]:
    """Whether the error is below the bound of the theorem's proof, at the largest R."""
    claims: list[Statement] = []
    for sweep in sweeps:
        point = points[sweep.cases[-1]]
        if point.case.source != "Theorem 1" or point.case.s.eta is not None:
            continue
        ratio = point.error.times(1 / point.ceiling.total)
        claims.append(
            Statement("Theorem 1", "value", f"{sweep.label}, R={point.case.rounds}",
                      "E||w_R - w*||^2 over the bound of the proof", ratio, "<=", 1.0,
                      judge_at_most(ratio, 1.0), point.step.note))  # fmt: skip
    return claims


def _long_run(case: ConvergenceCase) -> LongRun:
    rounds = [max(case.s.rounds) * factor for factor in (1, 4, 16, 64)]
    errors: list[float] = []
    limits: list[BoundTerms] = []
    for number in rounds:
        longer = replace(case, rounds=number)
        step = longer.choose_step()
        errors.append(float(longer.exact(longer.plan(step)).distances[-1]))
        limits.append(longer.ceiling(step.eta))
    return rounds, errors, limits


def _limit_statement(case: ConvergenceCase, rounds: int, error: float) -> Statement:
    """The sharper statement: R E||w_R - w*||^2 / log(KR) has a limit, and which."""
    least = min(case.masking.capacities) * case.s.mu
    limit = balance(case.problem, case.masking).rate_constant(case.steps, least)
    measure = exact_measure(rounds * error / math.log(case.steps * rounds))
    close = Verdict.YES if abs(measure.mean / limit - 1) < _CLOSE else Verdict.NO
    return Statement("Theorem A", "R", f"{case.words}, noise {case.noise:g}, R={rounds}",
                     "exact R E||w_R - w*||^2 / log(KR)", measure, "->", limit, close)  # fmt: skip


def floor_statements(s: ConvergenceSettings) -> list[Statement]:
    """F at the mean of late iterates is F(w*(p)) - F(w*) and what the drift of order eta K adds."""
    base = convergence_base(s)
    rolling = replace(base, rolls=True)
    claims = []
    for name, case in (
        (base.words, base),
        (f"random, p_i of 1 and {base.p:g}", replace(base, unequal=True)),
        (rolling.words, rolling),
    ):
        if case.share == 1:
            continue  # nothing is masked: there is no floor
        floor, residual = measure_floor(case)
        exact = floor.exact or 0.0
        claims += [
            Statement(case.source, "floor", name, "F at the mean of late iterates, with its drift",
                      floor, "=", exact, judge_equal(floor, exact)),
            Statement(case.source, "floor", name,
                      "the same over F(w*(p)) - F*: what the drift adds",
                      exact_measure(exact / residual), "-", 1.0, Verdict.NUMBER),
        ]  # fmt: skip
    return claims


def _output_statements(base: ConvergenceCase, points: Points) -> list[Statement]:
    """The output against the last iterate, the schemes against each other, at the largest R."""
    base = replace(base, rounds=max(base.s.rounds))
    quiet, random = points[replace(base, noise=0.0)], points[base]
    rolling = points[replace(base, rolls=True, step_kind="theorem 1")]
    name = f"p={base.p:g}, R={base.rounds}"
    claims = []
    if base.p < 1:
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


def _row(point: ConvergencePoint) -> ResultRow:
    case, s = point.case, point.case.s
    return ResultRow(
        {
            "scheme": case.scheme,
            "p": case.p, "share": case.share, "unequal": case.unequal, "R": case.rounds,
            "K": case.steps, "N": case.clients, "d": s.dimension, "mu": s.mu,
            "L": case.smoothness, "heterogeneity": s.heterogeneity, "spread": case.spread,
            "noise": case.noise,
            "step": case.step_kind, "eta": point.step.eta, "seed": s.seed,
        },
        {"distance2": point.error, "F(w_R)-F*": point.gap, "F(w^)-F*": point.output_gap},
        {"residual": case.residual, "bound": point.ceiling.total,
         "projections": float(point.projections),
         "condition": point.step.note},
    )  # fmt: skip


def _notes(points: Points) -> list[str]:
    """One line per kind of case whose theorem's condition is not met."""
    by_kind: dict[str, list[ConvergencePoint]] = {}
    for case, point in points.items():
        if case.source:
            by_kind.setdefault(f"{case.source}, {case.kind}", []).append(point)
    notes = {kind: [p.step.note for p in run if p.step.unmet] for kind, run in by_kind.items()}
    return [
        f"{kind}: at {len(unmet)} of {len(by_kind[kind])} points the theorem's condition is "
        f"{unmet[-1]}"
        for kind, unmet in notes.items()
        if unmet
    ]


def _panels(
    base: ConvergenceCase, by_rounds: Sweeps, others: Sweeps, points: Points, long: LongRun
) -> list[Panel]:
    """All panels; slopes are drawn only where a theorem states them."""
    s = base.s

    def over_log(point: ConvergencePoint) -> Measure:
        return point.error.times(1 / math.log(point.case.steps * point.case.rounds))

    noisy = [w for w in by_rounds if w.cases[0].source == "Theorem 1" and w.cases[0].noise]
    quiet = [w for w in by_rounds if not w.cases[0].noise]
    kinds = [w for w in by_rounds if not w.cases[0].rolls and w.cases[0].noise
             and w.cases[0].p == base.p and not w.cases[0].unequal]  # fmt: skip
    rates, floors = (
        [w.line(points, over_log) for w in noisy],
        [w.line(points, attrgetter("error")) for w in quiet],
    )
    guides = []
    if s.eta is None:
        guides = [guide_through(rates[0], -1.0, "Theorem 1")]
        floors += [
            _log_line(s, floors[0], 2, "Theorem 1: slope -2, log²(KR)/R²", "k:"),
            _log_line(s, floors[1], 1, "the masks' variance: slope -1, log(KR)/R", "k--"),
        ]
    return [
        Panel("to the masked optimum, with noise", _AXIS, "E||w_R - w*(p)||² / log(KR)", rates,
              guides),
        Panel("to the masked optimum, without noise", _AXIS, "E||w_R - w*||²", floors),
        _floor_panel(base, points),
        _scheme_panel(base, points),
        Panel("step sizes, random masks with noise", _AXIS, "E||w_R - w*(p)||²",
              [w.line(points, attrgetter("error")) for w in kinds]),
        Panel("no noise, far beyond trials: exact, and the proof's bound", _AXIS,
              "E||w_R - w*(p)||²",
              [PlotLine("exact", long[0], long[1]),
               PlotLine("bound of Theorem 1's proof", long[0], [b.total for b in long[2]],
                        style="k--s")]),
        _ratio_panel("Theorem 1", others, points),
        _ratio_panel("Theorem 3", others, points),
    ]  # fmt: skip


def _log_line(
    s: ConvergenceSettings, line: PlotLine, power: int, label: str, style: str
) -> PlotLine:
    """(log(KR)/R)^power through the first point of a curve."""
    values = [(math.log(s.steps * r) / r) ** power for r in s.rounds]
    return PlotLine(label, s.rounds, [line.mean[0] * v / values[0] for v in values], style=style)


def _gap_lines(case: ConvergenceCase, points: Points, prefix: str = "") -> list[PlotLine]:
    """F of the last iterate and of the output, along R."""
    sweep = Sweep.along("R", case, "rounds", case.s.rounds, f"{prefix}F(w_R)")
    output = replace(sweep, label=f"{prefix}F(w^)").line(points, attrgetter("output_gap"))
    return [sweep.line(points, attrgetter("gap")), replace(output, style="--s")]


def _floor_panel(base: ConvergenceCase, points: Points) -> Panel:
    """F of the last iterate and of the output without noise, with both floors."""
    quiet = replace(base, noise=0.0)
    last = points[replace(quiet, rounds=base.s.rounds[-1])]
    levels = {"residual F(w*(p)) - F*": last.case.residual}
    if last.output_gap.exact is not None:
        levels["floor of the output, E F(w^) - F* (exact)"] = last.output_gap.exact
    return Panel(f"the original objective, random p={base.p:g}, no noise", _AXIS, "E F - F(w*)",
                 _gap_lines(quiet, points), levels=levels)  # fmt: skip


def _scheme_panel(base: ConvergenceCase, points: Points) -> Panel:
    rolling = replace(base, rolls=True, step_kind="theorem 1")
    lines = [*_gap_lines(base, points, "random: "), *_gap_lines(rolling, points, "rolling: ")]
    return Panel("random against rolling, equal coordinates and steps", _AXIS, "E F - F(w*)", lines,
                 levels={"residual, random": base.residual,
                         "residual, rolling": rolling.residual})  # fmt: skip


def _ratio_panel(source: str, sweeps: Sweeps, points: Points) -> Panel:
    """The error over the bound's leading terms: where it rises, a dependence is missing."""
    lines = []
    for sweep in sweeps:
        first = sweep.cases[0]
        if first.source != source:
            continue
        run = [points[case] for case in sweep.cases]
        limits = [sum(p.ceiling.terms[name] for name in p.ceiling.leading) for p in run]
        start = run[0].error.mean / limits[0]
        measures = [p.error.times(1 / (b * start)) for p, b in zip(run, limits, strict=True)]
        x = [value / sweep.x[0] for value in sweep.x]
        quiet = "" if first.noise else ", no noise"
        label = f"{sweep.parameter} from {sweep.x[0]:g}, p={first.share:g}{quiet}"
        lines.append(PlotLine.of_measures(label, x, measures))
    return Panel(f"{source}: error over its leading term", "parameter / its first value",
                 "ratio / its first value", lines, levels={"may not rise": 1.0})  # fmt: skip
