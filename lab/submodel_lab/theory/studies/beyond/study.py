"""The study beyond the paper: its parts, one after another."""

from __future__ import annotations

from dataclasses import asdict

from submodel_lab.theory.drawing import Panel
from submodel_lab.theory.problems import TheoryError
from submodel_lab.theory.results import OnProgress, Study, report_nothing
from submodel_lab.theory.studies.beyond.bench import BeyondBench, BeyondSettings
from submodel_lab.theory.studies.beyond.parts import (
    BeyondReport,
    compare_budgets,
    compare_few_or_many,
    compare_participation,
    compare_schemes,
    compare_variances,
)


def study_beyond(s: BeyondSettings, on_progress: OnProgress = report_nothing) -> Study:
    """Measure everything."""
    if wrong := [r for r in s.rounds if r % s.dimension]:
        raise TheoryError(f"R = {wrong[0]}: rolling needs whole epochs of d = {s.dimension} rounds")
    participants = [n for n in (1, 2, 4, 8) if n < s.clients] + [s.clients]
    total = len(s.budgets) * len(s.capacities) + len(s.rounds) * (4 + len(participants))
    total += len(participants) + 2
    bench, report = BeyondBench(s, on_progress, total), BeyondReport()
    budgets = compare_budgets(s, bench, report)
    compare_few_or_many(s, bench, participants, report)
    compare_variances(s, bench, report)
    to_original, to_optimum = compare_schemes(s, bench, report)
    part = compare_participation(s, bench, participants, report)
    panels = [
        Panel("equal budget of trained coordinates", "p", "E F(w_R) - F(w*)", budgets,
              log=(False, True)),
        Panel(f"original objective, p = {s.p:g}, no noise", "rounds R", "E F(w_R) - F(w*)",
              to_original),
        Panel("to each one's own optimum, no noise", "rounds R", "E||w_R - w*(p)||²", to_optimum),
        Panel(f"partial participation, p = {s.p:g}", "rounds R", "E||w_R - w*(p)||²", part),
    ]  # fmt: skip
    return Study("beyond", "Beyond the paper: budgets, unbiased masks, order, participation",
                 asdict(s), report.rows, panels, report.claims)  # fmt: skip
