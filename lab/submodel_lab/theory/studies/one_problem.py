"""Study of a user's own problem under any scheme: constants, trials, exact values, limits."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from submodel.model import COORDINATES
from submodel.schemes import SCHEMES, SchemeContext
from submodel_lab.theory.drawing import Panel, PlotLine
from submodel_lab.theory.exact import exact_moments
from submodel_lab.theory.limits import balance, distance_bounds
from submodel_lab.theory.masking import Masking
from submodel_lab.theory.measures import Measure, Statement, Verdict, exact_measure
from submodel_lab.theory.objective import Constants, MaskedObjective, constants
from submodel_lab.theory.own_problems import load_problem
from submodel_lab.theory.problems import FloatArray, Quadratic, TheoryError, mean_losses
from submodel_lab.theory.results import OnProgress, ResultRow, Study, report_nothing
from submodel_lab.theory.theorems import StepSize, theorem_1, theorem_2
from submodel_lab.theory.trials import TrialPlan, run_trials


@dataclass(frozen=True)
class OneProblemSettings:
    """Settings; rows report the unmet conditions of theorems."""

    problem: str = ""  # file.py:make, package.module:make or file.npz
    scheme: str = "random"
    capacities: tuple[float, ...] = (1.0, 0.75, 0.5)  # one case each, the same for all clients
    client_capacities: str = ""  # another case: a capacity for each client, such as 1,0.25
    rounds: tuple[int, ...] = (80, 320, 1280)
    steps: int = 5
    start: str = ""  # w_0, as numbers separated by commas; "": the problem's own, or 0
    trials: int = 200
    seed: int = 0
    eta: float | None = None  # None: Theorem 1's, or Theorem 2's if not strongly convex


@dataclass(frozen=True, eq=False)
class OneCase:
    """The problem under a masking, with optimum and constants."""

    label: str
    masking: Masking
    objective: MaskedObjective
    optimum: FloatArray  # w*(p)
    distance: float  # ||w*(1) - w*(p)||
    share: float  # p of the theorems: the least chance of any coordinate, with factors
    constants: Constants


class ProblemBench:
    """The problem with its start, and its measurements."""

    def __init__(self, s: OneProblemSettings) -> None:
        if not s.problem:
            raise TheoryError("no problem given: use --problem file.py:make, or a file.npz")
        self._s, source = s, load_problem(s.problem)
        self.problem, self.notes = source.problem, list[str]()
        self.start = source.start
        if s.start:
            self.start = _read_numbers("start", s.start, self.problem.dimension)
        original = MaskedObjective(self.problem)
        self._best = original.optimum(math.inf, self.start)
        self._least = original.value(self._best)

    @property
    def is_convex(self) -> bool:
        """Whether the problem is strongly convex, so that w*(p) is unique and theorems apply."""
        return self.problem.convexity > 0

    def list_cases(self) -> list[OneCase]:
        """List the cases: one per capacity, and one for the client capacities."""
        s, n = self._s, self.problem.clients
        cases = [(f"p={p:g}", (p,) * n) for p in s.capacities]
        if s.client_capacities:
            numbers = _read_numbers("client_capacities", s.client_capacities, n)
            cases.append((f"p={s.client_capacities}", tuple(numbers.tolist())))
        return [self._make_case(label, capacities) for label, capacities in cases]

    def _make_case(self, label: str, capacities: tuple[float, ...]) -> OneCase:
        d = self.problem.dimension
        component = SCHEMES.find(self._s.scheme)
        context = SchemeContext({COORDINATES: d}, capacities)
        masking = Masking(component.make(component.options(), context), capacities)
        objective = MaskedObjective(self.problem, masking)
        optimum = objective.optimum(math.inf, self.start)
        reach = [np.linalg.norm(w) for w in (self._best, optimum, self.start) if w is not None]
        radius = 1.5 * max(1e-3, *map(float, reach))
        numbers = constants(self.problem, masking, radius, self.start)
        self.notes.append(f"{label}: {_describe(numbers)}")
        share = float(np.einsum("idd->id", masking.moments(d)[1]).min())
        distance = float(np.linalg.norm(self._best - optimum))
        return OneCase(label, masking, objective, optimum, distance, share, numbers)

    def measure(self, case: OneCase, rounds: int) -> ResultRow:
        """Run all trials of a case."""
        s, problem = self._s, self.problem
        step = self._step(case, rounds)
        plan = TrialPlan(case.masking, rounds, s.steps, step.eta, math.inf, s.trials, s.seed,
                         start=self.start)  # fmt: skip
        runs = run_trials(problem, plan, [rounds])
        last, exact = runs.iterates[rounds], self._exact(plan)
        measures = {
            name: Measure.of(mean_losses(problem, w) - self._least, exact.get(key))
            for name, w, key in (("F(w_R)-F*", last, "gap"), ("F(w^)-F*", runs.output, "output"))
        }
        if self.is_convex:
            away = np.square(last - case.optimum).sum(1)
            measures["distance2"] = Measure.of(away, exact.get("distance"))
        else:
            slopes = np.square(case.objective.gradients_at(last)).sum(1)
            measures["||grad F_p||^2"] = Measure.of(slopes)
        parameters = {"scheme": s.scheme, "case": case.label, "R": rounds, "K": s.steps,
                      "N": problem.clients, "d": problem.dimension, "eta": step.eta}  # fmt: skip
        if step.unmet:
            self.notes.append(f"{case.label}, R = {rounds}: the theorem's condition is {step.note}")
        facts: dict[str, float | str] = {
            "residual": case.constants.residual,
            "condition": "not met" if step.unmet else "met",
        }
        return ResultRow(parameters, measures, facts)

    def _step(self, case: OneCase, rounds: int) -> StepSize:
        if self._s.eta is not None:
            return StepSize(self._s.eta, ("own step size",))
        if self.is_convex:
            return theorem_1(self.problem, case.share, self._s.steps, rounds)
        return theorem_2(self.problem, self._s.steps, rounds)

    def _exact(self, plan: TrialPlan) -> dict[str, float]:
        if not isinstance(self.problem, Quadratic):
            return {}
        try:
            moments = exact_moments(self.problem, plan)
        except TheoryError as reason:  # such as too many masks; trials remain without exact values
            self.notes.append(f"no exact values: {reason}")
            return {}
        return {"gap": float(moments.gaps[-1]), "distance": float(moments.distances[-1]),
                "output": moments.output_gap}  # fmt: skip

    def statements(self, case: OneCase, rows: list[ResultRow]) -> list[Statement]:
        """Judge the applicable bounds on the residual, and the limit of the rate."""
        if not self.is_convex:
            return []
        statements = []
        try:
            bounds = distance_bounds(self.problem, case.masking)
        except TheoryError as reason:
            self.notes.append(f"{case.label}: {reason}")
        else:
            for name, number in asdict(bounds).items():
                if not math.isnan(number):
                    statements.append(Statement.of(
                        "Theorem B", "p", case.label, f"||w*(1) - w*(p)||, bound {name}",
                        exact_measure(case.distance), "<=", number))  # fmt: skip
        try:
            limit = balance(self.problem, case.masking)
            constant = limit.rate_constant(self._s.steps, case.share * self.problem.convexity)
        except TheoryError as reason:
            self.notes.append(f"{case.label}: {reason}")
            return statements
        rounds = int(rows[-1].parameters["R"])
        if self._s.eta is None:
            scale = rounds / math.log(self._s.steps * rounds)
            rate = rows[-1].measures["distance2"].times(scale)
            statements.append(Statement(
                "Theorem A", "R", f"{case.label}, R={rounds}", "R E||w_R - w*(p)||^2 / log(KR)",
                rate, "->", constant, Verdict.NUMBER))  # fmt: skip
        return statements


def study_one_problem(s: OneProblemSettings, on_progress: OnProgress = report_nothing) -> Study:
    """Run the study."""
    bench = ProblemBench(s)
    cases = bench.list_cases()
    rows: dict[str, list[ResultRow]] = {case.label: [] for case in cases}
    for number, case in enumerate(cases):
        for rounds in s.rounds:
            rows[case.label].append(bench.measure(case, rounds))
            on_progress(number * len(s.rounds) + len(rows[case.label]), len(cases) * len(s.rounds))
    statements = [
        statement for case in cases for statement in bench.statements(case, rows[case.label])
    ]
    if not bench.is_convex:
        bench.notes.append("mu = 0: F* is what L-BFGS finds from w_0, and w*(p) need not be one")
    title = f"{s.problem}: {type(bench.problem).__name__}, {s.scheme}"
    settings = {**asdict(s), "constants": {c.label: asdict(c.constants) for c in cases}}
    return Study("problem", title, settings, [row for part in rows.values() for row in part],
                 _panels(s, rows), statements, list(dict.fromkeys(bench.notes)))  # fmt: skip


def _panels(s: OneProblemSettings, rows: dict[str, list[ResultRow]]) -> list[Panel]:
    quantities = next(iter(rows.values()))[0].measures
    return [
        Panel(quantity, "rounds R", f"E {quantity}",
              [PlotLine.of_measures(label, s.rounds, [row.measures[quantity] for row in part])
               for label, part in rows.items()])
        for quantity in quantities
    ]  # fmt: skip


def _describe(numbers: Constants) -> str:
    parts = [f"{name} = {value:.4g}" for name, value in asdict(numbers).items()
             if name != "estimates"]  # fmt: skip
    return ", ".join(parts) + f"; estimates: {', '.join(numbers.estimates)}"


def _read_numbers(name: str, text: str, count: int) -> FloatArray:
    try:
        numbers = np.array([float(part) for part in text.split(",")])
    except ValueError:
        raise TheoryError(f"{name}: {text!r} is not numbers separated by commas") from None
    if len(numbers) != count:
        raise TheoryError(f"{name}: {len(numbers)} numbers, {count} are needed")
    return numbers
