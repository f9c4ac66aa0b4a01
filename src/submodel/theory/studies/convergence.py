"""Theorems 1 and 3: the rate to w*(p), the floor of F, random against rolling masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np

from submodel.randomness import generator
from submodel.theory.lab import TrialPlan, run
from submodel.theory.masked import Masked, Masking, bernoulli, rolling
from submodel.theory.problems import Array, Quadratic, TheoryError, quadratics
from submodel.theory.results import (
    Line,
    Panel,
    Report,
    Statement,
    Study,
    interval,
    silent,
    slope_interval,
)
from submodel.theory.theorems import Step, theorem_1, theorem_3

_TOLERANCE = 0.15  # of a slope
_FLOOR = 0.05  # of the exact residual


@dataclass(frozen=True)
class Settings:
    """Defaults put the largest R well into the regime where gradient noise dominates."""

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
    eta: float | None = None  # one's own, the same for every R


@dataclass(frozen=True)
class Case:
    """One curve: what differs from the settings."""

    label: str
    p: float
    steps: int
    clients: int
    noise: float
    rolls: bool = False
    borrowed: bool = False  # rolling with Theorem 1's step size, to compare the schemes alone

    def problem(self, s: Settings) -> Quadratic:
        """Its problem; the same matrices for the same number of clients."""
        return quadratics(
            self.clients, s.dimension, s.mu, s.smoothness, s.heterogeneity, self.noise, s.seed
        )

    def masking(self, s: Settings) -> Masking:
        """Its masks."""
        if self.rolls:
            return rolling(self.p, self.clients, s.dimension)
        return bernoulli(self.p, self.clients)

    def logs(self, s: Settings) -> list[float]:
        """The logarithm in the step size, for every R: log(KR), or log T for rolling."""
        if self.rolls and not self.borrowed:
            return [math.log(rounds // s.dimension) for rounds in s.rounds]
        return [math.log(self.steps * rounds) for rounds in s.rounds]

    def step(self, s: Settings, problem: Quadratic, rounds: int) -> Step:
        """The theorem's step size, or one's own."""
        if s.eta is not None:
            return Step(s.eta, ("own step size",))
        if self.rolls and not self.borrowed:
            return theorem_3(problem, self.steps, s.dimension, rounds // s.dimension)
        return theorem_1(problem, self.p, self.steps, rounds)


def cases(s: Settings) -> list[Case]:
    """Several p, then other K, N, no noise, and rolling, each at the smallest p."""
    least = min(s.capacities)
    first = [Case(f"p={p:g}", p, s.steps, s.clients, s.noise) for p in s.capacities]
    base = Case("", least, s.steps, s.clients, s.noise)
    return [
        *first,
        replace(base, label=f"p={least:g}, K=1", steps=1),
        replace(base, label=f"p={least:g}, N={4 * s.clients}", clients=4 * s.clients),
        replace(base, label=f"p={least:g}, no noise", noise=0.0),
        replace(base, label="p=1, no noise", p=1.0, noise=0.0),
        replace(base, label=f"rolling, s/d={least:g}", rolls=True),
        replace(base, label="rolling, Thm 1's step", rolls=True, borrowed=True),
    ]


@dataclass(frozen=True)
class Curve:
    """What a case came to, for each R: values over trials."""

    case: Case
    errors: Sequence[Array]  # ||w_R - w*(p)||^2
    iterate_gaps: Sequence[Array]  # F(w_R) - F*
    output_gaps: Sequence[Array]  # F(w^) - F*
    residual: float
    output_floor: float
    notes: Sequence[str]


def measure(
    s: Settings, case: Case, radius: float, on_round: Report, done: int, total: int
) -> Curve:
    """Run one case for every R."""
    problem, masking = case.problem(s), case.masking(s)
    original, masked = Masked(problem), Masked(problem, masking)
    best, target = original.optimum(radius), masked.optimum(radius)
    least = original.value(best)

    def gaps(points: Array) -> Array:
        many = np.broadcast_to(points, (problem.clients, *points.shape))
        return np.asarray(problem.losses(many).mean(0) - least)

    errors, iterate_gaps, output_gaps, notes = [], [], [], []
    for rounds in s.rounds:
        step = case.step(s, problem, rounds)
        plan = TrialPlan(masking, rounds, case.steps, step.eta, radius, s.trials, s.seed)
        found = run(problem, plan, [rounds], partial(_forward, on_round, done, total))
        done += rounds
        errors.append(np.square(found.kept[rounds] - target).sum(1))
        iterate_gaps.append(gaps(found.kept[rounds]))
        output_gaps.append(gaps(found.output))
        notes.append(step.note)
    residual = original.value(target) - least
    floor = residual + output_variance(problem, masking, target)
    if case.rolls:  # the output step uses all windows: no randomness is left in it
        after = target - masked.gradient(target) / problem.smoothness
        floor = original.value(after) - least
    return Curve(case, errors, iterate_gaps, output_gaps, residual, floor, notes)


def _forward(on_round: Report, done: int, total: int, round_: int) -> None:
    on_round(done + round_, total)


def output_variance(problem: Quadratic, masking: Masking, w: Array) -> float:
    """What the output step's fresh masks add to E F(w^) at w = w*(p), where its mean is zero.

    E F(w - g/L) - F(w) = tr(A Cov(g)) / (2 L^2) + the change by the mean of g, which is 0 there;
    g is the mean over clients of m_i (.) grad f_i(m_i (.) w).
    """
    masks, chances = masking.listed(problem.dimension)
    scaled = masks * masking.scales[:, None, None]
    found = scaled * problem.gradients(scaled * w)
    mean = np.einsum("im,imd->id", chances, found)
    away = found - mean[:, None]
    covariance = np.einsum("im,imd,ime->de", chances, away, away) / problem.clients**2
    return float(np.trace(problem.matrices.mean(0) @ covariance) / (2 * problem.smoothness**2))


def floor_of(
    s: Settings, case: Case, radius: float, on_round: Report, done: int, total: int
) -> tuple[float, float, float, float]:
    """Where F settles: measured, its 95 % interval, and the exact F(w*(p)) - F(w*).

    Without noise, over the last half of the longest run, iterates are averaged over rounds and
    trials: what is left is the objective's own floor and the drift of order eta K.
    """
    quiet = replace(case, noise=0.0)
    problem, masking, rounds = quiet.problem(s), quiet.masking(s), max(s.rounds)
    original = Masked(problem)
    least = original.value(original.optimum(radius))
    eta = s.eta or theorem_1(problem, case.p, case.steps, rounds).eta
    plan = TrialPlan(masking, rounds, case.steps, eta, radius, s.trials, s.seed)
    late = range(rounds // 2, rounds + 1)
    found = run(problem, plan, late, partial(_forward, on_round, done, total))
    means = np.mean([found.kept[r] for r in late], axis=0)
    rng = generator(s.seed, "floor")
    again = [
        original.value(means[rng.integers(len(means), size=len(means))].mean(0)) - least
        for _ in range(200)
    ]
    low, high = np.percentile(again, [2.5, 97.5])
    exact = original.value(Masked(problem, masking).optimum(radius)) - least
    return original.value(means.mean(0)) - least, float(low), float(high), exact


def study(s: Settings, report: Report = silent) -> Study:
    """Measure everything."""
    check(s)
    chosen = cases(s)
    floors = [c for c in chosen if c.noise and c.steps == s.steps and c.p < 1 and not c.borrowed]
    trained = sum(s.rounds) * len(chosen)
    total = trained + max(s.rounds) * len(floors)
    radius = 1.5 * max(_reach(case.problem(s), case.masking(s)) for case in chosen)
    curves = []
    for number, case in enumerate(chosen):
        curves.append(measure(s, case, radius, report, number * sum(s.rounds), total))
    rows = [
        {
            "case": c.case.label, "R": r, "distance2": float(e.mean()),
            "F(w_R)-F*": float(g.mean()), "F(w^)-F*": float(o.mean()),
            "residual": c.residual, "output floor": c.output_floor,
            "condition": note,
        }
        for c in curves
        for r, e, g, o, note in zip(
            s.rounds, c.errors, c.iterate_gaps, c.output_gaps, c.notes, strict=True
        )
    ]  # fmt: skip
    claims = [claim for curve in curves for claim in _claims(s, curve)]
    for number, case in enumerate(floors):
        done = trained + number * max(s.rounds)
        found, low, high, exact = floor_of(s, case, radius, report, done, total)
        off = found / exact - 1
        shown = f"{found:.5f} [{low:.5f}, {high:.5f}] ({off:+.1%})"
        verdict = "yes" if abs(off) <= _FLOOR else "no"
        text = f"floor of F is F(w*(p)) - F(w*), {case.label}"
        claims.append(Statement(text, shown, f"{exact:.5f}", verdict))
    random, rolled = curves[len(s.capacities) - 1], curves[-1]
    mean, low, high = interval(random.output_gaps[-1] - rolled.output_gaps[-1])
    claims.append(Statement("F(w^) is lower with rolling than with random masks, equal coordinates "
                        "and step size, largest R", f"{mean:.4f} [{low:.4f}, {high:.4f}] lower",
                        "-", "yes" if low > 0 else "undecided" if high > 0 else "no"))  # fmt: skip
    mean, low, high = interval(random.errors[-1] - rolled.errors[-1])
    claims.append(Statement("the same for ||w_R - w*||^2, each to its own optimum",
                        f"{mean:.4f} [{low:.4f}, {high:.4f}] lower", "-",
                        "yes" if low > 0 else "undecided" if high > 0 else "no"))  # fmt: skip
    settings = {**asdict(s), "radius": radius}
    return Study("convergence", "Theorems 1 and 3: convergence to w*(p), quadratics", settings,
                 rows, _panels(s, curves), claims, _notes(curves))  # fmt: skip


def check(s: Settings) -> None:
    """Refuse settings that the study cannot use."""
    if len(s.rounds) < 3:
        raise TheoryError(f"{len(s.rounds)} values of R: a slope needs at least 3")
    if wrong := [r for r in s.rounds if r % s.dimension or r < 2 * s.dimension]:
        raise TheoryError(
            f"R = {wrong[0]}: rolling needs whole epochs of d = {s.dimension} rounds, at least 2"
        )


def _reach(problem: Quadratic, masking: Masking) -> float:
    optima = [Masked(problem, m).optimum(math.inf) for m in (None, masking)]
    return max(float(np.linalg.norm(w)) for w in optima)


def _claims(s: Settings, curve: Curve) -> list[Statement]:
    case = curve.case
    raw, low, high = slope_interval(s.rounds, curve.errors)
    logs = case.logs(s)
    if case.noise == 0:
        expected = -2.0
        logs = [log**2 for log in logs]
    else:
        expected = -1.0
    fitted, least, most = slope_interval(s.rounds, curve.errors, logs)
    power = "" if expected == -1 else "^2"
    log = "log T" if case.rolls and not case.borrowed else "log(KR)"
    name = f"slope of E||w_R - w*||^2 / {log}{power}, {case.label}"
    close = abs(fitted - expected) <= _TOLERANCE
    measured = (
        f"{fitted:.2f} [{least:.2f}, {most:.2f}]; undivided {raw:.2f} [{low:.2f}, {high:.2f}]"
    )
    claims = [Statement(name, measured, f"{expected:g}", "yes" if close else "no")]
    if case.p < 1 and case.noise == 0:
        last, low, high = interval(curve.output_gaps[-1])
        exact = curve.output_floor + float(curve.iterate_gaps[-1].mean()) - curve.residual
        inside = "yes" if low <= exact <= high else "no"
        text = f"F(w^) - F* stays above the residual by its last masks' variance, {case.label}"
        shown = f"{last:.5f} [{low:.5f}, {high:.5f}] at the largest R"
        expected_ = f"{curve.residual:.5f} + {curve.output_floor - curve.residual:.5f}"
        claims.append(Statement(text, shown, expected_, inside))
    return claims


def _panels(s: Settings, curves: Sequence[Curve]) -> list[Panel]:
    by_p = [c for c in curves if c.case.label.startswith("p=") and "," not in c.case.label]
    others = [c for c in curves if c not in by_p]
    least = by_p[-1]
    rolls = next(c for c in curves if c.case.borrowed)
    axis = "rounds R"
    return [
        Panel("to the masked optimum, by p", axis, "E||w_R - w*(p)||² / log(KR)",
              [Line.of(c.case.label, s.rounds,
                       [e / log for e, log in zip(c.errors, c.case.logs(s), strict=True)])
               for c in by_p], -1.0),
        Panel("other K, N, noise, scheme", axis, "E||w_R - w*(p)||²",
              [Line.of(c.case.label, s.rounds, c.errors) for c in [least, *others]], -1.0),
        Panel("original objective, F(w_R), and exact residuals", axis, "E F(w_R) - F(w*)",
              [Line.of(c.case.label, s.rounds, c.iterate_gaps) for c in by_p],
              levels={f"F(w*(p)) - F*, {c.case.label}": c.residual
                      for c in by_p if c.residual > 0}),
        Panel("random against rolling, equal coordinates and steps", axis, "E F - F(w*)",
              [Line.of(f"{c.case.label}: {what}", s.rounds, values, style)
               for c in (least, rolls)
               for what, values, style in (("F(w_R)", c.iterate_gaps, "-o"),
                                           ("F(w^)", c.output_gaps, "--s"))],
              levels={f"residual, {c.case.label}": c.residual for c in (least, rolls)}),
    ]  # fmt: skip


def _notes(curves: Sequence[Curve]) -> list[str]:
    """One line per case whose theorem's condition is not met everywhere."""
    lines = []
    for curve in curves:
        unmet = [note for note in curve.notes if note != "met"]
        if unmet:
            of = f"{len(unmet)} of {len(curve.notes)} values of R"
            lines.append(f"{curve.case.label}: at {of} the theorem's condition is {unmet[-1]}")
    return lines
