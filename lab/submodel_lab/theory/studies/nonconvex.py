"""Study of Theorems 2 and 4: stationarity of the masked objective and of the original one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from submodel.core import generator
from submodel_lab.theory.data import Directions
from submodel_lab.theory.drawing import Panel, PlotLine, guide_through
from submodel_lab.theory.measures import Measure, Statement
from submodel_lab.theory.objective import (
    MaskedObjective,
    gradient_variance,
    largest_gradient,
    sphere_points,
)
from submodel_lab.theory.problems import FloatArray, Net, Problem, TheoryError
from submodel_lab.theory.results import OnProgress, ResultRow, Study, report_nothing
from submodel_lab.theory.studies.sweeps import MaskedCase, Sweep, run_cases
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

_PLACES = 3  # evaluated iterates between r and 2r
_RADIUS = 1.0  # norm of the points for delta, zeta and G


@dataclass(frozen=True)
class NonconvexSettings:
    """Settings with two tanh units on four features: d = 8, so that F_p is exact over all masks."""

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

    @property
    def dimension(self) -> int:
        """Number of weights, d."""
        return self.features * self.hidden

    def check(self) -> None:
        """Raise an error for settings that the study cannot use."""
        if len(self.rounds) < 3:
            raise TheoryError(f"{len(self.rounds)} values of R: a slope needs at least 3")
        d = self.dimension
        if wrong := [r for r in (*self.rounds, self.sweep_rounds) if r % d]:
            raise TheoryError(f"R = {wrong[0]}: rolling needs whole epochs of d = {d} rounds")


@dataclass(frozen=True)
class NonconvexCase(MaskedCase):
    """A run."""

    s: NonconvexSettings
    heterogeneity: float
    noise: float | None = None  # Gaussian, of this norm; None: one example a step
    kinds: int = 0  # number of distinct clients, the others are copies; 0: all are distinct
    theorems: ClassVar[tuple[str, str]] = ("Theorem 2", "Theorem 4")

    @cached_property
    def problem(self) -> Problem:
        """Net of the case, with its source of gradient noise."""
        s, kinds = self.s, self.kinds or self.clients
        net = _make_net(kinds, s.features, self.heterogeneity, s.seed, s.examples, s.hidden)
        if kinds < self.clients:
            copies = np.arange(self.clients) % kinds
            net = Net(net.x[copies], net.y[copies], hidden_units=s.hidden)
        return net if self.noise is None else NoisyGradients(net, self.noise)

    @property
    def step(self) -> StepSize:
        """Step size of the theorem."""
        d = self.s.dimension
        if self.rolls:
            return theorem_4(self.problem, self.steps, d, self.rounds // d)
        return theorem_2(self.problem, self.steps, self.rounds)


@lru_cache(maxsize=32)
def _make_net(
    clients: int, features: int, heterogeneity: float, seed: int, examples: int, hidden: int
) -> Net:
    x, y = Directions(clients, features, heterogeneity, seed).draw(1, examples, "net")
    return Net(x, y, hidden_units=hidden)


class NoisyGradients:
    """A problem with Gaussian gradient noise of E||xi||^2 = noise^2, so that delta is known."""

    def __init__(self, problem: Problem, noise: float) -> None:
        self.clients, self.dimension = problem.clients, problem.dimension
        self.smoothness, self.convexity = problem.smoothness, problem.convexity
        self.losses, self.gradients = problem.losses, problem.gradients
        self.noise = noise

    def draw(self, seed: int, round_: int, steps: int, trials: int) -> NDArray[Any]:
        """Draw standard normal vectors."""
        rng = generator(seed, "noise", round_)
        return rng.standard_normal((steps, self.clients, trials, self.dimension))

    def stochastic_gradients(self, w: FloatArray, xi: NDArray[Any]) -> FloatArray:
        """Return the gradients with noise."""
        return np.asarray(self.gradients(w) + self.noise / np.sqrt(self.dimension) * xi)


@dataclass(frozen=True)
class NonconvexPoint:
    """Result of a case."""

    case: NonconvexCase
    step: StepSize
    masked_norm: Measure  # mean over r of ||grad F_p(w_r)||^2
    original_norm: Measure  # mean over r of ||grad F(w_r)||^2
    ceiling: BoundTerms


Points = Mapping[NonconvexCase, NonconvexPoint]
Sweeps = Sequence[Sweep[NonconvexCase]]


def measure_nonconvex(case: NonconvexCase) -> NonconvexPoint:
    """Run a case."""
    s, problem, masking, step = case.s, case.problem, case.masking, case.step
    places, weights = quadrature(case.rounds)
    plan = TrialPlan(masking, case.rounds, case.steps, step.eta, np.inf, s.trials, s.seed)
    trajectory = run_trials(problem, plan, set(places))
    points = np.concatenate([trajectory.iterates[r] for r in places])

    def mean_norm(objective: MaskedObjective) -> Measure:
        """Return the mean over iterates of the squared gradient, for every trial."""
        squares = np.square(objective.gradients_at(points)).sum(1)
        return Measure.of(np.asarray(weights) @ squares.reshape(len(places), -1))

    # the inputs of the bounds do not depend on R and K
    start, zeta2, noise2, gradient = _facts(replace(case, rounds=s.sweep_rounds, steps=s.steps))
    shares = masking.law(s.dimension).moments[0].mean(1)
    facts = BoundFacts(
        step.eta, case.steps, s.dimension if case.rolls else case.rounds, case.clients,
        problem.smoothness if case.rolls else float(shares.max()) * problem.smoothness, 0.0,
        noise2, zeta2, start, gradient, case.rounds // s.dimension if case.rolls else 1,
    )  # fmt: skip
    return NonconvexPoint(
        case, step, mean_norm(MaskedObjective(problem, masking)),
        mean_norm(MaskedObjective(problem)),
        theorem_4_bound(facts) if case.rolls else theorem_2_bound(facts),
    )  # fmt: skip


@lru_cache(maxsize=64)
def _facts(case: NonconvexCase) -> tuple[float, float, float, float]:
    """Return F_p(w_0), zeta^2, delta^2 and G for the bounds."""
    problem, masking = case.problem, case.masking
    objective = MaskedObjective(problem, masking)
    zeta2 = max(objective.spread_at(w) for w in sphere_points(problem, _RADIUS, 8)[0])
    if case.noise is None:
        noise2 = gradient_variance(problem, masking, _RADIUS)
    else:
        noise2 = case.share * case.noise**2
    start = objective.value(np.zeros(problem.dimension))
    return start, zeta2, noise2, largest_gradient(problem, _RADIUS)


def quadrature(rounds: int) -> tuple[list[int], list[float]]:
    """Return rounds and weights for a mean over r = 1 .. R, with early rounds closely spaced.

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


def nonconvex_sweeps(s: NonconvexSettings) -> list[Sweep[NonconvexCase]]:
    """List the sweeps along R, K, N, p, zeta and noise, for both schemes."""
    sweeps: list[Sweep[NonconvexCase]] = []
    for rolls in (False, True):
        base = NonconvexCase(s, min(s.capacities), s.sweep_rounds, s.steps, s.clients,
                             s.heterogeneity, rolls=rolls)  # fmt: skip
        name, copied = base.words, replace(base, kinds=min(s.sweep_clients))
        starts = [base] if rolls else [replace(base, p=p) for p in s.capacities]
        p_values = sorted(s.sweep_capacities, reverse=True)
        inverses = [1 / replace(base, p=p).share for p in p_values]
        zeta = Sweep.along("zeta", base, "heterogeneity", s.sweep_heterogeneity, name)
        sweeps += [
            *(Sweep.along("R", case, "rounds", s.rounds, case.words) for case in starts),
            Sweep.along("K", base, "steps", s.sweep_steps, name),
            Sweep.along("N", copied, "clients", s.sweep_clients, f"{name}, clients copied"),
            Sweep.along("1/p", base, "p", p_values, base.scheme, inverses),
            replace(zeta, every=True),
            Sweep.along("noise", base, "noise", s.sweep_noise, f"{name}, Gaussian noise"),
        ]
    return sweeps


def study_nonconvex(s: NonconvexSettings, on_progress: OnProgress = report_nothing) -> Study:
    """Run the study."""
    s.check()
    sweeps = nonconvex_sweeps(s)
    points = run_cases((case for sweep in sweeps for case in sweep.cases), measure_nonconvex,
                       on_progress)  # fmt: skip
    by_rounds = [sweep for sweep in sweeps if sweep.parameter == "R"]
    statements = [_statement(sweep, points) for sweep in sweeps]
    statements += [_statement(sweep, points, last=3) for sweep in by_rounds if len(sweep.x) > 3]
    for sweep in by_rounds:
        point = points[sweep.cases[-1]]
        if point.case.share < 1:
            above = point.original_norm.minus(point.masked_norm)
            statements.append(Statement.of(
                point.case.source, "residual", f"{sweep.label}, R={point.case.rounds}",
                "||grad F||^2 - ||grad of the masked objective||^2", above, ">",
                conditions=point.step.note))  # fmt: skip
    problem = sweeps[0].cases[0].problem
    settings = {**asdict(s), "d": problem.dimension, "L (largest met)": problem.smoothness}
    notes = [
        "no projection: W is R^d in both proofs",
        "L is the largest curvature met in a ball of radius 3, not a proven bound; delta, zeta and "
        "G are the largest over drawn points of norm 1",
    ]
    return Study("nonconvex", "Theorems 2 and 4: a small tanh net", settings,
                 [_row(p) for p in points.values()], _panels(s, sweeps, points), statements,
                 notes)  # fmt: skip


def _statement(sweep: Sweep[NonconvexCase], points: Points, last: int = 0) -> Statement:
    objective = "F_m(w_e)" if sweep.cases[0].rolls else "F_p(w_r)"
    quantity = f"mean ||grad {objective}||^2"
    return sweep.statement(points, quantity, attrgetter("masked_norm"), last=last)


def _row(point: NonconvexPoint) -> ResultRow:
    case, s = point.case, point.case.s
    return ResultRow(
        {"scheme": case.scheme, "p": case.p, "share": case.share,
         "R": case.rounds, "K": case.steps, "N": case.clients, "n": s.examples,
         "d": s.dimension, "heterogeneity": case.heterogeneity,
         "noise": "examples" if case.noise is None else case.noise, "eta": point.step.eta,
         "seed": s.seed},
        {"mean |grad F_p|^2": point.masked_norm, "mean |grad F|^2": point.original_norm},
        {"bound": point.ceiling.total, "condition": point.step.note},
    )  # fmt: skip


def _panels(s: NonconvexSettings, sweeps: Sweeps, points: Points) -> list[Panel]:
    by_rounds = [sweep for sweep in sweeps if sweep.parameter == "R"]
    masked_lines = [sweep.line(points, attrgetter("masked_norm")) for sweep in by_rounds]
    original_lines = [sweep.line(points, attrgetter("original_norm")) for sweep in by_rounds]
    panels = [
        Panel("the objective that masking induces", "rounds R", "mean over r of ||grad F_p(w_r)||²",
              masked_lines, [guide_through(masked_lines[0], -0.5, "Theorems 2 and 4")]),
        Panel("the original objective at the same points", "rounds R",
              "mean over r of ||grad F(w_r)||²", original_lines),
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
