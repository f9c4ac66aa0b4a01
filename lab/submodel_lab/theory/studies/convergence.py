"""Theorems 1 and 3: the rate to w*(p), the floor of F, random against rolling masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from submodel_lab.theory.drawing import Panel, PlotLine, guide_through
from submodel_lab.theory.limits import balance
from submodel_lab.theory.measures import (
    Statement,
    Verdict,
    exact_measure,
    judge_at_most,
    judge_equal,
    judge_positive,
)
from submodel_lab.theory.results import OnProgress, ResultRow, Study, report_nothing
from submodel_lab.theory.studies.convergence_cases import (
    CaseBench,
    ConvergenceCase,
    ConvergencePoint,
    ConvergenceSettings,
    check_rounds,
    convergence_base,
    measure_floor,
    measure_point,
)
from submodel_lab.theory.studies.sweeps import slope_statement, worst_condition
from submodel_lab.theory.theorems import BoundTerms

_ERROR = "E||w_R - w*||^2"
_CLOSE = 0.01  # of a limit
_AXIS = "rounds R"


@dataclass(frozen=True)
class ConvergenceSweep:
    """Cases along one parameter."""

    parameter: str
    x: Sequence[float]
    cases: Sequence[ConvergenceCase]
    label: str

    def statement(
        self, s: ConvergenceSettings, points: dict[ConvergenceCase, ConvergencePoint]
    ) -> Statement:
        """Whether the error moves along the parameter as the theorem's bound does."""
        run = [points[case] for case in self.cases]
        first = self.cases[0]
        speaks = bool(first.source) and s.eta is None
        return slope_statement(
            first.source, self.parameter, self.label, _ERROR, self.x, [p.error for p in run],
            [p.ceiling for p in run], worst_condition([p.step for p in run]), speaks,
        )  # fmt: skip


def round_sweeps(s: ConvergenceSettings) -> list[ConvergenceSweep]:
    """Along R: by p, without noise, rolling, and other step sizes at the smallest p."""
    base = convergence_base(s)
    least = base.p
    cases = [
        *((f"random, p={p:g}", replace(base, p=p)) for p in s.capacities),
        (f"random, p_i of 1 and {least:g}", replace(base, unequal=True)),
        ("random, p=1, no noise", replace(base, p=1.0, noise=0.0)),
        (f"random, p={least:g}, no noise", replace(base, noise=0.0)),
        (_rolling_name(s, base), replace(base, rolls=True)),
        (f"{_rolling_name(s, base)}, no noise", replace(base, rolls=True, noise=0.0)),
        (f"{_rolling_name(s, base)}, Thm 1's step",
         replace(base, rolls=True, step_kind="theorem 1")),
        (f"random, p={least:g}, tuned step", replace(base, step_kind="tuned")),
        (f"random, p={least:g}, decaying step", replace(base, step_kind="decaying")),
        (f"random, p={least:g}, averaged iterates", replace(base, step_kind="averaged")),
    ]  # fmt: skip
    return [
        ConvergenceSweep("R", s.rounds, [replace(case, rounds=r) for r in s.rounds], label)
        for label, case in cases
    ]


def parameter_sweeps(s: ConvergenceSettings) -> list[ConvergenceSweep]:
    """Along K, N, p, kappa, noise and heterogeneity, with random and with rolling masks."""
    sweeps = []
    for rolls in (False, True):
        base = replace(convergence_base(s), rolls=rolls)
        name = _rolling_name(s, base) if rolls else f"random, p={base.p:g}"
        kind = "rolling" if rolls else "random"
        quiet = replace(base, noise=0.0)
        by_p = [replace(base, p=p) for p in sorted(s.sweep_capacities, reverse=True)]
        shares = [case.share(s) for case in by_p]
        sweeps += [
            ConvergenceSweep("K", s.sweep_steps,
                             [replace(base, steps=k) for k in s.sweep_steps], name),
            ConvergenceSweep("N", s.sweep_clients,
                             [replace(base, clients=n, kinds=min(s.sweep_clients))
                              for n in s.sweep_clients], f"{name}, clients copied"),
            ConvergenceSweep("1/p", [1 / share for share in shares], by_p, kind),
            ConvergenceSweep("kappa", [ell / s.mu for ell in s.sweep_smoothness],
                             [replace(base, smoothness=ell) for ell in s.sweep_smoothness], name),
            ConvergenceSweep("noise", s.sweep_noise,
                             [replace(base, noise=n) for n in s.sweep_noise], name),
            ConvergenceSweep("zeta", s.sweep_spread,
                             [replace(quiet, spread=h) for h in s.sweep_spread],
                             f"{name}, no noise"),
        ]  # fmt: skip
    whole = replace(convergence_base(s), p=1.0, noise=0.0)
    sweeps.append(ConvergenceSweep(
        "zeta", s.sweep_spread,
        [replace(whole, spread=h) for h in s.sweep_spread], "random, p=1, no noise",
    ))  # fmt: skip
    sweeps.append(ConvergenceSweep(
        "kappa", [ell / s.mu for ell in s.sweep_smoothness],
        [replace(whole, smoothness=ell) for ell in s.sweep_smoothness], "random, p=1, no noise",
    ))  # fmt: skip
    return sweeps


def _rolling_name(s: ConvergenceSettings, base: ConvergenceCase) -> str:
    """By what is held: s/d is a whole number of coordinates over d."""
    return f"rolling, s/d={replace(base, rolls=True).share(s):g}"


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


ConvergencePoints = dict[ConvergenceCase, ConvergencePoint]


def convergence_panels(
    s: ConvergenceSettings,
    by_rounds: Sequence[ConvergenceSweep],
    others: Sequence[ConvergenceSweep],
    points: ConvergencePoints,
    long: tuple[list[int], list[float], list[BoundTerms]],
) -> list[Panel]:
    """All panels; slopes are drawn only where a theorem states them."""
    judges = s.eta is None

    def errors(sweep: ConvergenceSweep, logs: bool = False) -> PlotLine:
        run = [points[case] for case in sweep.cases]
        divisors = [math.log(p.case.steps * p.case.rounds) if logs else 1.0 for p in run]
        measures = [p.error.times(1 / log) for p, log in zip(run, divisors, strict=True)]
        return PlotLine.of_measures(sweep.label, sweep.x, measures)

    noisy = [w for w in by_rounds if w.cases[0].source == "Theorem 1" and w.cases[0].noise]
    quiet = [w for w in by_rounds if not w.cases[0].noise]
    kinds = [w for w in by_rounds if not w.cases[0].rolls and w.cases[0].noise
             and w.cases[0].p == min(s.capacities) and not w.cases[0].unequal]  # fmt: skip
    rates, floors = [errors(w, logs=True) for w in noisy], [errors(w) for w in quiet]
    guides = [guide_through(rates[0], -1.0, "Theorem 1")] if judges else []
    if judges:
        floors += [
            _log_line(s, floors[0], 2, "Theorem 1: slope -2, log²(KR)/R²", "k:"),
            _log_line(s, floors[1], 1, "the masks' variance: slope -1, log(KR)/R", "k--"),
        ]
    return [
        Panel("to the masked optimum, with noise", _AXIS, "E||w_R - w*(p)||² / log(KR)", rates,
              guides),
        Panel("to the masked optimum, without noise", _AXIS, "E||w_R - w*||²", floors),
        _floor_panel(s, points),
        _scheme_panel(s, points),
        Panel("step sizes, random masks with noise", _AXIS, "E||w_R - w*(p)||²",
              [errors(w) for w in kinds]),
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


def _floor_panel(s: ConvergenceSettings, points: ConvergencePoints) -> Panel:
    """F of the last iterate and of the output without noise, with both floors."""
    least = min(s.capacities)
    run = _along_rounds(s, points, rolls=False, noise=0.0, kind="theorem", p=least)
    floor = run[-1].output_gap.exact
    levels = {"residual F(w*(p)) - F*": run[-1].residual}
    if floor is not None:
        levels["floor of the output, E F(w^) - F* (exact)"] = floor
    return Panel(f"the original objective, random p={least:g}, no noise", _AXIS, "E F - F(w*)",
                 [PlotLine.of_measures("F(w_R)", s.rounds, [p.gap for p in run]),
                  PlotLine.of_measures("F(w^)", s.rounds, [p.output_gap for p in run], "--s")],
                 levels=levels)  # fmt: skip


def _scheme_panel(s: ConvergenceSettings, points: ConvergencePoints) -> Panel:
    least = min(s.capacities)
    random = _along_rounds(s, points, rolls=False, noise=s.noise, kind="theorem", p=least)
    rolling = _along_rounds(s, points, rolls=True, noise=s.noise, kind="theorem 1", p=least)
    lines = []
    for name, run in (("random", random), ("rolling", rolling)):
        lines += [
            PlotLine.of_measures(f"{name}: F(w_R)", s.rounds, [p.gap for p in run]),
            PlotLine.of_measures(f"{name}: F(w^)", s.rounds, [p.output_gap for p in run], "--s"),
        ]
    return Panel("random against rolling, equal coordinates and steps", _AXIS, "E F - F(w*)", lines,
                 levels={"residual, random": random[0].residual,
                         "residual, rolling": rolling[0].residual})  # fmt: skip


def _along_rounds(
    s: ConvergenceSettings,
    points: ConvergencePoints,
    rolls: bool,
    noise: float,
    kind: str,
    p: float,
) -> list[ConvergencePoint]:
    by_rounds = {
        point.case.rounds: point
        for point in points.values()
        if (point.case.rolls, point.case.noise, point.case.step_kind, point.case.p)
        == (rolls, noise, kind, p)
        and (point.case.steps, point.case.clients, point.case.smoothness, point.case.spread)
        == (s.steps, s.clients, s.smoothness, 1.0)
        and not point.case.unequal
    }
    return [by_rounds[r] for r in s.rounds]


def _ratio_panel(
    source: str, sweeps: Sequence[ConvergenceSweep], points: ConvergencePoints
) -> Panel:
    """The error over the bound's leading terms: where it rises, a dependence is missing."""
    lines = []
    for sweep in sweeps:
        if sweep.cases[0].source != source:
            continue
        run = [points[case] for case in sweep.cases]
        limits = [sum(p.ceiling.terms[name] for name in p.ceiling.leading) for p in run]
        first = run[0].error.mean / limits[0]
        measures = [p.error.times(1 / (b * first)) for p, b in zip(run, limits, strict=True)]
        x = [value / sweep.x[0] for value in sweep.x]
        quiet = ", no noise" if not sweep.cases[0].noise else ""
        label = f"{sweep.parameter} from {sweep.x[0]:g}, p={run[0].share:g}{quiet}"
        lines.append(PlotLine.of_measures(label, x, measures))
    return Panel(f"{source}: error over its leading term", "parameter / its first value",
                 "ratio / its first value", lines, levels={"may not rise": 1.0})  # fmt: skip
