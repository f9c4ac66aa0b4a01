"""The lemma on ||w*(1) - w*(p)|| and Theorem 1's residual term, against exact values."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from submodel.theory.masking import Masking, bernoulli, rolling
from submodel.theory.objective import MaskedObjective
from submodel.theory.problem_constants import largest_gradient
from submodel.theory.problems import Quadratic, quadratics
from submodel.theory.results import (
    OnProgress,
    Panel,
    PlotLine,
    Statement,
    Study,
    interval,
    report_nothing,
    slope,
)
from submodel.theory.theorems import lemma_bound, residual_term, sharper_bound


@dataclass(frozen=True)
class ResidualSettings:
    """Nothing is trained: every number is exact, over several random problems."""

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
    """Distance, residual, and the radius of a ball that just holds both optima."""
    original, masked_objective = MaskedObjective(problem), MaskedObjective(problem, masking)
    w, w_p = original.optimum(math.inf), masked_objective.optimum(math.inf)
    radius = max(float(np.linalg.norm(w)), float(np.linalg.norm(w_p)))
    return {
        "distance": float(np.linalg.norm(w - w_p)),
        "residual": original.value(w_p) - original.value(w),
        "radius": radius,
    }


def study_residual(s: ResidualSettings, on_progress: OnProgress = report_nothing) -> Study:
    """Measure everything."""
    sweep = [(p, s.dimension, s.heterogeneity) for p in s.capacities]
    sweep += [(0.5, d, s.heterogeneity) for d in s.dimensions]
    sweep += [(0.5, s.dimension, h) for h in s.heterogeneities]
    rows = []
    for number, (p, d, h) in enumerate(sweep):
        rows.append(_row(s, p, d, h))
        on_progress(number + 1, len(sweep))
    by_p = rows[: len(s.capacities)]
    by_d = rows[len(by_p) : len(by_p) + len(s.dimensions)]
    by_h = rows[len(by_p) + len(by_d) :]
    near = [r for r in by_p if r["p"] >= 0.9]
    absent_shares = [1 - r["p"] for r in near]
    claims = [
        Statement("||w*(1) - w*(p)|| is below the lemma's bound, every problem",
              f"{sum(r['violations'] for r in rows):g} violations of {len(rows) * s.problems}",
              "0", "yes" if not any(r["violations"] for r in rows) else "no"),
        Statement("looseness of the lemma's bound (bound / measured), least and most",
              f"{min(r['looseness'] for r in rows):.1f} to {max(r['looseness'] for r in rows):.0f}",
              "1 if tight", "loose"),
        Statement("the lemma's bound says more than the trivial 2W for p above",
              f"{min([r['p'] for r in by_p if r['bound'] < 2 * r['radius']], default=math.nan):g}",
              "-", "see text"),
    ]  # fmt: skip
    if len(near) >= 2:
        distance_slope = slope(absent_shares, [r["distance"] for r in near])
        residual_slope = slope(absent_shares, [r["residual"] for r in near])
        claims += [
            Statement("slope of ||w*(1) - w*(p)|| in 1-p, p >= 0.9", f"{distance_slope:.2f}",
                  "0.5 in the bound", "holds, but the truth is steeper"),
            Statement("slope of F(w*(p)) - F* in 1-p, p >= 0.9", f"{residual_slope:.2f}",
                  "1 in the bound", "holds, but the truth is steeper"),
        ]  # fmt: skip
    if len(by_d) >= 2:
        dimension_slope = slope([r["d"] for r in by_d], [r["distance"] for r in by_d])
        claims.append(
            Statement(
                "slope of ||w*(1) - w*(p)|| in d, p = 0.5",
                f"{dimension_slope:.2f}",
                "0.5 in the bound",
                "holds; d need not be there",
            )
        )
    return Study("residual", "How far masking moves the optimum: exact values and the bounds",
                 asdict(s), rows, _panels(by_p, by_d, by_h), claims)  # fmt: skip


def _row(s: ResidualSettings, p: float, d: int, h: float) -> dict[str, float]:
    kinds = {
        "": bernoulli(p, s.clients),
        "rolling ": rolling(p, s.clients, d),
        "unbiased ": bernoulli(p, s.clients, unbiased=True),
    }
    values: dict[str, list[float]] = {}
    for number in range(s.problems):
        problem = quadratics(s.clients, d, s.mu, s.smoothness, h, 0.0, s.seed + number)
        for kind, masking in kinds.items():
            for name, value in exact_distances(problem, masking).items():
                values.setdefault(kind + name, []).append(value)
        radius = values["radius"][-1]
        gradient = largest_gradient(problem, radius)
        distance_bound = lemma_bound(problem, p, gradient, radius)
        values.setdefault("bound", []).append(distance_bound)
        values.setdefault("sharper", []).append(sharper_bound(problem, p, gradient, radius))
        values.setdefault("term", []).append(residual_term(problem, p, gradient, radius))
        values.setdefault("violations", []).append(float(values["distance"][-1] > distance_bound))
    means = {name: float(np.mean(column)) for name, column in values.items()}
    _, low, high = interval(np.array(values["distance"]))
    means["violations"] = float(np.sum(values["violations"]))
    shown_names = ("distance", "residual", "bound", "sharper", "term", "radius", "violations",
            "rolling distance", "rolling residual", "unbiased distance",
            "unbiased residual")  # fmt: skip
    return {
        "p": p, "d": d, "heterogeneity": h, **{name: means[name] for name in shown_names},
        "distance low": low, "distance high": high,
        "looseness": means["bound"] / max(means["distance"], 1e-300),
    }  # fmt: skip


def _panels(
    by_p: list[dict[str, float]], by_d: list[dict[str, float]], by_h: list[dict[str, float]]
) -> list[Panel]:
    def line(
        label: str, rows: list[dict[str, float]], x: str, y: str, style: str = "-o"
    ) -> PlotLine:
        at = [1 - r["p"] if x == "1-p" else r[x] for r in rows]
        band = y == "distance"
        # windows that round up to the whole model leave nothing but rounding errors
        return PlotLine(label, at, [r[y] if r[y] > 1e-12 else math.nan for r in rows],
                    [r["distance low"] for r in rows] if band else None,
                    [r["distance high"] for r in rows] if band else None, style)  # fmt: skip

    trivial = PlotLine("trivial: 2W", [1 - r["p"] for r in by_p], [2 * r["radius"] for r in by_p],
                       None, None, "k--")  # fmt: skip
    return [
        Panel("distance of the optima", "1 - p", "||w*(1) - w*(p)||",
              [line("random", by_p, "1-p", "distance"),
               line("rolling", by_p, "1-p", "rolling distance", "-s"),
               line("unbiased 1/p", by_p, "1-p", "unbiased distance", "-^"),
               line("lemma's bound", by_p, "1-p", "bound", "--"),
               line("bound without d", by_p, "1-p", "sharper", "-."), trivial]),
        Panel("residual of the original objective", "1 - p", "F(w*(p)) - F(w*)",
              [line("random", by_p, "1-p", "residual"),
               line("rolling", by_p, "1-p", "rolling residual", "-s"),
               line("unbiased 1/p", by_p, "1-p", "unbiased residual", "-^"),
               line("Theorem 1's term", by_p, "1-p", "term", "--")]),
        Panel("over the dimension, p = 0.5", "d", "||w*(1) - w*(p)||",
              [line("random", by_d, "d", "distance"),
               line("lemma's bound", by_d, "d", "bound", "--"),
               line("bound without d", by_d, "d", "sharper", "-.")]),
        Panel("over the heterogeneity, p = 0.5", "heterogeneity", "||w*(1) - w*(p)||",
              [line("random", by_h, "heterogeneity", "distance"),
               line("lemma's bound", by_h, "heterogeneity", "bound", "--")], log=(False, True)),
    ]  # fmt: skip
