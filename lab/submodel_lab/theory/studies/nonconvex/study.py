"""The study of Theorems 2 and 4: sweeps over a small net, and what the theorems say of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from submodel_lab.theory.drawing import Panel, PlotLine, guide_through
from submodel_lab.theory.results import OnProgress, ResultRow, Study, report_nothing
from submodel_lab.theory.studies.comparison import slope_statement, worst_condition
from submodel_lab.theory.studies.nonconvex.cases import (
    NonconvexCase,
    NonconvexSettings,
    check_nonconvex,
    nonconvex_base,
)
from submodel_lab.theory.studies.nonconvex.points import NonconvexPoint, measure_nonconvex
from submodel_lab.theory.verdicts import Statement, judge_positive

NonconvexPoints = dict[NonconvexCase, NonconvexPoint]


@dataclass(frozen=True)
class NonconvexSweep:
    """Cases along one parameter."""

    parameter: str
    x: Sequence[float]
    cases: Sequence[NonconvexCase]
    label: str
    every: bool = False  # whether every term of the bound counts

    def statement(self, points: NonconvexPoints, last: int = 0) -> Statement:
        """Whether the gradients fall along the parameter as the bound does."""
        run = [points[case] for case in self.cases[-last:]]
        objective = "F_m(w_e)" if self.cases[0].rolls else "F_p(w_r)"
        label = self.label if not last else f"{self.label}, R={run[0].case.rounds} and up"
        return slope_statement(
            self.cases[0].source, self.parameter, label, f"mean ||grad {objective}||^2",
            self.x[-last:], [p.masked_norm for p in run], [p.ceiling for p in run],
            worst_condition([p.step for p in run]), every=self.every,
        )  # fmt: skip


def nonconvex_sweeps(s: NonconvexSettings) -> list[NonconvexSweep]:
    """Along R, K, N, p, zeta and noise, with random and with rolling masks."""
    sweeps = []
    for rolls in (False, True):
        base = nonconvex_base(s, rolls)
        name = base.words(s)
        kind = "rolling" if rolls else "random"
        starts = [base] if rolls else [replace(base, p=p) for p in s.capacities]
        for case in starts:
            sweeps.append(NonconvexSweep("R", s.rounds, [replace(case, rounds=r) for r in s.rounds],
                                         case.words(s)))  # fmt: skip
        by_p = [replace(base, p=p) for p in sorted(s.sweep_capacities, reverse=True)]
        sweeps += [
            NonconvexSweep("K", s.sweep_steps,
                           [replace(base, steps=k) for k in s.sweep_steps], name),
            NonconvexSweep("N", s.sweep_clients,
                           [replace(base, clients=n, kinds=min(s.sweep_clients))
                            for n in s.sweep_clients], f"{name}, clients copied"),
            NonconvexSweep("1/p", [1 / case.share(s) for case in by_p], by_p, kind),
            NonconvexSweep("zeta", s.sweep_heterogeneity,
                           [replace(base, heterogeneity=h) for h in s.sweep_heterogeneity], name,
                           every=True),
            NonconvexSweep("noise", s.sweep_noise,
                           [replace(base, noise=n) for n in s.sweep_noise],
                           f"{name}, Gaussian noise"),
        ]  # fmt: skip
    return sweeps


def study_nonconvex(s: NonconvexSettings, on_progress: OnProgress = report_nothing) -> Study:
    """Measure everything."""
    check_nonconvex(s)
    sweeps = nonconvex_sweeps(s)
    cases = list(dict.fromkeys(case for sweep in sweeps for case in sweep.cases))
    points: NonconvexPoints = {}
    for number, case in enumerate(cases):
        points[case] = measure_nonconvex(s, case)
        on_progress(number + 1, len(cases))
    claims = [sweep.statement(points) for sweep in sweeps]
    by_rounds = [sweep for sweep in sweeps if sweep.parameter == "R"]
    claims += [sweep.statement(points, last=3) for sweep in by_rounds if len(sweep.x) > 3]
    for sweep in by_rounds:
        point = points[sweep.cases[-1]]
        if point.share < 1:
            above = point.original_norm.minus(point.masked_norm)
            claims.append(Statement(
                point.case.source, "residual", f"{sweep.label}, R={point.case.rounds}",
                "||grad F||^2 - ||grad of the masked objective||^2", above, ">", 0.0,
                judge_positive(above), point.step.note))  # fmt: skip
    problem = cases[0].problem(s)
    settings = {**asdict(s), "d": problem.dimension, "L (largest met)": problem.smoothness}
    notes = [
        "no projection: W is R^d in both proofs",
        "L is the largest curvature met in a ball of radius 3, not a proven bound; delta, zeta and "
        "G are the largest over drawn points of norm 1",
    ]
    return Study("nonconvex", "Theorems 2 and 4: a small tanh net", settings,
                 [_row(s, p) for p in points.values()], _panels(s, sweeps, points), claims,
                 notes)  # fmt: skip


def _row(s: NonconvexSettings, point: NonconvexPoint) -> ResultRow:
    case = point.case
    return ResultRow(
        {"scheme": "rolling" if case.rolls else "random", "p": case.p, "share": point.share,
         "R": case.rounds, "K": case.steps, "N": case.clients, "n": s.examples,
         "d": s.features * s.hidden, "heterogeneity": case.heterogeneity,
         "noise": "examples" if case.noise is None else case.noise, "eta": point.step.eta,
         "seed": s.seed},
        {"mean |grad F_p|^2": point.masked_norm, "mean |grad F|^2": point.original_norm},
        {"bound": point.ceiling.total, "condition": point.step.note},
    )  # fmt: skip


def _panels(
    s: NonconvexSettings, sweeps: Sequence[NonconvexSweep], points: NonconvexPoints
) -> list[Panel]:
    by_rounds = [sweep for sweep in sweeps if sweep.parameter == "R"]

    def line(sweep: NonconvexSweep, original: bool) -> PlotLine:
        run = [points[case] for case in sweep.cases]
        return PlotLine.of_measures(
            sweep.label, sweep.x, [p.original_norm if original else p.masked_norm for p in run]
        )

    masked_lines = [line(sweep, False) for sweep in by_rounds]
    panels = [
        Panel("the objective that masking induces", "rounds R", "mean over r of ||grad F_p(w_r)||²",
              masked_lines, [guide_through(masked_lines[0], -0.5, "Theorems 2 and 4")]),
        Panel("the original objective at the same points", "rounds R",
              "mean over r of ||grad F(w_r)||²", [line(sweep, True) for sweep in by_rounds]),
    ]  # fmt: skip
    for source in ("Theorem 2", "Theorem 4"):
        lines = []
        for sweep in sweeps:
            if sweep.parameter == "R" or sweep.cases[0].source != source:
                continue
            run = [points[case] for case in sweep.cases]
            first = run[0].masked_norm.mean
            lines.append(PlotLine.of_measures(
                f"{sweep.parameter} from {sweep.x[0]:g}", [x / sweep.x[0] for x in sweep.x],
                [p.masked_norm.times(1 / first) for p in run]))  # fmt: skip
        panels.append(Panel(f"{source}: along each parameter, R={s.sweep_rounds}",
                            "parameter / its first value", "mean ||grad||² / its first value",
                            lines))  # fmt: skip
    return panels
