"""Study of Theorems 5 and 6: one changed example, shared randomness, controls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from submodel.core import generator
from submodel_lab.theory.data import Directions
from submodel_lab.theory.drawing import Panel, PlotLine, guide_through
from submodel_lab.theory.measures import Measure, Statement
from submodel_lab.theory.problems import FloatArray, Logistic, TheoryError, mean_losses
from submodel_lab.theory.results import OnProgress, ResultRow, Study, report_nothing
from submodel_lab.theory.studies.sweeps import MaskedCase, Sweep, run_cases
from submodel_lab.theory.theorems import (
    BoundTerms,
    StabilityFacts,
    StepSize,
    theorem_5,
    theorem_5_bound,
    theorem_6,
    theorem_6_bound,
)
from submodel_lab.theory.trials import MaskDraws, TrialPlan, run_trials

GRADIENT = 1.0
"""Largest gradient norm G: examples have norm 1, so logistic gradients have at most norm 1."""
_HALVINGS = 9  # of the interval in the search for a step size
_LEAST_FACTOR = 1e-3
_CONTROL_STEPS = 25  # steps of progress for the controls of a case
_OUTPUT, _ITERATE = attrgetter("output"), attrgetter("iterate")


@dataclass(frozen=True)
class StabilitySettings:
    """Settings with logistic regression, convex but not strongly; every trial draws a dataset."""

    capacities: tuple[float, ...] = (1.0, 0.8, 0.5, 0.3)
    examples: tuple[int, ...] = (16, 32, 64, 128)
    clients: tuple[int, ...] = (2, 4, 8)
    dimension: int = 10
    heterogeneity: float = 0.3
    rounds: int = 60
    steps: int = 2
    radius: float = 50.0
    trials: int = 300
    seed: int = 0
    sweep_rounds: tuple[int, ...] = (60, 120, 240, 480)
    sweep_steps: tuple[int, ...] = (1, 2, 4, 8)
    sweep_heterogeneity: tuple[float, ...] = (0.1, 0.2, 0.4, 0.8)
    sweep_batches: tuple[int, ...] = (8, 4, 2, 1)  # examples per step, inverse to delta^2
    test_examples: int = 10_000  # per client, for the risk

    def check(self) -> None:
        """Raise an error for settings that the study cannot use."""
        d = self.dimension
        if wrong := [r for r in (self.rounds, *self.sweep_rounds) if r % d or r < d]:
            raise TheoryError(f"rounds = {wrong[0]}: not whole epochs of d = {d} windows")


Iterates = tuple[FloatArray, FloatArray]
"""Iterates w_R and outputs w^ of every trial."""


@dataclass(frozen=True)
class StabilityCase(MaskedCase):
    """A run on two neighbouring datasets."""

    s: StabilitySettings
    n: int
    heterogeneity: float
    batch: int = 1
    eta_factor: float = 1.0  # factor of the theorem's step size, below 1 for controls
    theorems: ClassVar[tuple[str, str]] = ("Theorem 5", "Theorem 6")

    @property
    def data(self) -> Directions:
        """Distribution of the examples."""
        return Directions(self.clients, self.s.dimension, self.heterogeneity, self.s.seed)

    def step(self, problem: Logistic) -> StepSize:
        """Return the theorem's step size times `eta_factor`."""
        d = self.s.dimension
        if self.rolls:
            step = theorem_6(problem, self.n, self.steps, d, self.rounds // d)
        else:
            step = theorem_5(problem, self.p, self.n, self.steps, self.rounds)
        return StepSize(step.eta * self.eta_factor, step.unmet)

    def run(self, problem: Logistic, smoothness: float, eta: float) -> tuple[Logistic, Iterates]:
        """Train on a dataset with a given L; return the problem with batches, w_R and w^."""
        s = self.s
        batches = BatchLogistic(problem.x, problem.y, problem.l2, smoothness, self.batch)
        plan = TrialPlan(self.masking, self.rounds, self.steps, eta, s.radius, s.trials, s.seed)
        trajectory = run_trials(batches, plan, [self.rounds])
        return batches, (trajectory.iterates[self.rounds], trajectory.output)


@dataclass(frozen=True)
class BatchLogistic(Logistic):
    """Logistic regression with several examples per step and a given L."""

    fixed_smoothness: float = 1.0
    batch: int = 1

    @property
    def smoothness(self) -> float:
        """Given L, the same for both datasets, so that outputs do not differ by a change of L."""
        return self.fixed_smoothness

    def draw(self, seed: int, round_: int, steps: int, trials: int) -> NDArray[Any]:
        """Draw ``batch`` examples per step, uniformly and with replacement."""
        rng = generator(seed, "samples", round_)
        shape = (steps, self.clients, trials, self.batch)
        return rng.integers(self.x.shape[2], size=shape)

    def examples_at(self, xi: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
        """Return the examples xi as sets."""
        i = np.arange(self.clients)[:, None, None]
        t = np.arange(xi.shape[1])[None, :, None]
        return self.x[i, t, xi], self.y[i, t, xi]


def neighbours(source: Directions, trials: int, n: int) -> tuple[Logistic, Logistic]:
    """Draw datasets S and S^(i), which differ in the first example of client 0."""
    x, y = source.draw(trials, n, "examples")
    new_x, new_y = source.draw(trials, 1, "redrawn")
    other_x, other_y = x.copy(), y.copy()
    other_x[0, :, 0], other_y[0, :, 0] = new_x[0, :, 0], new_y[0, :, 0]
    return Logistic(x, y), Logistic(other_x, other_y)


def stability_base(s: StabilitySettings, rolls: bool = False) -> StabilityCase:
    """Return the base case of sweeps, with the smallest p."""
    return StabilityCase(s, min(s.capacities), s.rounds, s.steps, s.clients[len(s.clients) // 2],
                         s.examples[len(s.examples) // 2], s.heterogeneity,
                         rolls=rolls)  # fmt: skip


@dataclass(frozen=True)
class StabilityPoint:
    """Result of a case."""

    case: StabilityCase
    step: StepSize
    output: Measure  # ||w^ - w^'||
    iterate: Measure  # ||w_R - w_R'||
    output_loss: Measure  # training loss of w^
    iterate_loss: Measure  # training loss of w_R
    gap: Measure  # risk - training loss of w^
    ceiling: BoundTerms
    noise: float  # delta


Points = Mapping[StabilityCase, StabilityPoint]
Control = tuple[StabilityPoint, Callable[[StabilityPoint], Measure]]
"""A full model as control of a masked one, and the compared measure."""


def measure_stability(case: StabilityCase) -> StabilityPoint:
    """Train on both datasets with shared masks and samples."""
    first, second = neighbours(case.data, case.s.trials, case.n)
    step, smoothness = case.step(first), first.smoothness
    problem, (w, output) = case.run(first, smoothness, step.eta)
    _, (w_other, output_other) = case.run(second, smoothness, step.eta)
    noise2, power = _gradient_powers(case, problem, w)
    facts = StabilityFacts(case.clients, case.n, case.share * smoothness, noise2, GRADIENT,
                           case.data.distance, power)  # fmt: skip
    losses = mean_losses(problem, output)
    return StabilityPoint(
        case, step,
        Measure.of(np.linalg.norm(output - output_other, axis=1)),
        Measure.of(np.linalg.norm(w - w_other, axis=1)),
        Measure.of(losses), Measure.of(mean_losses(problem, w)),
        Measure.of(_risk(case, output) - losses),
        theorem_6_bound(facts) if case.rolls else theorem_5_bound(facts),
        float(np.sqrt(noise2)),
    )  # fmt: skip


def train_once(case: StabilityCase) -> tuple[float, float]:
    """Return the mean training losses of w_R and w^ on the first dataset."""
    first, _ = neighbours(case.data, case.s.trials, case.n)
    problem, points = case.run(first, first.smoothness, case.step(first).eta)
    iterate, output = (float(mean_losses(problem, w).mean()) for w in points)
    return iterate, output


def _risk(case: StabilityCase, w: FloatArray) -> FloatArray:
    """Return the loss on new examples of every client, the same for all trials."""
    x, y = case.data.draw(1, case.s.test_examples, "test")
    total = np.zeros(len(w))
    for client_x, client_y in zip(x[:, 0], y[:, 0], strict=True):
        total += np.logaddexp(0, -client_y * (w @ client_x.T)).mean(1)
    return total / case.clients


def _gradient_powers(case: StabilityCase, problem: Logistic, w: FloatArray) -> tuple[float, float]:
    """Return delta^2 and sigma_*^2 at w_R with fresh masks."""
    s = case.s
    masks = MaskDraws(case.masking, s.dimension, len(w), s.seed)(case.rounds)
    gradients = masks * problem.gradients(masks * w)
    xi = problem.draw(s.seed + 1, case.rounds, 1, len(w))[0]
    away = masks * problem.stochastic_gradients(masks * w, xi) - gradients
    return float(np.square(away).sum(-1).mean()), float(np.square(gradients).sum(-1).mean())


def match_factor(loss_of: Callable[[float], float], target: float) -> float | None:
    """Find the factor of the step size, up to 1, that reaches a target loss; None if none does.

    >>> round(match_factor(lambda factor: 1 - factor, 0.5), 2)
    0.5
    """
    low, high = _LEAST_FACTOR, 1.0
    if not loss_of(high) <= target <= loss_of(low):
        return None
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        if loss_of(middle) > target:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def control_points(point: StabilityPoint) -> dict[str, Control]:
    """Measure full models as controls of a masked one, by name, with the compared measures.

    A masked model moves less in the same rounds, so it is less trained. A full model that moves
    less is more stable as well; only equal training losses compare the masks themselves.
    """
    whole = replace(point.case, p=1.0, rolls=False)
    smaller = replace(whole, eta_factor=point.case.share)
    controls: dict[str, Control] = {"step p eta, w^": (measure_stability(smaller), _OUTPUT)}
    for name, place, read, target in (
        ("equal training loss, w_R", 0, _ITERATE, point.iterate_loss.mean),
        ("equal training loss, w^", 1, _OUTPUT, point.output_loss.mean),
    ):

        def loss_of(factor: float, place: int = place) -> float:
            return train_once(replace(whole, eta_factor=factor))[place]

        factor = match_factor(loss_of, target)
        if factor is not None:
            controls[name] = (measure_stability(replace(whole, eta_factor=factor)), read)
    return controls


def control_statements(point: StabilityPoint, controls: Mapping[str, Control]) -> list[Statement]:
    """Judge whether the masked model is more stable than its controls."""
    source, statements = point.case.source, []
    for name, (full, read) in controls.items():
        words = f"{point.case.words}: {name}"
        less = read(full).minus(read(point))
        statements += [
            Statement.of(source, "p, control", words,
                         "how much less the masked model moves than the full one", less, ">",
                         conditions=point.step.note),
            Statement.of(source, "p, control", words, "the full model's distance", read(full), "-",
                         read(point).mean, point.step.note),
        ]  # fmt: skip
    return statements


def stability_sweeps(s: StabilitySettings) -> list[Sweep[StabilityCase]]:
    """List the sweeps along n, N, R, K, D_max and noise; n and N at several p."""
    sweeps: list[Sweep[StabilityCase]] = []
    for rolls in (False, True):
        base = stability_base(s, rolls)
        p_values = dict.fromkeys((1.0, base.p))
        for p in s.capacities if not rolls else (1.0, base.p):
            case = replace(base, p=p)
            sweeps.append(Sweep.along("n", case, "n", s.examples, case.words))
        for p in p_values:
            case = replace(base, p=p)
            sweeps.append(Sweep.along("N", case, "clients", s.clients, case.words))
        distances = [replace(base, heterogeneity=h).data.distance for h in s.sweep_heterogeneity]
        sweeps += [
            Sweep.along("R", base, "rounds", s.sweep_rounds, base.words),
            Sweep.along("K", base, "steps", s.sweep_steps, base.words),
            Sweep.along("D_max", base, "heterogeneity", s.sweep_heterogeneity, base.words,
                        distances),
            Sweep.along("noise", base, "batch", s.sweep_batches, base.words),
        ]  # fmt: skip
    return sweeps


def _sweep_statements(sweep: Sweep[StabilityCase], points: Points) -> list[Statement]:
    """Judge whether the distances of w^ and w_R change along the parameter as the bound does."""
    if sweep.parameter == "noise":  # use the measured delta
        sweep = replace(sweep, x=[points[case].noise for case in sweep.cases])
    return [
        sweep.statement(points, f"E||{name} - {name}'||", read)
        for name, read in (("w^", _OUTPUT), ("w_R", _ITERATE))
    ]


def study_stability(s: StabilitySettings, on_progress: OnProgress = report_nothing) -> Study:
    """Run the study."""
    s.check()
    sweeps = stability_sweeps(s)
    chains = [
        [replace(stability_base(s, rolls), p=p) for p in sorted(s.capacities, reverse=True)]
        for rolls in (False, True)
    ]
    every = [*(case for chain in chains for case in chain),
             *(case for sweep in sweeps for case in sweep.cases)]  # fmt: skip
    masked_cases = [case for chain in chains for case in chain if case.share < 1]
    beyond = _CONTROL_STEPS * len(masked_cases)
    points = run_cases(every, measure_stability, on_progress, beyond=beyond)
    statements = [statement for chain in chains for statement in _chain_statements(chain, points)]
    controls = {}
    for number, case in enumerate(masked_cases):
        controls[case] = control_points(points[case])
        statements += control_statements(points[case], controls[case])
        done = len(points) + _CONTROL_STEPS * (number + 1)
        on_progress(done, len(points) + beyond)
    statements += [statement for sweep in sweeps for statement in _sweep_statements(sweep, points)]
    statements += [statement for chain in chains for statement in _gap_statements(chain, points)]
    rows = [_row(point, "") for point in points.values()]
    rows += [
        _row(full, f"{name}, of {case.words}")
        for case, by_control in controls.items() for name, (full, _) in by_control.items()
    ]  # fmt: skip
    return Study("stability", "Theorems 5 and 6: one changed example, shared randomness",
                 asdict(s), rows, _panels(sweeps, chains, controls, points), statements,
                 ["delta and sigma_* in the bounds are those at w_R"])  # fmt: skip


def _chain_statements(chain: Sequence[StabilityCase], points: Points) -> list[Statement]:
    """Judge at equal step and rounds whether every smaller p is more stable than the next."""
    statements = []
    for larger, smaller in pairwise(chain):
        less = points[larger].output.minus(points[smaller].output)
        statements.append(Statement.of(
            larger.source, "p", f"{smaller.words} against {larger.share:g}, equal step and rounds",
            "how much less w^ moves", less, ">", conditions=points[smaller].step.note))  # fmt: skip
    return statements


def _gap_statements(chain: Sequence[StabilityCase], points: Points) -> list[Statement]:
    """Judge the corollary, gap <= G x stability, for the mean of the gap and its mean size."""
    statements = []
    for case in chain:
        point = points[case]
        gap, distance = point.gap.values, point.output.values
        assert gap is not None
        assert distance is not None
        for source, quantity, sizes in (
            ("Corollary", "G E||w^ - w^'|| - E(risk - training loss)", gap),
            ("Lemma 1", "G E||w^ - w^'|| - E|risk - training loss|", abs(gap)),
        ):
            margin = Measure.of(GRADIENT * distance - sizes)
            statements.append(Statement.of(source, "gap", case.words, quantity, margin, ">",
                                       conditions=point.step.note))  # fmt: skip
    return statements


def _row(point: StabilityPoint, control: str) -> ResultRow:
    case, s = point.case, point.case.s
    return ResultRow(
        {"scheme": case.scheme, "control": control, "p": case.p,
         "share": case.share, "n": case.n, "N": case.clients, "R": case.rounds, "K": case.steps,
         "d": s.dimension, "heterogeneity": case.heterogeneity, "batch": case.batch,
         "eta": point.step.eta, "seed": s.seed},
        {"distance of w^": point.output, "distance of w_R": point.iterate,
         "train loss of w^": point.output_loss, "train loss of w_R": point.iterate_loss,
         "risk - train loss": point.gap},
        {"D_max": case.data.distance, "delta": point.noise, "bound": point.ceiling.total,
         "condition": point.step.note},
    )  # fmt: skip


def _panels(
    sweeps: Sequence[Sweep[StabilityCase]],
    chains: Sequence[Sequence[StabilityCase]],
    controls: Mapping[StabilityCase, Mapping[str, Control]],
    points: Points,
) -> list[Panel]:
    """Draw distances along N n, along p with both controls, and the gap with its bound."""

    def lines(parameter: str, read: Callable[[StabilityPoint], Measure]) -> list[PlotLine]:
        return [
            replace(sweep.line(points, read), x=[float(c.clients * c.n) for c in sweep.cases],
                    style="--s" if sweep.cases[0].rolls else "-o")
            for sweep in sweeps if sweep.parameter == parameter
        ]  # fmt: skip

    outputs, iterates, clients = lines("n", _OUTPUT), lines("n", _ITERATE), lines("N", _OUTPUT)
    base = chains[0][0]
    where = f"N={base.clients}, n={base.n}"
    gaps = [points[case] for case in sorted(chains[0], key=lambda case: case.p)]
    shares = [point.case.share for point in gaps]
    sizes = [Measure.of(abs(p.gap.values)) for p in gaps if p.gap.values is not None]
    return [
        Panel("the output w^, n varies", "N n", "E||w^ - w^'||", outputs,
              [guide_through(outputs[0], -0.5, "Theorems 5, 6")]),
        Panel("the iterate w_R, before the output step, n varies", "N n", "E||w_R - w_R'||",
              iterates, [guide_through(iterates[0], -0.5, "Theorems 5, 6")]),
        Panel("the output w^, N varies", "N n", "E||w^ - w^'||", clients,
              [guide_through(clients[0], -0.5, "Theorems 5, 6")]),
        Panel(f"by the held share, equal step and rounds, {where}", "share held", "E||w^ - w^'||",
              [PlotLine.of_measures(chain[0].scheme,
                                    [c.share for c in reversed(chain)],
                                    [points[c].output for c in reversed(chain)])
               for chain in chains], log=(False, False)),
        _control_panel(chains[0], controls, points, where),
        Panel(f"the gap and G x stability, random, {where}", "p", "loss",
              [PlotLine.of_measures("E(risk - training loss)", shares, [p.gap for p in gaps]),
               PlotLine.of_measures("E|risk - training loss|", shares, sizes),
               PlotLine.of_measures("G E||w^ - w^'||", shares,
                                    [p.output.times(GRADIENT) for p in gaps], "k--s")],
              log=(False, False)),
    ]  # fmt: skip


def _control_panel(
    chain: Sequence[StabilityCase],
    controls: Mapping[StabilityCase, Mapping[str, Control]],
    points: Points,
    where: str,
) -> Panel:
    """Draw distances over training losses for masked models and full ones with smaller steps."""
    name = "equal training loss, w_R"
    masked_points = [points[case] for case in chain]
    full_points = [controls[case][name][0] for case in chain if name in controls.get(case, {})]
    full_points = sorted([masked_points[0], *full_points], key=lambda p: p.iterate_loss.mean)
    masked_points = sorted(masked_points, key=lambda p: p.iterate_loss.mean)
    lines = [
        PlotLine.of_measures(label, [round(p.iterate_loss.mean, 3) for p in run],
                             [p.iterate for p in run], style)
        for label, run, style in (("masked, p from right to left larger", masked_points, "-o"),
                                  ("full, smaller steps", full_points, "--s"))
    ]  # fmt: skip
    return Panel(f"control: at equal training loss, {where}", "training loss of w_R",
                 "E||w_R - w_R'||", lines, log=(False, False))  # fmt: skip
