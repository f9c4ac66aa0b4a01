"""The figure of the study: rates, what is left without noise, floors, step sizes, bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from submodel_lab.theory.bounds import BoundTerms
from submodel_lab.theory.drawing import Panel, PlotLine, guide_through
from submodel_lab.theory.studies.convergence.cases import ConvergenceCase, ConvergenceSettings
from submodel_lab.theory.studies.convergence.points import ConvergencePoint
from submodel_lab.theory.studies.convergence.sweeps import ConvergenceSweep

ConvergencePoints = dict[ConvergenceCase, ConvergencePoint]
_AXIS = "rounds R"


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
