"""Theorems 5 and 6 and their corollary: one changed example, shared randomness, controls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from submodel.randomness import generator
from submodel_lab.theory.data import Directions
from submodel_lab.theory.drawing import Panel, PlotLine, guide_through
from submodel_lab.theory.masking import Masking, bernoulli, rolling
from submodel_lab.theory.measures import Measure, Statement, Verdict, judge_positive
from submodel_lab.theory.problems import FloatArray, Logistic, TheoryError
from submodel_lab.theory.results import OnProgress, ResultRow, Study, report_nothing
from submodel_lab.theory.studies.sweeps import mean_share, slope_statement, worst_condition
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
"""G: examples have norm 1, so every logistic loss has gradients of norm at most 1."""
_HALVINGS = 9  # of the interval in which the step size is looked for
_LEAST_FACTOR = 1e-3


@dataclass(frozen=True)
class StabilitySettings:
    """Logistic regression, convex but not strongly; every trial draws its own dataset."""

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
    sweep_batches: tuple[int, ...] = (8, 4, 2, 1)  # examples a step: delta^2 is one over them
    test_examples: int = 10_000  # of every client, for the risk


@dataclass(frozen=True)
class StabilityCase:
    """One run on two neighbouring datasets."""

    p: float
    n: int
    clients: int
    rounds: int
    steps: int
    heterogeneity: float
    batch: int = 1
    rolls: bool = False
    eta_factor: float = 1.0  # of the theorem's step size: below 1 for a control

    def source(self, s: StabilitySettings) -> Directions:
        """Where its examples come from."""
        return Directions(self.clients, s.dimension, self.heterogeneity, s.seed)

    def masking(self, s: StabilitySettings) -> Masking:
        """Its masks."""
        if self.rolls:
            return rolling(self.p, self.clients, s.dimension)
        return bernoulli(self.p, self.clients)

    def share(self, s: StabilitySettings) -> float:
        """What is really held: a window is a whole number of coordinates."""
        return mean_share(self.masking(s), s.dimension)

    @property
    def theorem(self) -> str:
        """The theorem that speaks of it."""
        return "Theorem 6" if self.rolls else "Theorem 5"

    def step(self, s: StabilitySettings, problem: Logistic) -> StepSize:
        """The theorem's step size, or a part of it."""
        if self.rolls:
            step = theorem_6(problem, self.n, self.steps, s.dimension, self.rounds // s.dimension)
        else:
            step = theorem_5(problem, self.p, self.n, self.steps, self.rounds)
        return StepSize(step.eta * self.eta_factor, step.unmet)

    def words(self, s: StabilitySettings) -> str:
        """Its masks, by what is really held."""
        return f"rolling, s/d={self.share(s):g}" if self.rolls else f"random, p={self.p:g}"


@dataclass(frozen=True)
class BatchLogistic(Logistic):
    """Logistic regression with several examples a step, and an L that is not its own."""

    fixed_smoothness: float = 1.0
    batch: int = 1

    @property
    def smoothness(self) -> float:
        """As given: with two of them, the distance of outputs would show the change of L."""
        return self.fixed_smoothness

    def draw(self, seed: int, round_: int, steps: int, trials: int) -> NDArray[Any]:
        """So many examples per step, uniformly and with replacement."""
        rng = generator(seed, "samples", round_)
        shape = (steps, self.clients, trials, self.batch)
        return rng.integers(self.x.shape[2], size=shape)

    def examples_at(self, xi: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
        """The examples xi, as sets."""
        i = np.arange(self.clients)[:, None, None]
        t = np.arange(xi.shape[1])[None, :, None]
        return self.x[i, t, xi], self.y[i, t, xi]


def neighbours(source: Directions, trials: int, n: int) -> tuple[Logistic, Logistic]:
    """Datasets S and S^(i): client 0's first example is redrawn. Examples are exchangeable."""
    x, y = source.draw(trials, n, "examples")
    new_x, new_y = source.draw(trials, 1, "redrawn")
    other_x, other_y = x.copy(), y.copy()
    other_x[0, :, 0], other_y[0, :, 0] = new_x[0, :, 0], new_y[0, :, 0]
    return Logistic(x, y), Logistic(other_x, other_y)


def stability_base(s: StabilitySettings, rolls: bool = False) -> StabilityCase:
    """The case that sweeps start from: the smallest p."""
    return StabilityCase(min(s.capacities), s.examples[len(s.examples) // 2],
                         s.clients[len(s.clients) // 2], s.rounds, s.steps, s.heterogeneity,
                         rolls=rolls)  # fmt: skip


def check_stability(s: StabilitySettings) -> None:
    """Refuse settings that the study cannot use."""
    if wrong := [r for r in (s.rounds, *s.sweep_rounds) if r % s.dimension or r < s.dimension]:
        raise TheoryError(f"rounds = {wrong[0]}: not whole epochs of d = {s.dimension} windows")


@dataclass(frozen=True)
class StabilityPoint:
    """What a case came to."""

    case: StabilityCase
    step: StepSize
    share: float
    output: Measure  # ||w^ - w^'||
    iterate: Measure  # ||w_R - w_R'||
    output_loss: Measure  # training loss of w^
    iterate_loss: Measure  # training loss of w_R
    gap: Measure  # risk - training loss of w^
    ceiling: BoundTerms
    noise: float  # delta
    distance: float  # D_max


def measure_stability(s: StabilitySettings, case: StabilityCase) -> StabilityPoint:
    """Train on both datasets, with shared masks and samples."""
    source = case.source(s)
    raw, raw_other = neighbours(source, s.trials, case.n)
    step = case.step(s, raw)
    masking = case.masking(s)
    plan = TrialPlan(masking, case.rounds, case.steps, step.eta, s.radius, s.trials, s.seed)
    first, second = (
        BatchLogistic(data.x, data.y, data.l2, raw.smoothness, case.batch)
        for data in (raw, raw_other)
    )
    one, other = (run_trials(problem, plan, [case.rounds]) for problem in (first, second))
    w, w_other = one.iterates[case.rounds], other.iterates[case.rounds]
    noise2, power = _gradient_powers(s, case, first, w)
    facts = StabilityFacts(case.clients, case.n, case.share(s) * raw.smoothness, noise2, GRADIENT,
                           source.distance, power)  # fmt: skip
    losses = _training_losses(first, one.output)
    risk = _risk(s, case, one.output)
    return StabilityPoint(
        case, step, case.share(s),
        Measure.of(np.linalg.norm(one.output - other.output, axis=1)),
        Measure.of(np.linalg.norm(w - w_other, axis=1)),
        Measure.of(losses), Measure.of(_training_losses(first, w)), Measure.of(risk - losses),
        theorem_6_bound(facts) if case.rolls else theorem_5_bound(facts),
        float(np.sqrt(noise2)), source.distance,
    )  # fmt: skip


def train_once(s: StabilitySettings, case: StabilityCase) -> tuple[float, float]:
    """The mean training loss of w_R and of w^, on the first dataset alone."""
    raw, _ = neighbours(case.source(s), s.trials, case.n)
    problem = BatchLogistic(raw.x, raw.y, raw.l2, raw.smoothness, case.batch)
    eta = case.step(s, raw).eta
    plan = TrialPlan(case.masking(s), case.rounds, case.steps, eta, s.radius, s.trials, s.seed)
    trajectory = run_trials(problem, plan, [case.rounds])
    points = (trajectory.iterates[case.rounds], trajectory.output)
    iterate, output = (float(_training_losses(problem, w).mean()) for w in points)
    return iterate, output


def _training_losses(problem: Logistic, w: FloatArray) -> FloatArray:
    many = np.broadcast_to(w, (problem.clients, *w.shape))
    return np.asarray(problem.losses(many).mean(0))


def _risk(s: StabilitySettings, case: StabilityCase, w: FloatArray) -> FloatArray:
    """The loss on fresh examples of every client, the same for all trials."""
    x, y = case.source(s).draw(1, s.test_examples, "test")
    total = np.zeros(len(w))
    for client_x, client_y in zip(x[:, 0], y[:, 0], strict=True):
        total += np.logaddexp(0, -client_y * (w @ client_x.T)).mean(1)
    return total / case.clients


def _gradient_powers(
    s: StabilitySettings, case: StabilityCase, problem: BatchLogistic, w: FloatArray
) -> tuple[float, float]:
    """delta^2 and sigma_*^2, as they are at w_R with fresh masks."""
    masks = MaskDraws(case.masking(s), s.dimension, len(w), s.seed)(case.rounds)
    gradients = masks * problem.gradients(masks * w)
    xi = problem.draw(s.seed + 1, case.rounds, 1, len(w))[0]
    away = masks * problem.stochastic_gradients(masks * w, xi) - gradients
    return float(np.square(away).sum(-1).mean()), float(np.square(gradients).sum(-1).mean())


def match_factor(loss_of: Callable[[float], float], target: float) -> float | None:
    """The factor of the step size, up to 1, with which a loss is a target; None if none is.

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


def control_points(
    s: StabilitySettings, point: StabilityPoint
) -> dict[str, tuple[StabilityPoint, Callable[[StabilityPoint], Measure]]]:
    """Full models beside a masked one, by kind of control, and what is compared with each."""
    whole = replace(point.case, p=1.0, rolls=False)
    controls: dict[str, tuple[StabilityPoint, Callable[[StabilityPoint], Measure]]] = {}
    smaller = replace(whole, eta_factor=point.share)
    controls["step p eta, w^"] = (measure_stability(s, smaller), _output)
    for name, place, target in (
        ("equal training loss, w_R", 0, point.iterate_loss.mean),
        ("equal training loss, w^", 1, point.output_loss.mean),
    ):

        def loss_of(factor: float, place: int = place) -> float:
            return train_once(s, replace(whole, eta_factor=factor))[place]

        factor = match_factor(loss_of, target)
        if factor is not None:
            full = measure_stability(s, replace(whole, eta_factor=factor))
            controls[name] = (full, _output if place else _iterate)
    return controls


def control_statements(
    s: StabilitySettings,
    point: StabilityPoint,
    controls: dict[str, tuple[StabilityPoint, Callable[[StabilityPoint], Measure]]],
) -> list[Statement]:
    """Whether the masked model is still the more stable one."""
    words, claims = point.case.words(s), []
    for name, (full, read) in controls.items():
        less = read(full).minus(read(point))
        claims += [
            Statement(point.case.theorem, "p, control", f"{words}: {name}",
                      "how much less the masked model moves than the full one", less, ">", 0.0,
                      judge_positive(less), point.step.note),
            Statement(point.case.theorem, "p, control", f"{words}: {name}",
                      "the full model's distance", read(full), "-", read(point).mean,
                      Verdict.NUMBER, point.step.note),
        ]  # fmt: skip
    return claims


def _output(point: StabilityPoint) -> Measure:
    return point.output


def _iterate(point: StabilityPoint) -> Measure:
    return point.iterate


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


StabilityPoints = dict[StabilityCase, StabilityPoint]
Controls = Mapping[
    StabilityCase, Mapping[str, tuple[StabilityPoint, Callable[[StabilityPoint], Measure]]]
]
"""Of each masked case the full models beside it."""


def stability_panels(
    s: StabilitySettings,
    chains: Sequence[Sequence[StabilityCase]],
    controls: Controls,
    points: StabilityPoints,
) -> list[Panel]:
    """All panels."""
    base = stability_base(s)

    def along_examples(p: float, rolls: bool, iterate: bool) -> PlotLine:
        cases = [replace(base, p=p, n=n, rolls=rolls) for n in s.examples]
        run = [points[case] for case in cases]
        measures = [point.iterate if iterate else point.output for point in run]
        x = [float(case.clients * case.n) for case in cases]
        return PlotLine.of_measures(cases[0].words(s), x, measures, "--s" if rolls else "-o")

    several = [(p, False) for p in s.capacities] + [(1.0, True), (base.p, True)]
    outputs, iterates = (
        [along_examples(p, rolls, iterate) for p, rolls in several] for iterate in (False, True)
    )
    clients = [
        PlotLine.of_measures(
            replace(base, p=p, rolls=rolls).words(s), [float(c * base.n) for c in s.clients],
            [points[replace(base, p=p, rolls=rolls, clients=c)].output for c in s.clients],
            "--s" if rolls else "-o",
        )
        for rolls in (False, True) for p in dict.fromkeys((1.0, base.p))
    ]  # fmt: skip
    where = f"N={base.clients}, n={base.n}"
    gaps = [points[case] for case in sorted(chains[0], key=lambda case: case.p)]
    shares = [point.share for point in gaps]
    sizes = [Measure.of(abs(p.gap.values)) for p in gaps if p.gap.values is not None]
    return [
        Panel("the output w^, n varies", "N n", "E||w^ - w^'||", outputs,
              [guide_through(outputs[0], -0.5, "Theorems 5, 6")]),
        Panel("the iterate w_R, before the output step, n varies", "N n", "E||w_R - w_R'||",
              iterates, [guide_through(iterates[0], -0.5, "Theorems 5, 6")]),
        Panel("the output w^, N varies", "N n", "E||w^ - w^'||", clients,
              [guide_through(clients[0], -0.5, "Theorems 5, 6")]),
        Panel(f"by what is held, equal step and rounds, {where}", "share held", "E||w^ - w^'||",
              [PlotLine.of_measures("rolling" if chain[0].rolls else "random",
                                    [points[c].share for c in reversed(chain)],
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
    chain: Sequence[StabilityCase], controls: Controls, points: StabilityPoints, where: str
) -> Panel:
    """Distances over training losses: masked models, and full ones with smaller steps."""
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
