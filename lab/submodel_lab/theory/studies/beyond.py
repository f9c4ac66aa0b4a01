"""Study beyond the paper: unbiased masks, best p for a budget, window order, participation."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

import numpy as np

from submodel.schemes import Random
from submodel_lab.theory.drawing import Panel, PlotLine
from submodel_lab.theory.exact import exact_moments
from submodel_lab.theory.limits import least_variance, variance
from submodel_lab.theory.masking import Masking, bernoulli, rolling
from submodel_lab.theory.measures import Measure, Statement, exact_measure
from submodel_lab.theory.objective import MaskedObjective
from submodel_lab.theory.problems import FloatArray, Quadratic, TheoryError, mean_losses, quadratics
from submodel_lab.theory.results import OnProgress, ResultRow, Study, report_nothing
from submodel_lab.theory.studies.sweeps import mean_share
from submodel_lab.theory.trials import TrialPlan, run_trials

_RADIUS = 50.0  # so large that no run leaves the ball


@dataclass(frozen=True)
class BeyondSettings:
    """Settings with quadratics, as in the convergence study."""

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


@dataclass(frozen=True)
class BeyondPoint:
    """Result of a run."""

    rounds: int
    error: Measure  # ||w_R - w*||^2 to the run's own optimum
    gap: Measure  # F(w_R) - F(w*)


class BeyondBench:
    """A problem with the rows and statements of its runs."""

    def __init__(self, s: BeyondSettings, on_progress: OnProgress, total: int) -> None:
        self.s, self._on_progress, self._total, self._step_count = s, on_progress, total, 0
        self.rows: list[ResultRow] = []
        self.statements: list[Statement] = []
        self.problem = quadratics(s.clients, s.dimension, s.mu, s.smoothness, s.heterogeneity,
                                  s.noise, s.seed)  # fmt: skip
        self.quiet = Quadratic(self.problem.matrices, self.problem.vectors)
        self.original = MaskedObjective(self.problem)
        self.best = self.original.optimum(math.inf)
        self.least = self.original.value(self.best)

    def run(
        self, masking: Masking, rounds: int, noisy: bool = True, participants: int | None = None
    ) -> BeyondPoint:
        """Train, with Theorem 1's step size for the masked objective's own mu."""
        s = self.s
        scale = float(masking.factors(s.dimension)[0, 0])
        least = masking.capacities[0] * scale**2 * s.mu
        eta = math.log((s.steps * rounds) ** 2) / (least * s.steps * rounds)
        plan = TrialPlan(masking, rounds, s.steps, eta, _RADIUS, s.trials, s.seed, participants)
        return self.run_plan(self.problem if noisy else self.quiet, plan)

    def run_plan(self, problem: Quadratic, plan: TrialPlan) -> BeyondPoint:
        """Run the trials of a plan and compute their exact values."""
        trajectory = run_trials(problem, plan, [plan.rounds])
        w = trajectory.iterates[plan.rounds]
        target = MaskedObjective(problem, plan.masking).optimum(math.inf)
        exact = None
        if not trajectory.projections:
            exact = exact_moments(problem, replace(plan, radius=math.inf))
        self._step_count += 1
        self._on_progress(self._step_count, self._total)
        errors = np.square(w - target).sum(1)
        same = problem.matrices is self.problem.matrices  # F* is that of the bench's problem
        return BeyondPoint(
            plan.rounds,
            Measure.of(errors, None if exact is None else float(exact.distances[-1])),
            Measure.of(self.gaps(w), float(exact.gaps[-1]) if exact is not None and same else None),
        )

    def gaps(self, points: FloatArray) -> FloatArray:
        """Return F - F(w*) at the points."""
        return mean_losses(self.problem, points) - self.least

    def add_row(
        self, part: str, case: str, point: BeyondPoint | None, p: float, **facts: float
    ) -> None:
        """Add a row to the table."""
        s = self.s
        parameters = {
            "part": part, "case": case, "p": p, "R": point.rounds if point else "", "K": s.steps,
            "N": s.clients, "d": s.dimension, "seed": s.seed,
        }  # fmt: skip
        measures = {"distance2": point.error, "F(w_R)-F*": point.gap} if point else {}
        self.rows.append(ResultRow(parameters, measures, facts))


def compare_budgets(bench: BeyondBench) -> list[PlotLine]:
    """Compare p at equal budgets of trained coordinates p R K."""
    s = bench.s
    lines = []
    for budget in s.budgets:
        points = {}
        for p in sorted(s.capacities):
            points[p] = bench.run(bernoulli(p, s.clients), round(budget / p))
            bench.add_row("budget", f"budget {budget}", points[p], p)
        whole, smaller = points[max(points)], [p for p in points if p < max(points)]
        best = min(smaller, key=lambda p: points[p].gap.mean, default=max(points))
        less = whole.gap.minus(points[best].gap)
        bench.statements.append(Statement.of(
            "", "budget", f"{budget} full rounds' worth, p={best:g} against {max(points):g}",
            "how much lower F(w_R) is at the best p < 1", less, ">"))  # fmt: skip
        measures = [point.gap for point in points.values()]
        lines.append(PlotLine.of_measures(f"{budget} rounds' worth", list(points), measures))
    return lines


def compare_few_or_many(bench: BeyondBench, counts: list[int]) -> None:
    """Compare few clients with large shares and many with small ones, at equal coordinates."""
    s = bench.s
    for count in counts:
        point = bench.run(bernoulli(1 / count, s.clients), s.rounds[-1], participants=count)
        bench.add_row("few or many", f"{count} of {s.clients}", point, 1 / count)
        bench.statements.append(Statement.of(
            "", "few or many", f"{count} clients with p={1 / count:g}, R={s.rounds[-1]}",
            "F(w_R) - F*", point.gap))  # fmt: skip


def compare_variances(bench: BeyondBench) -> None:
    """Compare one p for all with the p of least variance and equal sum.

    Over coordinates the variance is exact at w_0 = 0, where a masked model equals the model. Over
    clients, whose losses are scaled from 1/4 to 4 here, both are trained.
    """
    s = bench.s
    start = bench.problem.gradients(np.zeros((s.clients, 1, s.dimension)))[:, 0]
    powers = np.square(start).mean(0)
    for p in sorted(set(s.capacities) - {1.0}):
        even = variance(powers, np.full(s.dimension, p))
        best = variance(powers, least_variance(powers, p * s.dimension))
        bench.add_row("least variance", "coordinates", None, p, variance=even, least=best)
        bench.statements.append(Statement.of(
            "", "least variance", f"coordinates, p={p:g}",
            "variance of the first unbiased step, best p_j over one p",
            exact_measure(best / even), "<=", 1.0))  # fmt: skip
    factors = 2.0 ** np.linspace(-2, 2, s.clients)[:, None]
    problem = Quadratic(bench.problem.matrices * factors[..., None],
                        bench.problem.vectors * factors)  # fmt: skip
    shares_by_name = {
        "one p": np.full(s.clients, s.p),
        "best p_i": least_variance(np.square(start * factors).sum(1), s.p * s.clients),
    }
    # one step size for both: small enough for the client whose scaled loss is steepest
    rounds = s.rounds[-1]
    steepest = s.smoothness * max(
        float((factors[:, 0] / p**2).max()) for p in shares_by_name.values()
    )
    theorem_eta = math.log((s.steps * rounds) ** 2) / (
        s.mu * float(factors.mean()) * s.steps * rounds
    )
    eta = min(theorem_eta, 1 / (s.steps * steepest))
    points: list[BeyondPoint] = []
    for name, shares in shares_by_name.items():
        masking = Masking(Random(), tuple(shares), unbiased=True)
        plan = TrialPlan(masking, rounds, s.steps, eta, 50.0, s.trials, s.seed)
        points.append(bench.run_plan(problem, plan))
        bench.add_row("least variance", f"clients, {name}", points[-1], s.p)
    less = points[0].error.minus(points[1].error)
    bench.statements.append(Statement.of(
        "", "least variance", f"clients, unbiased masks, p={s.p:g}",
        "how much closer to w*(p) the p_i of least variance at w_0 bring w_R", less,
        ">"))  # fmt: skip


def compare_schemes(bench: BeyondBench) -> tuple[list[PlotLine], list[PlotLine]]:
    """Compare schemes without noise by F and by the distance to each optimum."""
    s = bench.s
    maskings = {
        "random": bernoulli(s.p, s.clients),
        "unbiased 1/p": bernoulli(s.p, s.clients, unbiased=True),
        "rolling, shuffled": rolling(s.p, s.clients, s.dimension),
        "rolling, sequential": rolling(s.p, s.clients, s.dimension, sequential=True),
    }
    to_original, to_optimum, finals = [], [], {}
    for name, masking in maskings.items():
        points = [bench.run(masking, r, noisy=False) for r in s.rounds]
        target = MaskedObjective(bench.problem, masking).optimum(math.inf)
        finals[name] = points[-1]
        to_optimum.append(PlotLine.of_measures(name, s.rounds, [p.error for p in points]))
        to_original.append(PlotLine.of_measures(name, s.rounds, [p.gap for p in points]))
        residual = bench.original.value(target) - bench.least
        distance = float(np.linalg.norm(target - bench.best))
        share = mean_share(masking, s.dimension)
        for point in points:
            bench.add_row("scheme", name, point, share, residual=residual, distance=distance)
        for quantity, number in (("F(w*(p)) - F(w*)", residual), ("||w*(1) - w*(p)||", distance)):
            bench.statements.append(Statement.of("", "scheme", f"{name}, share {share:g}", quantity,
                                          exact_measure(number)))  # fmt: skip
    closer = finals["rolling, sequential"].error.minus(finals["rolling, shuffled"].error)
    bench.statements.append(Statement.of(
        "Section 3", "order", f"rolling, R={s.rounds[-1]}, no noise",
        "how much closer to w*(m) shuffling brings than order does", closer, ">"))  # fmt: skip
    return to_original, to_optimum


def compare_participation(bench: BeyondBench, counts: list[int]) -> list[PlotLine]:
    """Compare numbers of participants per round."""
    s = bench.s
    masking = bernoulli(s.p, s.clients)
    lines, last = [], {}
    for count in counts:
        points = [bench.run(masking, r, participants=count) for r in s.rounds]
        last[count] = points[-1].error
        for point in points:
            bench.add_row("participation", f"{count} of {s.clients}", point, s.p)
        lines.append(PlotLine.of_measures(f"{count} of {s.clients} clients", s.rounds,
                                          [p.error for p in points]))  # fmt: skip
    few, most = counts[0], counts[-1]
    ratio = last[few].times(1 / last[most].mean)
    bench.statements.append(Statement.of(
        "", "participation", f"{few} of {s.clients} clients over all, R={s.rounds[-1]}",
        "E||w_R - w*||^2 over that with all; averaging alone would give the number stated", ratio,
        "-", most / few))  # fmt: skip
    return lines


def study_beyond(s: BeyondSettings, on_progress: OnProgress = report_nothing) -> Study:
    """Run the study."""
    if wrong := [r for r in s.rounds if r % s.dimension]:
        raise TheoryError(f"R = {wrong[0]}: rolling needs whole epochs of d = {s.dimension} rounds")
    participants = [n for n in (1, 2, 4, 8) if n < s.clients] + [s.clients]
    total = len(s.budgets) * len(s.capacities) + len(s.rounds) * (4 + len(participants))
    total += len(participants) + 2
    bench = BeyondBench(s, on_progress, total)
    budgets = compare_budgets(bench)
    compare_few_or_many(bench, participants)
    compare_variances(bench)
    to_original, to_optimum = compare_schemes(bench)
    part = compare_participation(bench, participants)
    panels = [
        Panel("equal budget of trained coordinates", "p", "E F(w_R) - F(w*)", budgets,
              log=(False, True)),
        Panel(f"original objective, p = {s.p:g}, no noise", "rounds R", "E F(w_R) - F(w*)",
              to_original),
        Panel("to each one's own optimum, no noise", "rounds R", "E||w_R - w*(p)||²", to_optimum),
        Panel(f"partial participation, p = {s.p:g}", "rounds R", "E||w_R - w*(p)||²", part),
    ]  # fmt: skip
    return Study("beyond", "Beyond the paper: budgets, unbiased masks, order, participation",
                 asdict(s), bench.rows, panels, bench.statements)  # fmt: skip
