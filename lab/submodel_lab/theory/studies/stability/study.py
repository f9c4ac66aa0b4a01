"""The study of Theorems 5 and 6 and of their corollary: sweeps, controls, the gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

from submodel_lab.theory.drawing import Panel
from submodel_lab.theory.measures import Measure
from submodel_lab.theory.results import OnProgress, ResultRow, Study, report_nothing
from submodel_lab.theory.studies.comparison import slope_statement, worst_condition
from submodel_lab.theory.studies.stability.cases import (
    StabilityCase,
    StabilitySettings,
    check_stability,
    stability_base,
)
from submodel_lab.theory.studies.stability.controls import control_points, control_statements
from submodel_lab.theory.studies.stability.panels import StabilityPoints, stability_panels
from submodel_lab.theory.studies.stability.points import GRADIENT, StabilityPoint, measure_stability
from submodel_lab.theory.verdicts import Statement, judge_positive


@dataclass(frozen=True)
class StabilitySweep:
    """Cases along one parameter."""

    parameter: str
    cases: Sequence[StabilityCase]

    def statements(self, s: StabilitySettings, points: StabilityPoints) -> list[Statement]:
        """Whether the distances of w^ and of w_R move along the parameter as the bound does."""
        run = [points[case] for case in self.cases]
        x = [self.value(point) for point in run]
        conditions = worst_condition([p.step for p in run])
        return [
            slope_statement(
                run[0].case.theorem, self.parameter, run[0].case.words(s), f"E||{name} - {name}'||",
                x, measures, [p.ceiling for p in run], conditions,
            )
            for name, measures in (("w^", [p.output for p in run]),
                                   ("w_R", [p.iterate for p in run]))
        ]  # fmt: skip

    def value(self, point: StabilityPoint) -> float:
        """The parameter at a point."""
        case = point.case
        return {
            "n": float(case.n), "N": float(case.clients), "R": float(case.rounds),
            "K": float(case.steps), "D_max": point.distance, "noise": point.noise,
        }[self.parameter]  # fmt: skip


def stability_sweeps(s: StabilitySettings) -> list[StabilitySweep]:
    """Along n, N, R, K, D_max and noise; n and N at several p."""
    sweeps = []
    for rolls in (False, True):
        base = stability_base(s, rolls)
        for p in s.capacities if not rolls else (1.0, base.p):
            sweeps.append(StabilitySweep("n", [replace(base, p=p, n=n) for n in s.examples]))
        for p in dict.fromkeys((1.0, base.p)):
            sweeps.append(StabilitySweep("N", [replace(base, p=p, clients=c) for c in s.clients]))
        sweeps += [
            StabilitySweep("R", [replace(base, rounds=r) for r in s.sweep_rounds]),
            StabilitySweep("K", [replace(base, steps=k) for k in s.sweep_steps]),
            StabilitySweep("D_max",
                           [replace(base, heterogeneity=h) for h in s.sweep_heterogeneity]),
            StabilitySweep("noise", [replace(base, batch=b) for b in s.sweep_batches]),
        ]  # fmt: skip
    return sweeps


def study_stability(s: StabilitySettings, on_progress: OnProgress = report_nothing) -> Study:
    """Measure everything."""
    check_stability(s)
    sweeps = stability_sweeps(s)
    chains = [
        [replace(stability_base(s, rolls), p=p) for p in sorted(s.capacities, reverse=True)]
        for rolls in (False, True)
    ]
    every = [*(case for chain in chains for case in chain),
             *(case for sweep in sweeps for case in sweep.cases)]  # fmt: skip
    cases = list(dict.fromkeys(every))
    masked_cases = [case for chain in chains for case in chain if case.share(s) < 1]
    total = len(cases) + 25 * len(masked_cases)
    points: StabilityPoints = {}
    for number, case in enumerate(cases):
        points[case] = measure_stability(s, case)
        on_progress(number + 1, total)
    claims = [claim for chain in chains for claim in _chain_statements(s, chain, points)]
    controls = {}
    for number, case in enumerate(masked_cases):
        controls[case] = control_points(s, points[case])
        claims += control_statements(s, points[case], controls[case])
        on_progress(len(cases) + 25 * (number + 1), total)
    claims += [claim for sweep in sweeps for claim in sweep.statements(s, points)]
    claims += [claim for chain in chains for claim in _gap_statements(s, chain, points)]
    rows = [_row(s, point, "") for point in points.values()]
    rows += [
        _row(s, full, f"{name}, of {case.words(s)}")
        for case, by_control in controls.items() for name, (full, _) in by_control.items()
    ]  # fmt: skip
    panels: list[Panel] = stability_panels(s, chains, controls, points)
    return Study("stability", "Theorems 5 and 6: one changed example, shared randomness",
                 asdict(s), rows, panels, claims,
                 ["delta and sigma_* in the bounds are those at w_R"])  # fmt: skip


def _chain_statements(
    s: StabilitySettings, chain: Sequence[StabilityCase], points: StabilityPoints
) -> list[Statement]:
    """At equal step and rounds: is every smaller p more stable than the next larger one?"""
    claims = []
    for larger, smaller in pairwise(chain):
        less = points[larger].output.minus(points[smaller].output)
        q = points[larger].share
        claims.append(Statement(
            larger.theorem, "p", f"{smaller.words(s)} against {q:g}, equal step and rounds",
            "how much less w^ moves", less, ">", 0.0, judge_positive(less),
            points[smaller].step.note))  # fmt: skip
    return claims


def _gap_statements(
    s: StabilitySettings, chain: Sequence[StabilityCase], points: StabilityPoints
) -> list[Statement]:
    """The corollary: gap <= G x stability, for the mean of the gap and for its mean size."""
    claims = []
    for case in chain:
        point = points[case]
        gap, distance = point.gap.values, point.output.values
        assert gap is not None
        assert distance is not None
        for source, quantity, sizes in (
            ("Corollary", "G E||w^ - w^'|| - E(risk - training loss)", gap),
            ("Lemma 1", "G E||w^ - w^'|| - E|risk - training loss|", abs(gap)),
        ):
            room = Measure.of(GRADIENT * distance - sizes)
            claims.append(Statement(source, "gap", case.words(s), quantity, room, ">", 0.0,
                                    judge_positive(room), point.step.note))  # fmt: skip
    return claims


def _row(s: StabilitySettings, point: StabilityPoint, control: str) -> ResultRow:
    case = point.case
    return ResultRow(
        {"scheme": "rolling" if case.rolls else "random", "control": control, "p": case.p,
         "share": point.share, "n": case.n, "N": case.clients, "R": case.rounds, "K": case.steps,
         "d": s.dimension, "heterogeneity": case.heterogeneity, "batch": case.batch,
         "eta": point.step.eta, "seed": s.seed},
        {"distance of w^": point.output, "distance of w_R": point.iterate,
         "train loss of w^": point.output_loss, "train loss of w_R": point.iterate_loss,
         "risk - train loss": point.gap},
        {"D_max": point.distance, "delta": point.noise, "bound": point.ceiling.total,
         "condition": point.step.note},
    )  # fmt: skip
