"""Study of the train-test gap over p on real data, with full models that train less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from submodel.core import generator
from submodel_lab.theory.data import DatasetName, DataSplit, load_split
from submodel_lab.theory.drawing import Panel, PlotLine
from submodel_lab.theory.masking import bernoulli
from submodel_lab.theory.measures import Measure, Statement, Verdict, judge_positive
from submodel_lab.theory.problems import FloatArray, Logistic, TheoryError
from submodel_lab.theory.results import OnProgress, ResultRow, Study, report_nothing
from submodel_lab.theory.studies.stability import match_factor
from submodel_lab.theory.trials import TrialPlan, run_trials

_CONTROL_RUNS = 12  # most runs in the search for a step size of equal training loss
_SILENT = "bounded gradients only within W"  # of the corollary, on these data


@dataclass(frozen=True)
class GeneralizationSettings:
    """Settings with few examples per client, so that there is a gap; every trial draws its own."""

    data: tuple[DatasetName, ...] = ("breast_cancer", "digits")
    capacities: tuple[float, ...] = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1)
    controls: tuple[float, ...] = (0.5, 0.1)  # the p that full models of equal loss accompany
    clients: int = 5
    examples: int = 12
    rounds: int = 200
    steps: int = 5
    relative_step: float = 0.5  # eta = this / L
    l2: float = 1e-4
    radius: float = 1000.0
    trials: int = 200
    seed: int = 0


@dataclass(frozen=True)
class GeneralizationPoint:
    """Result of a p and step size on a dataset."""

    p: float
    factor: float  # of the step size
    control: str  # name of the control, or ""
    scores: Mapping[str, Measure]


class GeneralizationBench:
    """A dataset with a new split for every trial."""

    def __init__(self, s: GeneralizationSettings, name: DatasetName) -> None:
        self._settings = s
        self._split = load_split(name, clients=1, seed=s.seed)
        self.problem = draw_examples(s, self._split)

    def measure(self, p: float, factor: float = 1.0, control: str = "") -> GeneralizationPoint:
        """Train and score every trial."""
        s = self._settings
        eta = factor * s.relative_step / self.problem.smoothness
        plan = TrialPlan(
            bernoulli(p, s.clients), s.rounds, s.steps, eta, s.radius, s.trials, s.seed
        )
        scores = score_trials(self.problem, self._split, run_trials(self.problem, plan).output)
        measures = {name: Measure.of(values) for name, values in scores.items()}
        return GeneralizationPoint(p, factor, control, measures)


def draw_examples(s: GeneralizationSettings, split: DataSplit) -> Logistic:
    """Draw N n training examples for every trial, without replacement."""
    x = split.x.reshape(-1, split.x.shape[-1])
    y = split.y.ravel()
    rng = generator(s.seed, "generalization")
    count = s.clients * s.examples
    if count > len(x):
        raise TheoryError(f"{s.clients} clients with {s.examples} examples: there are {len(x)}")
    rows = np.stack([rng.permutation(len(x))[:count] for _ in range(s.trials)])
    by_client = rows.reshape(s.trials, s.clients, s.examples).swapaxes(0, 1)
    return Logistic(x[by_client], y[by_client], s.l2)


def score_trials(problem: Logistic, split: DataSplit, w: FloatArray) -> dict[str, FloatArray]:
    """Return losses (with l2, as in F) and accuracies on train and test, for every trial."""
    count, d = len(w), problem.dimension
    x = problem.x.transpose(1, 0, 2, 3).reshape(count, -1, d)
    y = problem.y.transpose(1, 0, 2).reshape(count, -1)
    train = y * (x @ w[..., None])[..., 0]
    test = split.test_y * (w @ split.test_x.T)
    penalty = problem.l2 / 2 * np.square(w).sum(1)
    scores = {
        "train loss": np.logaddexp(0, -train).mean(1) + penalty,
        "test loss": np.logaddexp(0, -test).mean(1) + penalty,
        "train accuracy": (train > 0).mean(1), "test accuracy": (test > 0).mean(1),
    }  # fmt: skip
    scores["loss gap"] = np.abs(scores["test loss"] - scores["train loss"])
    scores["accuracy gap"] = np.abs(scores["test accuracy"] - scores["train accuracy"])
    return scores


def study_generalization(
    s: GeneralizationSettings, on_progress: OnProgress = report_nothing
) -> Study:
    """Run the study."""
    beside = [p for p in s.controls if p < max(s.capacities) and p in s.capacities]
    total = len(s.data) * (len(s.capacities) + len(beside) * _CONTROL_RUNS)
    steps, rows, panels, statements = 0, [], [], []
    for name in s.data:
        bench = GeneralizationBench(s, name)
        by_capacity: dict[float, GeneralizationPoint] = {}
        for p in s.capacities:
            by_capacity[p] = _with_residual(bench.measure(p), by_capacity)
            steps += 1
            on_progress(steps, total)
        controls = {}
        for p in beside:
            controls[p] = _controls(bench, by_capacity[p], max(s.capacities))
            steps += _CONTROL_RUNS
            on_progress(steps, total)
        full = [point for points in controls.values() for point in points]
        rows += [_row(s, name, bench, point) for point in [*by_capacity.values(), *full]]
        panels += _panels(name, by_capacity, full)
        statements += _statements(name, by_capacity)
        for p, points in controls.items():
            statements += [
                c for point in points for c in _control_statements(name, by_capacity[p], point)
            ]
    notes = [
        "residual: training loss above that of the largest p, trial by trial",
        "total = |test - train| + residual; its least point is where masking pays",
    ]
    return Study("generalization", "Train-test gap against the capacity, l2-logistic regression",
                 asdict(s), rows, panels, statements, notes)  # fmt: skip


def _with_residual(
    point: GeneralizationPoint, before: Mapping[float, GeneralizationPoint]
) -> GeneralizationPoint:
    """Add the training loss above that of the first p, which is the largest."""
    first = next(iter(before.values()), point)
    residual = point.scores["train loss"].minus(first.scores["train loss"])
    gap, extra = point.scores["loss gap"].values, residual.values
    assert gap is not None
    assert extra is not None
    scores = {**point.scores, "residual": residual, "total": Measure.of(gap + extra)}
    return GeneralizationPoint(point.p, point.factor, point.control, scores)


def _controls(
    bench: GeneralizationBench, masked_point: GeneralizationPoint, whole: float
) -> list[GeneralizationPoint]:
    """Measure full models with a step of p eta, and with a step of equal training loss."""
    points = [bench.measure(whole, masked_point.p, "step p eta")]
    target = masked_point.scores["train loss"].mean
    factor = match_factor(lambda f: bench.measure(whole, f).scores["train loss"].mean, target)
    if factor is not None:
        points.append(bench.measure(whole, factor, "equal training loss"))
    return points


def _row(
    s: GeneralizationSettings, name: str, bench: GeneralizationBench, point: GeneralizationPoint
) -> ResultRow:
    eta = point.factor * s.relative_step / bench.problem.smoothness
    return ResultRow(
        {"data": name, "control": point.control, "p": point.p, "n": s.examples, "N": s.clients,
         "R": s.rounds, "K": s.steps, "l2": s.l2, "eta": eta, "seed": s.seed},
        point.scores,
    )  # fmt: skip


def _statements(name: str, by_capacity: Mapping[float, GeneralizationPoint]) -> list[Statement]:
    chain = sorted(by_capacity, reverse=True)
    first, last = by_capacity[chain[0]].scores, by_capacity[chain[-1]].scores
    statements = []
    for measure in ("loss gap", "accuracy gap"):
        less = first[measure].minus(last[measure])
        case = f"{name}: p={chain[-1]:g} against {chain[0]:g}, equal step and rounds"
        quantity = f"how much smaller the {measure} is"
        statements.append(
            Statement.of("Remark 3", "p", case, quantity, less, ">", conditions=_SILENT)
        )
    for measure in ("total", "test loss"):
        best = min(chain, key=lambda p: by_capacity[p].scores[measure].mean)
        less = first[measure].minus(by_capacity[best].scores[measure])
        verdict = Verdict.NO if best == chain[0] else judge_positive(less)
        statements.append(Statement("Remark 3", "p, pays", f"{name}: least at p={best:g}",
                                f"{measure}: how far below p={chain[0]:g}", less, ">", 0.0, verdict,
                                _SILENT))  # fmt: skip
    return statements


def _control_statements(
    name: str, masked_point: GeneralizationPoint, full: GeneralizationPoint
) -> list[Statement]:
    case = f"{name}: p={masked_point.p:g} against a full model, {full.control}"
    return [
        Statement.of("Remark 3", "p, control", case, f"how much smaller the masked {measure} is",
                     full.scores[measure].minus(masked_point.scores[measure]), ">",
                     conditions=_SILENT)
        for measure in ("loss gap", "accuracy gap", "test loss")
    ]  # fmt: skip


def _panels(
    name: str, by_capacity: Mapping[float, GeneralizationPoint], full: list[GeneralizationPoint]
) -> list[Panel]:
    x = sorted(by_capacity)
    names = ("train loss", "test loss", "loss gap", "total")
    equal = [point for point in full if point.control == "equal training loss"]
    chain = sorted(by_capacity.values(), key=lambda point: point.scores["train loss"].mean)
    first = by_capacity[max(by_capacity)]
    equal = sorted([first, *equal], key=lambda point: point.scores["train loss"].mean)

    def over_loss(label: str, run: list[GeneralizationPoint], style: str) -> PlotLine:
        losses = [round(point.scores["train loss"].mean, 3) for point in run]
        return PlotLine.of_measures(label, losses, [p.scores["loss gap"] for p in run], style)

    return [
        Panel(f"{name}: equal step and rounds", "p", "loss",
              [PlotLine.of_measures(n, x, [by_capacity[p].scores[n] for p in x]) for n in names],
              log=(False, False)),
        Panel(f"{name}: control, at equal training loss", "training loss", "loss gap",
              [over_loss("masked, p falls to the right", chain, "-o"),
               over_loss("full, smaller steps", equal, "--s")], log=(False, False)),
    ]  # fmt: skip
