"""Theorems 2 and 4: stationarity of the masked objective, and of the original one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from submodel.randomness import generator
from submodel_lab.theory.data import Directions
from submodel_lab.theory.drawing import Panel, PlotLine, guide_through
from submodel_lab.theory.masking import Masking, bernoulli, rolling
from submodel_lab.theory.measures import Measure, Statement, judge_positive
from submodel_lab.theory.objective import (
    MaskedObjective,
    gradient_variance,
    largest_gradient,
    sphere_points,
)
from submodel_lab.theory.problems import FloatArray, Net, Problem, TheoryError
from submodel_lab.theory.results import OnProgress, ResultRow, Study, report_nothing
from submodel_lab.theory.studies.sweeps import mean_share, slope_statement, worst_condition
from submodel_lab.theory.theorems import (
    BoundFacts,
    BoundTerms,
    StepSize,
    theorem_2,
    theorem_2_bound,
    theorem_4,
    theorem_4_bound,
)
from submodel_lab.theory.trials import TrialPlan, run_trials

_PLACES = 3  # iterates looked at between r and 2r
_RADIUS = 1.0  # of the points where delta, zeta and G are looked for


@dataclass(frozen=True)
class NonconvexSettings:
    """A net of two tanh units on four features: d = 8, so that F_p is exact over all masks."""

    capacities: tuple[float, ...] = (1.0, 0.75, 0.5)
    rounds: tuple[int, ...] = (64, 128, 256, 512, 1024)
    steps: int = 2
    clients: int = 4
    examples: int = 16
    features: int = 4
    hidden: int = 2
    heterogeneity: float = 0.3
    trials: int = 100
    seed: int = 0
    sweep_rounds: int = 256
    sweep_capacities: tuple[float, ...] = (1.0, 0.75, 0.5, 0.25)
    sweep_steps: tuple[int, ...] = (1, 2, 4, 8)
    sweep_clients: tuple[int, ...] = (2, 4, 8, 16)
    sweep_heterogeneity: tuple[float, ...] = (0.1, 0.2, 0.4, 0.8)
    sweep_noise: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class NonconvexCase:
    """One run."""

    p: float
    rounds: int
    steps: int
    clients: int
    heterogeneity: float
    noise: float | None = None  # Gaussian, of this norm; None: one example a step
    rolls: bool = False
    kinds: int = 0  # different clients, of which all others are copies; 0: all differ

    def problem(self, s: NonconvexSettings) -> Problem:
        """Its net, and where its gradients' noise comes from."""
        kinds = self.kinds or self.clients
        net = _make_net(kinds, s.features, self.heterogeneity, s.seed, s.examples, s.hidden)
        if kinds < self.clients:
            copies = np.arange(self.clients) % kinds
            net = Net(net.x[copies], net.y[copies], hidden_units=s.hidden)
        return net if self.noise is None else NoisyGradients(net, self.noise)

    def masking(self, s: NonconvexSettings) -> Masking:
        """Its masks."""
        if self.rolls:
            return rolling(self.p, self.clients, s.features * s.hidden)
        return bernoulli(self.p, self.clients)

    def share(self, s: NonconvexSettings) -> float:
        """What is really held."""
        return mean_share(self.masking(s), s.features * s.hidden)

    @property
    def source(self) -> str:
        """The theorem that speaks of it."""
        return "Theorem 4" if self.rolls else "Theorem 2"

    def step(self, problem: Problem) -> StepSize:
        """The theorem's step size."""
        d = problem.dimension
        if self.rolls:
            return theorem_4(problem, self.steps, d, self.rounds // d)
        return theorem_2(problem, self.steps, self.rounds)

    def words(self, s: NonconvexSettings) -> str:
        """Its masks, by what is really held."""
        name = "rolling, s/d" if self.rolls else "random, p"
        return f"{name}={self.share(s):g}"


def nonconvex_base(s: NonconvexSettings, rolls: bool = False) -> NonconvexCase:
    """The case that sweeps start from."""
    return NonconvexCase(min(s.capacities), s.sweep_rounds, s.steps, s.clients, s.heterogeneity,
                         rolls=rolls)  # fmt: skip


def check_nonconvex(s: NonconvexSettings) -> None:
    """Refuse settings that the study cannot use."""
    if len(s.rounds) < 3:
        raise TheoryError(f"{len(s.rounds)} values of R: a slope needs at least 3")
    d = s.features * s.hidden
    if wrong := [r for r in (*s.rounds, s.sweep_rounds) if r % d]:
        raise TheoryError(f"R = {wrong[0]}: rolling needs whole epochs of d = {d} rounds")


@lru_cache(maxsize=32)
def _make_net(
    clients: int, features: int, heterogeneity: float, seed: int, examples: int, hidden: int
) -> Net:
    x, y = Directions(clients, features, heterogeneity, seed).draw(1, examples, "net")
    return Net(x, y, hidden_units=hidden)


@dataclass(frozen=True)
class NoisyGradients:
    """A problem's gradients with Gaussian noise of E||xi||^2 = noise^2, so that delta is known."""

    problem: Problem
    noise: float

    @property
    def clients(self) -> int:
        """N."""
        return self.problem.clients

    @property
    def dimension(self) -> int:
        """The number of coordinates, d."""
        return self.problem.dimension

    @property
    def smoothness(self) -> float:
        """L."""
        return self.problem.smoothness

    @property
    def convexity(self) -> float:
        """The problem's, mu."""
        return self.problem.convexity

    def losses(self, w: FloatArray) -> FloatArray:
        """f_i at each point."""
        return self.problem.losses(w)

    def gradients(self, w: FloatArray) -> FloatArray:
        """The gradients of f_i at each point."""
        return self.problem.gradients(w)

    def draw(self, seed: int, round_: int, steps: int, trials: int) -> NDArray[Any]:
        """Standard normal vectors."""
        rng = generator(seed, "noise", round_)
        return rng.standard_normal((steps, self.clients, trials, self.dimension))

    def stochastic_gradients(self, w: FloatArray, xi: NDArray[Any]) -> FloatArray:
        """The gradient and its noise."""
        return np.asarray(self.gradients(w) + self.noise / np.sqrt(self.dimension) * xi)


@dataclass(frozen=True)
class NonconvexPoint:
    """What a case came to."""

    case: NonconvexCase
    step: StepSize
    masked_norm: Measure  # the mean over r of ||grad F_p(w_r)||^2
    original_norm: Measure  # the same of F
    ceiling: BoundTerms
    share: float


def measure_nonconvex(s: NonconvexSettings, case: NonconvexCase) -> NonconvexPoint:
    """Run one case."""
    problem, masking = case.problem(s), case.masking(s)
    step = case.step(problem)
    both = mean_norms(s, problem, masking, case.steps, step.eta, case.rounds)
    start, zeta2, noise2, gradient = _facts(s, case)
    shares = masking.law(problem.dimension).moments[0].mean(1)
    facts = BoundFacts(
        step.eta, case.steps, problem.dimension if case.rolls else case.rounds, case.clients,
        problem.smoothness if case.rolls else float(shares.max()) * problem.smoothness, 0.0,
        noise2, zeta2, start, gradient,
        case.rounds // problem.dimension if case.rolls else 1,
    )  # fmt: skip
    ceiling = theorem_4_bound(facts) if case.rolls else theorem_2_bound(facts)
    return NonconvexPoint(case, step, Measure.of(both[0]), Measure.of(both[1]), ceiling,
                          case.share(s))  # fmt: skip


def _facts(s: NonconvexSettings, case: NonconvexCase) -> tuple[float, float, float, float]:
    """F_p(w_0), zeta^2, delta^2 and G, as the bounds take them; not of R or K."""
    return _masked_facts(s, case.p, case.clients, case.heterogeneity, case.noise, case.rolls,
                         case.kinds)  # fmt: skip


@lru_cache(maxsize=64)
def _masked_facts(
    s: NonconvexSettings, p: float, clients: int, heterogeneity: float, noise: float | None,
    rolls: bool, kinds: int,
) -> tuple[float, float, float, float]:  # fmt: skip
    case = NonconvexCase(p, s.sweep_rounds, s.steps, clients, heterogeneity, noise, rolls,
                         kinds)  # fmt: skip
    problem, masking = case.problem(s), case.masking(s)
    objective = MaskedObjective(problem, masking)
    points = sphere_points(problem, _RADIUS, 8)[0]
    zeta2 = max(objective.spread_at(w) for w in points)
    if noise is None:
        noise2 = gradient_variance(problem, masking, _RADIUS)
    else:
        noise2 = case.share(s) * noise**2
    start = objective.value(np.zeros(problem.dimension))
    return start, zeta2, noise2, largest_gradient(problem, _RADIUS)


def mean_norms(
    s: NonconvexSettings, problem: Problem, masking: Masking, steps: int, eta: float, rounds: int
) -> tuple[FloatArray, FloatArray]:
    """The mean over iterates of ||grad F_p||^2 and ||grad F||^2, for every trial."""
    places, weights = quadrature(rounds)
    plan = TrialPlan(masking, rounds, steps, eta, np.inf, s.trials, s.seed)
    trajectory = run_trials(problem, plan, set(places))
    points = np.concatenate([trajectory.iterates[r] for r in places])
    both = []
    for objective in (MaskedObjective(problem, masking), MaskedObjective(problem)):
        squares = np.square(objective.gradients_at(points)).sum(1)
        both.append(np.asarray(weights) @ squares.reshape(len(places), -1))
    return both[0], both[1]


def quadrature(rounds: int) -> tuple[list[int], list[float]]:
    """Rounds and weights for a mean over r = 1 .. R: early rounds, where much happens, closely.

    >>> quadrature(3), sum(quadrature(1000)[1])
    (([1, 2, 3], [0.3333333333333333, 0.3333333333333333, 0.3333333333333333]), 1.0)
    """
    places, weights, start = [], [], 1
    while start <= rounds:
        stop = min(2 * start, rounds + 1)
        for part in np.array_split(np.arange(start, stop), min(_PLACES, stop - start)):
            places.append(int(part[len(part) // 2]))
            weights.append(len(part) / rounds)
        start = stop
    return places, weights


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
