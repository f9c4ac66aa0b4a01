"""Study of Theorems 1 and 3: rate to w*(p), floor of F, random and rolling masks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import ClassVar, Literal

import numpy as np

from submodel.schemes import Random
from submodel_lab.theory import theorems
from submodel_lab.theory.drawing import Panel, PlotLine, guide_through
from submodel_lab.theory.exact import ExactTrajectory, exact_average_error, exact_moments
from submodel_lab.theory.limits import balance
from submodel_lab.theory.masking import Masking
from submodel_lab.theory.measures import Measure, Statement, Verdict, exact_measure, interval
from submodel_lab.theory.objective import MaskedObjective, largest_gradient, sphere_points
from submodel_lab.theory.problems import FloatArray, Quadratic, TheoryError, mean_losses, quadratics
from submodel_lab.theory.results import OnProgress, ResultRow, Study, report_nothing
from submodel_lab.theory.studies.sweeps import MaskedCase, Sweep, run_cases, slope_statement
from submodel_lab.theory.theorems import BoundFacts, BoundTerms, StepSize
from submodel_lab.theory.trials import TrialPlan, run_trials

StepChoice = Literal["theorem", "theorem 1", "tuned", "decaying", "averaged", "given"]
_GRID = tuple(2.0**power for power in range(-6, 2))  # factors of the theorem's step for tuning
_BALL = 20.0  # radius of the ball W over the norm of the optima; no run leaves it
_ERROR = "E||w_R - w*||^2"
_CLOSE = 0.01  # of a limit
_AXIS = "rounds R"


@dataclass(frozen=True)
class ConvergenceSettings:
    """Settings; by default, gradient noise dominates at the largest R."""

    capacities: tuple[float, ...] = (1.0, 0.75, 0.5)
    rounds: tuple[int, ...] = (80, 160, 320, 640, 1280)
    steps: int = 5
    clients: int = 4
    dimension: int = 10
    mu: float = 1.0
    smoothness: float = 2.0
    heterogeneity: float = 1.0
    noise: float = 10.0
    trials: int = 200
    seed: int = 0
    eta: float | None = None  # own step size, the same for every R
    sweep_rounds: int = 320  # R of the sweeps over other parameters
    sweep_capacities: tuple[float, ...] = (1.0, 0.7, 0.5, 0.3)
    sweep_steps: tuple[int, ...] = (1, 2, 5, 10)
    sweep_clients: tuple[int, ...] = (2, 4, 8, 16)
    sweep_smoothness: tuple[float, ...] = (4.0, 8.0, 16.0, 32.0)
    sweep_spread: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)  # of optima, with the same matrices
    sweep_noise: tuple[float, ...] = (3.0, 10.0, 30.0, 100.0)

    def check(self) -> None:
        """Raise an error for settings that the study cannot use."""
        if self.mu <= 0:
            raise TheoryError(
                f"theorems 1 and 3 need a strongly convex problem: mu = {self.mu:g} here"
            )
        if self.noise == 0:
            raise TheoryError(
                "noise = 0: the study has cases without noise already; give more than 0"
            )
        if len(self.rounds) < 3:
            raise TheoryError(f"{len(self.rounds)} values of R: a slope needs at least 3")
        d = self.dimension
        if wrong := [r for r in (*self.rounds, self.sweep_rounds) if r % d or r < 2 * d]:
            raise TheoryError(
                f"R = {wrong[0]}: rolling needs whole epochs of d = {d} rounds, at least 2"
            )


@dataclass(frozen=True)
class ConvergenceCase(MaskedCase):
    """A run: scheme, problem and step size, with objectives and optima."""

    s: ConvergenceSettings
    noise: float
    smoothness: float
    spread: float = 1.0  # spread of the clients' optima over that of the settings
    step_kind: StepChoice = "theorem"
    kinds: int = 0  # number of distinct clients, the others are copies; 0: all are distinct
    unequal: bool = False  # p_i alternates between p and 1, as in the paper's experiments
    theorems: ClassVar[tuple[str, str]] = ("Theorem 1", "Theorem 3")

    @cached_property
    def problem(self) -> Quadratic:
        """Problem of the case; the matrices depend on the number of distinct clients only."""
        s, kinds = self.s, self.kinds or self.clients
        problem = quadratics(kinds, s.dimension, s.mu, self.smoothness, s.heterogeneity,
                             self.noise, s.seed)  # fmt: skip
        if kinds < self.clients:
            copies = np.arange(self.clients) % kinds
            problem = Quadratic(problem.matrices[copies], problem.vectors[copies], self.noise)
        return spread_optima(problem, self.spread)

    @property
    def masking(self) -> Masking:
        """Masking of the coordinates."""
        if not self.unequal:
            return super().masking
        return Masking(Random(), tuple(1.0 if i % 2 else self.p for i in range(self.clients)))

    @property
    def source(self) -> str:
        """Name of the theorem about this case, or "" if there is none."""
        return super().source if self.step_kind == "theorem" else ""

    @property
    def kind(self) -> str:
        """Description of the case without the parameters of sweeps."""
        step = "" if self.step_kind == "theorem" else f", {self.step_kind} step"
        return self.scheme + (", p_i of 1 and p" if self.unequal else "") + step

    @cached_property
    def original(self) -> MaskedObjective:
        """Objective F."""
        return MaskedObjective(self.problem)

    @cached_property
    def objective(self) -> MaskedObjective:
        """Masked objective F_p or F_m."""
        return MaskedObjective(self.problem, self.masking)

    @cached_property
    def best(self) -> FloatArray:
        """Optimum w* of F."""
        return self.original.optimum(math.inf)

    @cached_property
    def target(self) -> FloatArray:
        """Optimum w*(p) or w*(m) of the masked objective."""
        return self.objective.optimum(math.inf)

    @property
    def radius(self) -> float:
        """Radius of a ball that contains both optima."""
        return max(float(np.linalg.norm(w)) for w in (self.best, self.target))

    @cached_property
    def least(self) -> float:
        """Minimum F(w*)."""
        return self.original.value(self.best)

    @property
    def residual(self) -> float:
        """Residual F(w*(p)) - F(w*)."""
        return self.original.value(self.target) - self.least

    def gaps(self, points: FloatArray) -> FloatArray:
        """Return F - F* at the points."""
        return mean_losses(self.problem, points) - self.least

    @property
    def theorem_step(self) -> StepSize:
        """Step size of the nearest theorem."""
        s = self.s
        if s.eta is not None:
            return StepSize(s.eta, ("one's own step size",))
        if self.rolls and self.step_kind == "theorem":
            return theorems.theorem_3(
                self.problem, self.steps, s.dimension, self.rounds // s.dimension
            )
        return theorems.theorem_1(
            self.problem, min(self.masking.capacities), self.steps, self.rounds
        )

    @property
    def decay(self) -> tuple[float, float]:
        """Initial step and rounds until it is halved, of eta_r = 2 / (mu~ K (r + 4 kappa~))."""
        least = min(self.masking.capacities) * self.s.mu
        rounds = 4 * self.smoothness / least
        return 2 / (least * self.steps * rounds), rounds

    def choose_step(self) -> StepSize:
        """Return the theorem's step size, or the best of a grid by the exact error."""
        if self.step_kind == "decaying":
            return StepSize(self.decay[0], ("decaying",))
        step = self.theorem_step
        if self.step_kind != "tuned":
            return step
        grid = [StepSize(step.eta * factor, ("tuned",)) for factor in _GRID]
        return min(grid, key=lambda c: self.exact(self.plan(c)).distances[-1])

    def plan(self, step: StepSize) -> TrialPlan:
        """Make the plan of trials with a step size."""
        eta: float | tuple[float, ...] = step.eta
        if self.step_kind == "decaying":
            first, half = self.decay
            eta = tuple(first / (1 + r / half) for r in range(self.rounds))
        return TrialPlan(self.masking, self.rounds, self.steps, eta, _BALL * self.radius,
                         self.s.trials, self.s.seed)  # fmt: skip

    def exact(self, plan: TrialPlan) -> ExactTrajectory:
        """Compute the expectations of trials of the plan that never leave the ball."""
        return exact_moments(self.problem, replace(plan, radius=math.inf))

    def ceiling(self, eta: float) -> BoundTerms:
        """Return the theorem's bound on E||w_R - w*||^2."""
        d, q, shares = self.s.dimension, self.problem, self.masking.capacities
        start = float(self.target @ self.target)
        if not self.rolls:
            sigma2 = self.objective.power_at(self.target)
            return theorems.theorem_1_bound(BoundFacts(
                eta, self.steps, self.rounds, self.clients, max(shares) * q.smoothness,
                min(shares) * q.convexity, max(shares) * q.noise**2, sigma2, start,
            ))  # fmt: skip
        radius = 1.5 * self.radius
        zeta2 = max(self.objective.spread_at(w) for w in sphere_points(q, radius, 16)[0])
        return theorems.theorem_3_bound(BoundFacts(
            eta, self.steps, d, self.clients, q.smoothness, q.convexity,
            self.share * q.noise**2, zeta2, start, largest_gradient(q, radius),
            self.rounds // d,
        ))  # fmt: skip


@dataclass(frozen=True)
class ConvergencePoint:
    """Result of a case."""

    case: ConvergenceCase
    step: StepSize
    error: Measure  # ||w_R - w*(p)||^2
    gap: Measure  # F(w_R) - F*
    output_gap: Measure  # F(w^) - F*
    ceiling: BoundTerms
    projections: int


def spread_optima(problem: Quadratic, factor: float) -> Quadratic:
    """Scale the distances of the clients' optima from their mean; the matrices stay."""
    if factor == 1:
        return problem
    optima = np.linalg.solve(problem.matrices, problem.vectors[..., None])[..., 0]
    centre = optima.mean(0)
    vectors = (problem.matrices @ (centre + factor * (optima - centre))[..., None])[..., 0]
    return Quadratic(problem.matrices, vectors, problem.noise)


def convergence_base(s: ConvergenceSettings) -> ConvergenceCase:
    """Return the base case of sweeps, with the smallest p."""
    return ConvergenceCase(s, min(s.capacities), s.sweep_rounds, s.steps, s.clients, s.noise,
                           s.smoothness)  # fmt: skip


def measure_point(case: ConvergenceCase) -> ConvergencePoint:
    """Run a case."""
    step = case.choose_step()
    plan = case.plan(step)
    averages = case.step_kind == "averaged"
    late = range(case.rounds // 2 if averages else case.rounds, case.rounds + 1)
    trajectory = run_trials(case.problem, plan, late)
    w = np.mean([trajectory.iterates[r] for r in late], axis=0)
    errors = np.square(w - case.target).sum(1)
    error = gap = output_gap = None
    if not trajectory.projections:
        exact = case.exact(plan)
        error, gap, output_gap = float(exact.distances[-1]), float(exact.gaps[-1]), exact.output_gap
        if averages:
            error, gap = exact_average_error(case.problem, plan, late), None
    return ConvergencePoint(
        case, step, Measure.of(errors, error), Measure.of(case.gaps(w), gap),
        Measure.of(case.gaps(trajectory.output), output_gap), case.ceiling(step.eta),
        trajectory.projections,
    )  # fmt: skip


def measure_floor(case: ConvergenceCase) -> tuple[Measure, float]:
    """Measure the limit of F without noise; return it with F(w*(p)) - F(w*).

    Iterates are averaged over trials and over the last half of a long run. Their mean differs from
    w*(p) by a drift of order eta K, which the exact value includes.
    """
    quiet = replace(case, noise=0.0, rounds=max(case.s.rounds), step_kind="theorem 1")
    plan = quiet.plan(quiet.theorem_step)
    late = range(quiet.rounds // 2, quiet.rounds + 1)
    trajectory = run_trials(quiet.problem, plan, late)
    means = np.mean([trajectory.iterates[r] for r in late], axis=0)
    centre = means.mean(0)
    # F at the sample mean exceeds F at the true mean by half a trace on average
    excess = float(np.trace(np.cov(means.T) @ quiet.problem.matrices.mean(0))) / (2 * len(means))
    value = quiet.original.value(centre) - quiet.least - excess
    slopes = (means - centre) @ quiet.original.gradient(centre)
    half = interval(slopes)[2] - interval(slopes)[0] + 2 * excess
    exact_mean = quiet.exact(plan).means[late.start :].mean(0)
    exact = quiet.original.value(exact_mean) - quiet.least
    return Measure(value, value - half, value + half, exact), quiet.residual


Points = Mapping[ConvergenceCase, ConvergencePoint]
Sweeps = Sequence[Sweep[ConvergenceCase]]
LongRun = tuple[list[int], list[float], list[BoundTerms]]
"""R, the exact E||w_R - w*||^2 and the proof's bound, for R beyond trials."""


def round_sweeps(s: ConvergenceSettings) -> list[Sweep[ConvergenceCase]]:
    """List the sweeps along R: by p, without noise, rolling, and with other step sizes."""
    base = convergence_base(s)
    least, rolling = f"random, p={base.p:g}", replace(base, rolls=True)
    cases = [
        *((f"random, p={p:g}", replace(base, p=p)) for p in s.capacities),
        (f"random, p_i of 1 and {base.p:g}", replace(base, unequal=True)),
        ("random, p=1, no noise", replace(base, p=1.0, noise=0.0)),
        (f"{least}, no noise", replace(base, noise=0.0)),
        (rolling.words, rolling),
        (f"{rolling.words}, no noise", replace(rolling, noise=0.0)),
        (f"{rolling.words}, Thm 1's step", replace(rolling, step_kind="theorem 1")),
        (f"{least}, tuned step", replace(base, step_kind="tuned")),
        (f"{least}, decaying step", replace(base, step_kind="decaying")),
        (f"{least}, averaged iterates", replace(base, step_kind="averaged")),
    ]
    return [Sweep.along("R", case, "rounds", s.rounds, label) for label, case in cases]


def parameter_sweeps(s: ConvergenceSettings) -> list[Sweep[ConvergenceCase]]:
    """List the sweeps along K, N, p, kappa, noise and heterogeneity, for both schemes."""
    sweeps: list[Sweep[ConvergenceCase]] = []
    kappas = [ell / s.mu for ell in s.sweep_smoothness]
    for rolls in (False, True):
        base = replace(convergence_base(s), rolls=rolls)
        name, copied = base.words, replace(base, kinds=min(s.sweep_clients))
        p_values = sorted(s.sweep_capacities, reverse=True)
        inverses = [1 / replace(base, p=p).share for p in p_values]
        sweeps += [
            Sweep.along("K", base, "steps", s.sweep_steps, name),
            Sweep.along("N", copied, "clients", s.sweep_clients, f"{name}, clients copied"),
            Sweep.along("1/p", base, "p", p_values, base.scheme, inverses),
            Sweep.along("kappa", base, "smoothness", s.sweep_smoothness, name, kappas),
            Sweep.along("noise", base, "noise", s.sweep_noise, name),
            Sweep.along("zeta", replace(base, noise=0.0), "spread", s.sweep_spread,
                        f"{name}, no noise"),
        ]  # fmt: skip
    whole, name = replace(convergence_base(s), p=1.0, noise=0.0), "random, p=1, no noise"
    return [
        *sweeps,
        Sweep.along("zeta", whole, "spread", s.sweep_spread, name),
        Sweep.along("kappa", whole, "smoothness", s.sweep_smoothness, name, kappas),
    ]


def study_convergence(s: ConvergenceSettings, on_progress: OnProgress = report_nothing) -> Study:
    """Run the study: measure every case, then judge the statements."""
    s.check()
    by_rounds, others = round_sweeps(s), parameter_sweeps(s)
    sweeps, judges = [*by_rounds, *others], s.eta is None
    points = run_cases((case for sweep in sweeps for case in sweep.cases), measure_point,
                       on_progress, lambda case: case.rounds)  # fmt: skip
    statements = [w.statement(points, _ERROR, attrgetter("error"),
                              bool(w.cases[0].source) and judges)
              for w in sweeps]  # fmt: skip
    statements += _bound_statements(by_rounds, points)
    base = convergence_base(s)
    quiet = replace(base, noise=0.0)
    noisy, long = _long_run(base), _long_run(quiet)
    for name, (many, errors, limits) in (("", noisy), (", no noise", long)):
        statements.append(slope_statement(
            "Theorem 1", "R", f"{base.words}{name}, R={many[0]} to {many[-1]}",
            "exact E||w_R - w*||^2", many, [exact_measure(e) for e in errors], limits,
            is_stated=judges))  # fmt: skip
    if judges:
        statements += [_limit_statement(case, many[-1], errors[-1])
                   for (many, errors, _), case in ((noisy, base), (long, quiet))
                   if case.noise or case.p < 1]  # fmt: skip
        ratio = exact_measure(long[1][-1] / long[2][-1].total)
        statements.append(Statement.of(
            "Theorem 1", "value", f"{base.words}, no noise, R={long[0][-1]}",
            "exact E||w_R - w*||^2 over the bound of the proof", ratio, "<=", 1.0))  # fmt: skip
    statements += floor_statements(s)
    statements += _output_statements(base, points)
    statements += [
        Statement.of("", "step size", f"{sweep.label}, R={case.rounds}", _ERROR, points[case].error)
        for sweep in by_rounds
        for case in sweep.cases[-1:]
        if replace(case, rounds=base.rounds, step_kind=base.step_kind) == base
    ]  # fmt: skip
    return Study(
        "convergence", "Theorems 1 and 3: convergence to w*(p), quadratics", asdict(s),
        [_row(point) for point in points.values()],
        _panels(base, by_rounds, others, points, long), statements, _notes(points),
    )  # fmt: skip


def _bound_statements(sweeps: Sweeps, points: Points) -> list[Statement]:
    """Judge whether the error is below the bound of the theorem's proof, at the largest R."""
    statements: list[Statement] = []
    for sweep in sweeps:
        point = points[sweep.cases[-1]]
        if point.case.source != "Theorem 1" or point.case.s.eta is not None:
            continue
        ratio = point.error.times(1 / point.ceiling.total)
        statements.append(Statement.of(
            "Theorem 1", "value", f"{sweep.label}, R={point.case.rounds}",
            "E||w_R - w*||^2 over the bound of the proof", ratio, "<=", 1.0,
            point.step.note))  # fmt: skip
    return statements


def _long_run(case: ConvergenceCase) -> LongRun:
    rounds = [max(case.s.rounds) * factor for factor in (1, 4, 16, 64)]
    errors: list[float] = []
    limits: list[BoundTerms] = []
    for number in rounds:
        longer = replace(case, rounds=number)
        step = longer.choose_step()
        errors.append(float(longer.exact(longer.plan(step)).distances[-1]))
        limits.append(longer.ceiling(step.eta))
    return rounds, errors, limits


def _limit_statement(case: ConvergenceCase, rounds: int, error: float) -> Statement:
    """Judge Theorem A: R E||w_R - w*||^2 / log(KR) tends to the stated limit."""
    least = min(case.masking.capacities) * case.s.mu
    limit = balance(case.problem, case.masking).rate_constant(case.steps, least)
    measure = exact_measure(rounds * error / math.log(case.steps * rounds))
    close = Verdict.YES if abs(measure.mean / limit - 1) < _CLOSE else Verdict.NO
    return Statement("Theorem A", "R", f"{case.words}, noise {case.noise:g}, R={rounds}",
                     "exact R E||w_R - w*||^2 / log(KR)", measure, "->", limit, close)  # fmt: skip


def floor_statements(s: ConvergenceSettings) -> list[Statement]:
    """Judge that F at the mean of late iterates is F(w*(p)) - F(w*) plus a drift of order eta K."""
    base = convergence_base(s)
    rolling = replace(base, rolls=True)
    statements = []
    for name, case in (
        (base.words, base),
        (f"random, p_i of 1 and {base.p:g}", replace(base, unequal=True)),
        (rolling.words, rolling),
    ):
        if case.share == 1:
            continue  # without masks there is no floor
        floor, residual = measure_floor(case)
        exact = floor.exact or 0.0
        statements += [
            Statement.of(case.source, "floor", name,
                         "F at the mean of late iterates, with its drift", floor, "=", exact),
            Statement.of(case.source, "floor", name,
                         "the same over F(w*(p)) - F*: what the drift adds",
                         exact_measure(exact / residual), "-", 1.0),
        ]  # fmt: skip
    return statements


def _output_statements(base: ConvergenceCase, points: Points) -> list[Statement]:
    """Compare output and last iterate, and the schemes, at the largest R."""
    base = replace(base, rounds=max(base.s.rounds))
    quiet, random = points[replace(base, noise=0.0)], points[base]
    rolling = points[replace(base, rolls=True, step_kind="theorem 1")]
    name = f"p={base.p:g}, R={base.rounds}"
    statements = []
    if base.p < 1:
        above = quiet.output_gap.minus(quiet.gap)
        statements.append(Statement.of(
            "Algorithm 1", "output", f"random, {name}, no noise",
            "F(w^) - F(w_R): what the output step's fresh masks add", above, ">"))  # fmt: skip
    return [
        *statements,
        Statement.of("", "scheme", name, "F(w^): random - rolling, equal coordinates and step size",
                     random.output_gap.minus(rolling.output_gap), ">"),
        Statement.of("", "scheme", name, "||w_R - w*||^2 to each one's optimum: random - rolling",
                     random.error.minus(rolling.error), ">"),
    ]  # fmt: skip


def _row(point: ConvergencePoint) -> ResultRow:
    case, s = point.case, point.case.s
    return ResultRow(
        {
            "scheme": case.scheme,
            "p": case.p, "share": case.share, "unequal": case.unequal, "R": case.rounds,
            "K": case.steps, "N": case.clients, "d": s.dimension, "mu": s.mu,
            "L": case.smoothness, "heterogeneity": s.heterogeneity, "spread": case.spread,
            "noise": case.noise,
            "step": case.step_kind, "eta": point.step.eta, "seed": s.seed,
        },
        {"distance2": point.error, "F(w_R)-F*": point.gap, "F(w^)-F*": point.output_gap},
        {"residual": case.residual, "bound": point.ceiling.total,
         "projections": float(point.projections),
         "condition": point.step.note},
    )  # fmt: skip


def _notes(points: Points) -> list[str]:
    """Describe each group of cases with an unmet condition of its theorem."""
    by_kind: dict[str, list[ConvergencePoint]] = {}
    for case, point in points.items():
        if case.source:
            by_kind.setdefault(f"{case.source}, {case.kind}", []).append(point)
    notes = {kind: [p.step.note for p in run if p.step.unmet] for kind, run in by_kind.items()}
    return [
        f"{kind}: at {len(unmet)} of {len(by_kind[kind])} points the theorem's condition is "
        f"{unmet[-1]}"
        for kind, unmet in notes.items()
        if unmet
    ]


def _panels(
    base: ConvergenceCase, by_rounds: Sweeps, others: Sweeps, points: Points, long: LongRun
) -> list[Panel]:
    """Make all panels; only stated slopes are drawn."""
    s = base.s

    def over_log(point: ConvergencePoint) -> Measure:
        return point.error.times(1 / math.log(point.case.steps * point.case.rounds))

    noisy = [w for w in by_rounds if w.cases[0].source == "Theorem 1" and w.cases[0].noise]
    quiet = [w for w in by_rounds if not w.cases[0].noise]
    kinds = [w for w in by_rounds if not w.cases[0].rolls and w.cases[0].noise
             and w.cases[0].p == base.p and not w.cases[0].unequal]  # fmt: skip
    rates, floors = (
        [w.line(points, over_log) for w in noisy],
        [w.line(points, attrgetter("error")) for w in quiet],
    )
    guides = []
    if s.eta is None:
        guides = [guide_through(rates[0], -1.0, "Theorem 1")]
        floors += [
            _log_line(s, floors[0], 2, "Theorem 1: slope -2, log²(KR)/R²", "k:"),
            _log_line(s, floors[1], 1, "the masks' variance: slope -1, log(KR)/R", "k--"),
        ]
    return [
        Panel("to the masked optimum, with noise", _AXIS, "E||w_R - w*(p)||² / log(KR)", rates,
              guides),
        Panel("to the masked optimum, without noise", _AXIS, "E||w_R - w*||²", floors),
        _floor_panel(base, points),
        _scheme_panel(base, points),
        Panel("step sizes, random masks with noise", _AXIS, "E||w_R - w*(p)||²",
              [w.line(points, attrgetter("error")) for w in kinds]),
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
    """Return (log(KR)/R)^power through the first point of a curve."""
    values = [(math.log(s.steps * r) / r) ** power for r in s.rounds]
    return PlotLine(label, s.rounds, [line.mean[0] * v / values[0] for v in values], style=style)


def _gap_lines(case: ConvergenceCase, points: Points, prefix: str = "") -> list[PlotLine]:
    """Return curves of F along R, for the last iterate and the output."""
    sweep = Sweep.along("R", case, "rounds", case.s.rounds, f"{prefix}F(w_R)")
    output = replace(sweep, label=f"{prefix}F(w^)").line(points, attrgetter("output_gap"))
    return [sweep.line(points, attrgetter("gap")), replace(output, style="--s")]


def _floor_panel(base: ConvergenceCase, points: Points) -> Panel:
    """Draw F of the last iterate and of the output without noise, with both floors."""
    quiet = replace(base, noise=0.0)
    last = points[replace(quiet, rounds=base.s.rounds[-1])]
    levels = {"residual F(w*(p)) - F*": last.case.residual}
    if last.output_gap.exact is not None:
        levels["floor of the output, E F(w^) - F* (exact)"] = last.output_gap.exact
    return Panel(f"the original objective, random p={base.p:g}, no noise", _AXIS, "E F - F(w*)",
                 _gap_lines(quiet, points), levels=levels)  # fmt: skip


def _scheme_panel(base: ConvergenceCase, points: Points) -> Panel:
    rolling = replace(base, rolls=True, step_kind="theorem 1")
    lines = [*_gap_lines(base, points, "random: "), *_gap_lines(rolling, points, "rolling: ")]
    return Panel("random against rolling, equal coordinates and steps", _AXIS, "E F - F(w*)", lines,
                 levels={"residual, random": base.residual,
                         "residual, rolling": rolling.residual})  # fmt: skip


def _ratio_panel(source: str, sweeps: Sweeps, points: Points) -> Panel:
    """Draw the error over the bound's leading terms; a rise shows a missing dependence."""
    lines = []
    for sweep in sweeps:
        first = sweep.cases[0]
        if first.source != source:
            continue
        run = [points[case] for case in sweep.cases]
        limits = [sum(p.ceiling.terms[name] for name in p.ceiling.leading) for p in run]
        start = run[0].error.mean / limits[0]
        measures = [p.error.times(1 / (b * start)) for p, b in zip(run, limits, strict=True)]
        x = [value / sweep.x[0] for value in sweep.x]
        quiet = "" if first.noise else ", no noise"
        label = f"{sweep.parameter} from {sweep.x[0]:g}, p={first.share:g}{quiet}"
        lines.append(PlotLine.of_measures(label, x, measures))
    return Panel(f"{source}: error over its leading term", "parameter / its first value",
                 "ratio / its first value", lines, levels={"may not rise": 1.0})  # fmt: skip
