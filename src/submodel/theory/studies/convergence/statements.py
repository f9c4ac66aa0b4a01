"""What the curves say: claims beside the theorems' slopes, panels to draw, conditions not met."""

from __future__ import annotations

from collections.abc import Sequence

from submodel.theory.results import Panel, PlotLine, Statement, interval, slope_interval
from submodel.theory.studies.convergence.cases import ConvergenceSettings
from submodel.theory.studies.convergence.curves import ConvergenceCurve

_TOLERANCE = 0.15  # of a slope


def slope_claims(s: ConvergenceSettings, curve: ConvergenceCurve) -> list[Statement]:
    """How steeply a case falls, and where F stays without noise, beside what theory says."""
    case = curve.case
    raw, low, high = slope_interval(s.rounds, curve.errors)
    logs = case.logs(s)
    if case.noise == 0:
        theorem_slope = -2.0
        logs = [log**2 for log in logs]
    else:
        theorem_slope = -1.0
    slope, least, most = slope_interval(s.rounds, curve.errors, logs)
    power = "" if theorem_slope == -1 else "^2"
    log = "log T" if case.rolls and not case.takes_theorem_1_step else "log(KR)"
    name = f"slope of E||w_R - w*||^2 / {log}{power}, {case.label}"
    close = abs(slope - theorem_slope) <= _TOLERANCE
    measurement = (
        f"{slope:.2f} [{least:.2f}, {most:.2f}]; undivided {raw:.2f} [{low:.2f}, {high:.2f}]"
    )
    claims = [Statement(name, measurement, f"{theorem_slope:g}", "yes" if close else "no")]
    if case.p < 1 and case.noise == 0:
        last, low, high = interval(curve.output_gaps[-1])
        exact = curve.output_floor + float(curve.iterate_gaps[-1].mean()) - curve.residual
        inside = "yes" if low <= exact <= high else "no"
        text = f"F(w^) - F* stays above the residual by its last masks' variance, {case.label}"
        measurement = f"{last:.5f} [{low:.5f}, {high:.5f}] at the largest R"
        expectation = f"{curve.residual:.5f} + {curve.output_floor - curve.residual:.5f}"
        claims.append(Statement(text, measurement, expectation, inside))
    return claims


def convergence_panels(s: ConvergenceSettings, curves: Sequence[ConvergenceCurve]) -> list[Panel]:
    """The curves by p, the other cases, the original objective, random against rolling."""
    by_p = [c for c in curves if c.case.label.startswith("p=") and "," not in c.case.label]
    others = [c for c in curves if c not in by_p]
    least = by_p[-1]
    rolls = next(c for c in curves if c.case.takes_theorem_1_step)
    axis = "rounds R"
    return [
        Panel("to the masked optimum, by p", axis, "E||w_R - w*(p)||² / log(KR)",
              [PlotLine.of(c.case.label, s.rounds,
                       [e / log for e, log in zip(c.errors, c.case.logs(s), strict=True)])
               for c in by_p], -1.0),
        Panel("other K, N, noise, scheme", axis, "E||w_R - w*(p)||²",
              [PlotLine.of(c.case.label, s.rounds, c.errors) for c in [least, *others]], -1.0),
        Panel("original objective, F(w_R), and exact residuals", axis, "E F(w_R) - F(w*)",
              [PlotLine.of(c.case.label, s.rounds, c.iterate_gaps) for c in by_p],
              levels={f"F(w*(p)) - F*, {c.case.label}": c.residual
                      for c in by_p if c.residual > 0}),
        Panel("random against rolling, equal coordinates and steps", axis, "E F - F(w*)",
              [PlotLine.of(f"{c.case.label}: {what}", s.rounds, values, style)
               for c in (least, rolls)
               for what, values, style in (("F(w_R)", c.iterate_gaps, "-o"),
                                           ("F(w^)", c.output_gaps, "--s"))],
              levels={f"residual, {c.case.label}": c.residual for c in (least, rolls)}),
    ]  # fmt: skip


def condition_notes(curves: Sequence[ConvergenceCurve]) -> list[str]:
    """One line per case whose theorem's condition is not met everywhere."""
    lines = []
    for curve in curves:
        unmet = [note for note in curve.notes if note != "met"]
        if unmet:
            of = f"{len(unmet)} of {len(curve.notes)} values of R"
            lines.append(f"{curve.case.label}: at {of} the theorem's condition is {unmet[-1]}")
    return lines
