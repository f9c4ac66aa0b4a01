"""Study of the lemma on ||w*(1) - w*(p)|| and Theorem 1's residual term, by exact values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from submodel.schemes import Random
from submodel_lab.theory.drawing import Panel, PlotLine, guide_through
from submodel_lab.theory.limits import distance_bounds
from submodel_lab.theory.masking import Masking, bernoulli, rolling
from submodel_lab.theory.measures import (
    Measure,
    Statement,
    Verdict,
    exact_measure,
    judge_slope,
    slope,
)
from submodel_lab.theory.objective import MaskedObjective, largest_gradient
from submodel_lab.theory.problems import Quadratic, quadratics
from submodel_lab.theory.results import OnProgress, ResultRow, Study, report_nothing
from submodel_lab.theory.studies.sweeps import mean_share
from submodel_lab.theory.theorems import lemma_bound, residual_term, sharper_bound

Row = tuple[float, int, float]  # p, d, heterogeneity


@dataclass(frozen=True)
class ResidualSettings:
    """Settings; every number is exact, over several random problems, without training."""

    capacities: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99, 0.999)
    dimensions: tuple[int, ...] = (5, 10, 20, 40)
    heterogeneities: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0)
    dimension: int = 10
    heterogeneity: float = 1.0
    clients: int = 4
    mu: float = 1.0
    smoothness: float = 2.0
    problems: int = 50
    seed: int = 0


def exact_distances(problem: Quadratic, masking: Masking) -> dict[str, float]:
    """Return distance, residual, and the radius of the least ball with both optima."""
    original, masked_objective = MaskedObjective(problem), MaskedObjective(problem, masking)
    w, w_p = original.optimum(math.inf), masked_objective.optimum(math.inf)
    radius = max(float(np.linalg.norm(w)), float(np.linalg.norm(w_p)))
    return {
        "distance": float(np.linalg.norm(w - w_p)),
        "residual": original.value(w_p) - original.value(w),
        "radius": radius,
    }


def study_residual(s: ResidualSettings, on_progress: OnProgress = report_nothing) -> Study:
    """Run the study."""
    by_p = [(p, s.dimension, s.heterogeneity) for p in s.capacities]
    by_d = [(0.5, d, s.heterogeneity) for d in s.dimensions]
    by_h = [(0.5, s.dimension, h) for h in s.heterogeneities]
    sweep = list(dict.fromkeys([*by_p, *by_d, *by_h]))
    table: dict[Row, dict[str, Measure]] = {}
    for number, place in enumerate(sweep):
        table[place] = _measure(s, *place)
        on_progress(number + 1, len(sweep))
    rows = [
        ResultRow({"p": p, "rolling share": mean_share(rolling(p, s.clients, d), d), "d": d,
                   "heterogeneity": h, "N": s.clients, "mu": s.mu, "L": s.smoothness,
                   "problems": s.problems, "seed": s.seed}, table[p, d, h])
        for p, d, h in sweep
    ]  # fmt: skip
    return Study("residual", "How far masking moves the optimum: exact values and the bounds",
                 asdict(s), rows, _panels(table, by_p, by_d, by_h),
                 _statements(s, table, by_p, by_d))  # fmt: skip


def _measure(s: ResidualSettings, p: float, d: int, h: float) -> dict[str, Measure]:
    some = tuple(1.0 if i % 2 else p for i in range(s.clients))
    kinds = {
        "": bernoulli(p, s.clients),
        "rolling ": rolling(p, s.clients, d),
        "unbiased ": bernoulli(p, s.clients, unbiased=True),
        "unequal ": Masking(Random(), some),
    }
    values: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        values.setdefault(name, []).append(value)

    for number in range(s.problems):
        problem = quadratics(s.clients, d, s.mu, s.smoothness, h, 0.0, s.seed + number)
        for kind, masking in kinds.items():
            for name, value in exact_distances(problem, masking).items():
                note(kind + name, value)
        radius, distance = values["radius"][-1], values["distance"][-1]
        gradient = largest_gradient(problem, radius)
        limit = lemma_bound(problem, p, gradient, radius)
        note("bound", limit)
        note("bound without d", sharper_bound(problem, p, gradient, radius))
        note("residual term", residual_term(problem, p, gradient, radius))
        bounds = distance_bounds(problem, kinds[""])
        note("sharper bound", bounds.by_condition)
        note("bound of any convex loss", bounds.smooth)
        note("distance / bound", distance / limit)
        note("distance / sharper bound", distance / bounds.by_condition)
    keep = [name for name in values if not name.endswith("radius") or name == "radius"]
    return {name: Measure.of(np.array(values[name])) for name in keep}


def _statements(
    s: ResidualSettings, table: Mapping[Row, Mapping[str, Measure]], by_p: Sequence[Row],
    by_d: Sequence[Row],
) -> list[Statement]:  # fmt: skip
    statements = []
    every = list(table.values())
    for source, name, label in (
        ("Lemma 2", "distance / bound", "||w*(1) - w*(p)|| over the lemma's bound, largest of all"),
        ("", "distance / sharper bound", "the same over (1 - p)(kappa_F - 1)||w*||"),
    ):
        ratios = np.concatenate([m[name].values for m in every if m[name].values is not None])
        worst, mean = float(ratios.max()), 1 / float(np.median(ratios))
        count = f"{len(ratios)} problems"
        statements += [
            Statement.of(source, "value", count, label, exact_measure(worst), "<=", 1.0),
            Statement.of(source, "value", count, "how many times too large, median",
                         exact_measure(mean), "-", 1.0),
        ]  # fmt: skip
    terms = np.concatenate([
        m["residual"].values / m["residual term"].values for m in every
        if m["residual"].values is not None and m["residual term"].values is not None
    ])  # fmt: skip
    statements.append(Statement.of("Theorem 1", "residual", f"{len(terms)} problems",
                               "F(w*(p)) - F* over the residual term, largest",
                               exact_measure(float(terms.max())), "<=", 1.0))  # fmt: skip
    near = [place for place in by_p if place[0] >= 0.9]
    sweeps = [
        ("Lemma 2", "1-p", "p >= 0.9", "||w*(1) - w*(p)||", "distance", near, 0.5),
        ("Theorem 1", "1-p", "p >= 0.9", "F(w*(p)) - F*", "residual", near, 1.0),
        ("Lemma 2", "d", "p=0.5", "||w*(1) - w*(p)||", "distance", list(by_d), 0.5),
    ]
    for source, parameter, case, quantity, name, places, limit in sweeps:
        if len(places) < 2:
            continue
        x = [1 - p if parameter == "1-p" else float(d) for p, d, _ in places]
        number = exact_measure(slope(x, [table[place][name].mean for place in places]))
        # for p -> 1 a larger exponent of 1 - p gives a smaller number; along d a smaller one does
        verdict = judge_slope(number, limit) if parameter == "d" else _steeper(number, limit)
        relation = "<=" if parameter == "d" else ">="
        statements.append(Statement(source, parameter, case, f"slope of {quantity}", number,
                                    relation, limit, verdict))  # fmt: skip
    base = (0.5, s.dimension, s.heterogeneity)
    if base in table:
        for kind in ("", "rolling ", "unbiased ", "unequal "):
            label, residual = f"{kind.strip() or 'random'}, p=0.5", table[base][f"{kind}residual"]
            statements.append(Statement.of("", "scheme", label, "F(w*(p)) - F*", residual))
    return statements


def _steeper(measure: Measure, limit: float) -> Verdict:
    if math.isnan(measure.mean):
        return Verdict.OPEN
    return Verdict.FASTER if measure.mean > limit + 0.01 else (
        Verdict.YES if measure.mean >= limit - 0.01 else Verdict.NO)  # fmt: skip


def _panels(
    table: Mapping[Row, Mapping[str, Measure]], by_p: Sequence[Row], by_d: Sequence[Row],
    by_h: Sequence[Row],
) -> list[Panel]:  # fmt: skip
    def line(
        label: str, name: str, places: Sequence[Row], axis: int, style: str = "-o"
    ) -> PlotLine:
        x = [round(1 - place[0], 9) if axis == 0 else float(place[axis]) for place in places]
        # windows that round up to the whole model leave rounding errors only
        measures = [table[place][name] for place in places]
        positive = [m if m.mean > 1e-12 else Measure(math.nan, math.nan, math.nan)
                    for m in measures]  # fmt: skip
        return PlotLine.of_measures(label, x, positive, style)

    trivial = (
        [round(1 - place[0], 9) for place in by_p],
        [2 * table[place]["radius"].mean for place in by_p],
    )
    bounds = [("the lemma's bound", "bound", "--"), ("without d", "bound without d", "-."),
              ("(1-p)(kappa_F-1)||w*||", "sharper bound", ":^")]  # fmt: skip
    distances = line("random", "distance", by_p, 0)
    residuals = line("random", "residual", by_p, 0)
    return [
        Panel("distance of the optima", "1 - p", "||w*(1) - w*(p)||",
              [distances, line("rolling", "rolling distance", by_p, 0, "-s"),
               line("unequal, p_i of 1 and p", "unequal distance", by_p, 0, "-v"),
               *(line(label, name, by_p, 0, style) for label, name, style in bounds),
               PlotLine("trivial: 2W", *trivial, style="k--")],
              [guide_through(_last(distances), 0.5, "the lemma"),
               guide_through(_last(distances), 1.0, "the truth")]),
        Panel("residual of the original objective", "1 - p", "F(w*(p)) - F(w*)",
              [residuals, line("rolling", "rolling residual", by_p, 0, "-s"),
               line("unequal, p_i of 1 and p", "unequal residual", by_p, 0, "-v"),
               line("unbiased 1/p", "unbiased residual", by_p, 0, "-^"),
               line("Theorem 1's term", "residual term", by_p, 0, "--")],
              [guide_through(_last(residuals), 1.0, "Theorem 1"),
               guide_through(_last(residuals), 2.0, "the truth")]),
        Panel("over the dimension, p = 0.5", "d", "||w*(1) - w*(p)||",
              [line("random", "distance", by_d, 1),
               *(line(label, name, by_d, 1, style) for label, name, style in bounds)]),
        Panel("over the heterogeneity, p = 0.5", "heterogeneity", "||w*(1) - w*(p)||",
              [line("random", "distance", by_h, 2),
               *(line(label, name, by_h, 2, style) for label, name, style in bounds)],
              log=(False, True)),
    ]  # fmt: skip


def _last(line: PlotLine) -> PlotLine:
    """Reverse a line to start at the largest p."""
    return PlotLine(line.label, line.x[::-1], line.mean[::-1])
