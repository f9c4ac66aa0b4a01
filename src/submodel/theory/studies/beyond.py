"""Beyond the paper: unbiased masks, the best p for a budget, order of windows, participation."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from submodel.schemes import Random
from submodel.theory.budget import least_variance, variance
from submodel.theory.lab import TrialPlan, run_trials
from submodel.theory.masking import Masking, bernoulli, rolling
from submodel.theory.objective import MaskedObjective
from submodel.theory.problems import FloatArray, Quadratic, TheoryError, quadratics
from submodel.theory.results import (
    OnProgress,
    Panel,
    PlotLine,
    Statement,
    Study,
    interval,
    report_nothing,
)


@dataclass(frozen=True)
class BeyondSettings:
    """Quadratics, as in the convergence study."""

    capacities: tuple[float, ...] = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2)
    budgets: tuple[int, ...] = (50, 200, 800)  # trained coordinates per client / (K d)
    p: float = 0.5
    rounds: tuple[int, ...] = (80, 160, 320, 640)
    steps: int = 5
    clients: int = 8
    dimension: int = 10
    mu: float = 1.0
    smoothness: float = 2.0
    heterogeneity: float = 1.0
    noise: float = 3.0
    trials: int = 200
    seed: int = 0


class Bench:
    """One problem, many ways to train on it."""

    def __init__(self, s: BeyondSettings, on_progress: OnProgress, total: int) -> None:
        self._s, self._on_progress, self._total, self._step_count = s, on_progress, total, 0
        self.problem = quadratics(s.clients, s.dimension, s.mu, s.smoothness, s.heterogeneity,
                                  s.noise, s.seed)  # fmt: skip
        self.quiet = Quadratic(self.problem.matrices, self.problem.vectors)
        self.original = MaskedObjective(self.problem)
        self.best = self.original.optimum(math.inf)
        self.least = self.original.value(self.best)

    def points(
        self, masking: Masking, rounds: int, noisy: bool = True, participants: int | None = None
    ) -> FloatArray:
        """w_R of every trial, with Theorem 1's step size for the masked objective's own mu."""
        s = self._s
        scale = float(masking.factors(s.dimension)[0, 0])
        least = masking.capacities[0] * scale**2 * s.mu
        eta = math.log((s.steps * rounds) ** 2) / (least * s.steps * rounds)
        plan = TrialPlan(masking, rounds, s.steps, eta, 10.0, s.trials, s.seed, participants)
        return self.last_iterates(self.problem if noisy else self.quiet, plan)

    def last_iterates(self, problem: Quadratic, plan: TrialPlan) -> FloatArray:
        """w_R of every trial."""
        iterates = run_trials(problem, plan, [plan.rounds]).iterates[plan.rounds]
        self._step_count += 1
        self._on_progress(self._step_count, self._total)
        return iterates

    def gaps(self, points: FloatArray) -> FloatArray:
        """F - F(w*) at the points."""
        many = np.broadcast_to(points, (self.problem.clients, *points.shape))
        return np.asarray(self.problem.losses(many).mean(0) - self.least)


def study_beyond(s: BeyondSettings, on_progress: OnProgress = report_nothing) -> Study:
    """Measure everything."""
    if wrong := [r for r in s.rounds if r % s.dimension]:
        raise TheoryError(f"R = {wrong[0]}: rolling needs whole epochs of d = {s.dimension} rounds")
    participants = [n for n in (1, 2, 4, 8) if n < s.clients] + [s.clients]
    total = len(s.budgets) * len(s.capacities) + len(s.rounds) * (4 + len(participants))
    total += len(participants) + 2
    bench = Bench(s, on_progress, total)
    rows: list[dict[str, object]] = []
    claims: list[Statement] = []
    budgets = _budgets(s, bench, rows, claims)
    _few_or_many(s, bench, participants, rows, claims)
    _least_variance(s, bench, rows, claims)
    ways = {
        "random": bernoulli(s.p, s.clients),
        "unbiased 1/p": bernoulli(s.p, s.clients, unbiased=True),
        "rolling, shuffled": rolling(s.p, s.clients, s.dimension),
        "rolling, sequential": rolling(s.p, s.clients, s.dimension, sequential=True),
    }
    to_original, to_own_optimum = [], []
    finals: dict[str, FloatArray] = {}
    for name, masking in ways.items():
        points = [bench.points(masking, r, noisy=False) for r in s.rounds]
        target = MaskedObjective(bench.problem, masking).optimum(math.inf)
        errors = [np.square(w - target).sum(1) for w in points]
        gaps = [bench.gaps(w) for w in points]
        finals[name] = errors[-1]
        to_own_optimum.append(PlotLine.of(name, s.rounds, errors))
        to_original.append(PlotLine.of(name, s.rounds, gaps))
        residual = bench.original.value(target) - bench.least
        distance = float(np.linalg.norm(target - bench.best))
        rows += [
            {"part": "scheme", "case": name, "R": r, "distance2": float(o.mean()),
             "F(w_R)-F*": float(g.mean()), "residual": residual, "||w*(1)-w*||": distance}
            for r, o, g in zip(s.rounds, errors, gaps, strict=True)
        ]  # fmt: skip
        claims.append(
            Statement(
                f"{name}, p={s.p:g}: residual F(w*(p)) - F(w*), exact",
                f"{residual:.5f}; ||w*(1) - w*(p)|| = {distance:.4f}",
                "-",
                "-",
            )
        )
    mean, low, high = interval(finals["rolling, sequential"] - finals["rolling, shuffled"])
    claims.append(Statement("shuffling brings rolling closer to w*(m) than order does, no noise",
                        f"{mean:.2e} [{low:.2e}, {high:.2e}] closer", "> 0",
                        "yes" if low > 0 else ("no" if high < 0 else "undecided")))  # fmt: skip
    part = _participation(s, bench, participants, rows, claims)
    panels = [
        Panel("equal budget of trained coordinates", "p", "E F(w_R) - F(w*)", budgets,
              log=(False, True)),
        Panel(f"original objective, p = {s.p:g}, no noise", "rounds R", "E F(w_R) - F(w*)",
              to_original),
        Panel("to each one's own optimum, no noise", "rounds R", "E||w_R - w*(p)||²",
              to_own_optimum, -1.0),
        Panel(f"partial participation, p = {s.p:g}", "rounds R", "E||w_R - w*(p)||²", part, -1.0),
    ]  # fmt: skip
    return Study("beyond", "Beyond the paper: budgets, unbiased masks, order, participation",
                 asdict(s), rows, panels, claims)  # fmt: skip


def _budgets(
    s: BeyondSettings, bench: Bench, rows: list[dict[str, object]], claims: list[Statement]
) -> list[PlotLine]:
    lines = []
    for budget in s.budgets:
        values = {}
        for p in sorted(s.capacities):
            rounds = round(budget / p)
            values[p] = bench.gaps(bench.points(bernoulli(p, s.clients), rounds))
            rows.append({"part": "budget", "case": f"budget {budget}", "p": p, "R": rounds,
                         "F(w_R)-F*": float(values[p].mean())})  # fmt: skip
        best = min(values, key=lambda p: float(values[p].mean()))
        mean, low, high = interval(values[best])
        claims.append(Statement(f"best p for a budget of {budget} full rounds of coordinates",
                            f"p={best:g}: {mean:.4f} [{low:.4f}, {high:.4f}]",
                            f"at p=1: {float(values[max(values)].mean()):.4f}", "-"))  # fmt: skip
        lines.append(PlotLine.of(f"{budget} rounds' worth", list(values), list(values.values())))
    return lines


def _few_or_many(
    s: BeyondSettings,
    bench: Bench,
    counts: list[int],
    rows: list[dict[str, object]],
    claims: list[Statement],
) -> None:
    """One model's worth of coordinates per round: few clients hold much, or many hold little."""
    values = {}
    for count in counts:
        masking, rounds = bernoulli(1 / count, s.clients), s.rounds[-1]
        values[count] = bench.gaps(bench.points(masking, rounds, participants=count))
        rows.append(
            {
                "part": "few or many",
                "case": f"{count} of {s.clients}",
                "p": 1 / count,
                "R": rounds,
                "F(w_R)-F*": float(values[count].mean()),
            }
        )
    best = min(values, key=lambda n: float(values[n].mean()))
    mean_gaps = ", ".join(f"{n} clients: {float(v.mean()):.4f}" for n, v in values.items())
    text = f"n clients with p = 1/n in each of {s.rounds[-1]} rounds: least F(w_R) - F* at"
    claims.append(Statement(text, f"n = {best}", mean_gaps, "-"))


def _least_variance(
    s: BeyondSettings, bench: Bench, rows: list[dict[str, object]], claims: list[Statement]
) -> None:
    """One p for all against the p of least variance, of equal sum: over coordinates, over clients.

    Over coordinates it is exact at w_0 = 0, where a masked model is the model. Over clients, whose
    losses are scaled from 1/4 to 4 here, both are trained.
    """
    start = bench.problem.gradients(np.zeros((s.clients, 1, s.dimension)))[:, 0]
    powers = np.square(start).mean(0)
    for p in sorted(set(s.capacities) - {1.0}):
        even = variance(powers, np.full(s.dimension, p))
        best = variance(powers, least_variance(powers, p * s.dimension))
        rows.append({"part": "least variance", "case": "coordinates", "p": p,
                     "variance": even, "least": best})  # fmt: skip
        if p == s.p:
            text = f"variance of the first unbiased step, best p_j over one p = {p:g}, exact"
            verdict = "yes" if best <= even else "no"
            claims.append(Statement(text, f"{best / even:.3f}", "at most 1", verdict))
    factors = 2.0 ** np.linspace(-2, 2, s.clients)[:, None]
    matrices = bench.problem.matrices * factors[..., None]
    problem = Quadratic(matrices, bench.problem.vectors * factors)
    ways = {
        "one p": np.full(s.clients, s.p),
        "best p_i": least_variance(np.square(start * factors).sum(1), s.p * s.clients),
    }
    # one step size for both: small enough for the client whose scaled loss is steepest
    rounds = s.rounds[-1]
    steepest = max(float((factors[:, 0] / p**2).max()) for p in ways.values()) * s.smoothness
    theorem_eta = math.log((s.steps * rounds) ** 2) / (
        s.mu * float(factors.mean()) * s.steps * rounds
    )
    eta = min(theorem_eta, 1 / (s.steps * steepest))
    errors = {}
    for name, shares in ways.items():
        masking = Masking(Random(), tuple(shares), unbiased=True)
        plan = TrialPlan(masking, rounds, s.steps, eta, 10.0, s.trials, s.seed)
        target = MaskedObjective(problem, masking).optimum(math.inf)
        errors[name] = np.square(bench.last_iterates(problem, plan) - target).sum(1)
        rows.append({"part": "least variance", "case": f"clients, {name}", "p": s.p, "R": rounds,
                     "distance2": float(errors[name].mean())})  # fmt: skip
    common_errors, best_errors = errors.values()
    mean, low, high = interval(common_errors - best_errors)
    claims.append(Statement("p_i of least variance at w_0 bring w_R closer to w*(p) than one p, "
                        "unbiased masks", f"{mean:.2e} [{low:.2e}, {high:.2e}] closer, of "
                        f"{common_errors.mean():.2e}", "> 0",
                        "yes" if low > 0 else ("no" if high < 0 else "undecided")))  # fmt: skip


def _participation(
    s: BeyondSettings,
    bench: Bench,
    counts: list[int],
    rows: list[dict[str, object]],
    claims: list[Statement],
) -> list[PlotLine]:
    masking = bernoulli(s.p, s.clients)
    target = MaskedObjective(bench.problem, masking).optimum(math.inf)
    lines, last = [], {}
    for count in counts:
        errors = [
            np.square(bench.points(masking, r, participants=count) - target).sum(1)
            for r in s.rounds
        ]
        last[count] = float(errors[-1].mean())
        rows += [{"part": "participation", "case": f"{count} of {s.clients}", "R": r,
                  "distance2": float(o.mean())}
                 for r, o in zip(s.rounds, errors, strict=True)]  # fmt: skip
        lines.append(PlotLine.of(f"{count} of {s.clients} clients", s.rounds, errors))
    few, everyone = counts[0], counts[-1]
    ratio = last[few] / last[everyone]
    claims.append(
        Statement(
            f"error with {few} of {s.clients} clients a round over that with all",
            f"{ratio:.1f}",
            f"{everyone / few:g} if variance alone counts",
            "-",
        )
    )
    return lines
