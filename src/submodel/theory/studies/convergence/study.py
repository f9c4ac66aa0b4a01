"""The study of Theorems 1 and 3: every case is measured, then the schemes are compared."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np

from submodel.theory.masking import Masking
from submodel.theory.objective import MaskedObjective
from submodel.theory.problems import Quadratic
from submodel.theory.results import OnProgress, Statement, Study, interval, report_nothing
from submodel.theory.studies.convergence.cases import ConvergenceSettings, check_rounds, list_cases
from submodel.theory.studies.convergence.curves import measure_case, measure_floor
from submodel.theory.studies.convergence.statements import (
    condition_notes,
    convergence_panels,
    slope_claims,
)

_FLOOR = 0.05  # of the exact residual


def study_convergence(s: ConvergenceSettings, on_progress: OnProgress = report_nothing) -> Study:
    """Measure everything."""
    check_rounds(s)
    cases = list_cases(s)
    noisy = [c for c in cases if c.noise and c.steps == s.steps and c.p < 1]
    floors = [c for c in noisy if not c.takes_theorem_1_step]
    case_rounds = sum(s.rounds) * len(cases)
    total = case_rounds + max(s.rounds) * len(floors)
    radius = 1.5 * max(_reach(case.problem(s), case.masking(s)) for case in cases)
    curves = []
    for number, case in enumerate(cases):
        curves.append(measure_case(s, case, radius, on_progress, number * sum(s.rounds), total))
    rows = [
        {
            "case": c.case.label, "R": r, "distance2": float(e.mean()),
            "F(w_R)-F*": float(g.mean()), "F(w^)-F*": float(o.mean()),
            "residual": c.residual, "output floor": c.output_floor,
            "condition": note,
        }
        for c in curves
        for r, e, g, o, note in zip(
            s.rounds, c.errors, c.iterate_gaps, c.output_gaps, c.notes, strict=True
        )
    ]  # fmt: skip
    claims = [claim for curve in curves for claim in slope_claims(s, curve)]
    for number, case in enumerate(floors):
        rounds_before = case_rounds + number * max(s.rounds)
        floor, low, high, exact = measure_floor(s, case, radius, on_progress, rounds_before, total)
        off = floor / exact - 1
        measurement = f"{floor:.5f} [{low:.5f}, {high:.5f}] ({off:+.1%})"
        verdict = "yes" if abs(off) <= _FLOOR else "no"
        text = f"floor of F is F(w*(p)) - F(w*), {case.label}"
        claims.append(Statement(text, measurement, f"{exact:.5f}", verdict))
    random, rolling = curves[len(s.capacities) - 1], curves[-1]
    mean, low, high = interval(random.output_gaps[-1] - rolling.output_gaps[-1])
    claims.append(Statement("F(w^) is lower with rolling than with random masks, equal coordinates "
                        "and step size, largest R", f"{mean:.4f} [{low:.4f}, {high:.4f}] lower",
                        "-", "yes" if low > 0 else "undecided" if high > 0 else "no"))  # fmt: skip
    mean, low, high = interval(random.errors[-1] - rolling.errors[-1])
    claims.append(Statement("the same for ||w_R - w*||^2, each to its own optimum",
                        f"{mean:.4f} [{low:.4f}, {high:.4f}] lower", "-",
                        "yes" if low > 0 else "undecided" if high > 0 else "no"))  # fmt: skip
    settings = {**asdict(s), "radius": radius}
    return Study("convergence", "Theorems 1 and 3: convergence to w*(p), quadratics", settings,
                 rows, convergence_panels(s, curves), claims, condition_notes(curves))  # fmt: skip


def _reach(problem: Quadratic, masking: Masking) -> float:
    optima = [MaskedObjective(problem, m).optimum(math.inf) for m in (None, masking)]
    return max(float(np.linalg.norm(w)) for w in optima)
