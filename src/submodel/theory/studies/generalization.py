"""The gap between train and test against p, on real data, and where the total is least."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from submodel.randomness import generator
from submodel.theory.data import DatasetName, DataSplit, load_split
from submodel.theory.lab import TrialPlan, run_trials
from submodel.theory.masking import bernoulli
from submodel.theory.problems import FloatArray, Logistic, TheoryError
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
class GeneralizationSettings:
    """Few examples per client, so that there is a gap; every trial draws its own."""

    data: tuple[DatasetName, ...] = ("breast_cancer", "digits")
    capacities: tuple[float, ...] = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1)
    clients: int = 5
    examples: int = 12
    rounds: int = 200
    steps: int = 5
    relative_step: float = 0.5  # eta = this / L
    l2: float = 1e-4
    radius: float = 1000.0
    trials: int = 200
    seed: int = 0


def draw_examples(s: GeneralizationSettings, split: DataSplit) -> Logistic:
    """N n training examples for every trial, drawn from the training part without replacement."""
    x = split.x.reshape(-1, split.x.shape[-1])
    y = split.y.ravel()
    rng = generator(s.seed, "generalization")
    count = s.clients * s.examples
    if count > len(x):
        raise TheoryError(f"{s.clients} clients with {s.examples} examples: there are {len(x)}")
    rows = np.stack([rng.permutation(len(x))[:count] for _ in range(s.trials)])
    by_client = rows.reshape(s.trials, s.clients, s.examples).swapaxes(0, 1)
    return Logistic(x[by_client], y[by_client], s.l2)


def study_generalization(
    s: GeneralizationSettings, on_progress: OnProgress = report_nothing
) -> Study:
    """Measure everything."""
    rows, panels, claims = [], [], []
    total, steps = len(s.data) * len(s.capacities), 0
    for name in s.data:
        split = load_split(name, clients=1, seed=s.seed)
        problem = draw_examples(s, split)
        by_capacity: dict[float, dict[str, FloatArray]] = {}
        for p in s.capacities:
            plan = TrialPlan(
                bernoulli(p, s.clients),
                s.rounds,
                s.steps,
                s.relative_step / problem.smoothness,
                s.radius,
                s.trials,
                s.seed,
            )
            by_capacity[p] = score_trials(problem, split, run_trials(problem, plan).output)
            steps += 1
            on_progress(steps, total)
        reference = by_capacity[max(s.capacities)]["train loss"]
        for p, values in by_capacity.items():
            values["residual"] = values["train loss"] - reference
            values["total"] = values["loss gap"] + values["residual"]
            rows.append({"data": name, "p": p, **{k: float(v.mean()) for k, v in values.items()}})
        panels += _panels(name, by_capacity)
        claims += _claims(name, by_capacity)
    notes = [
        "residual: training loss above that of the largest p, trial by trial",
        "total = |test - train| + residual; its least point is where masking pays",
    ]
    return Study("generalization", "Train-test gap against the capacity, l2-logistic regression",
                 asdict(s), rows, panels, claims, notes)  # fmt: skip


def score_trials(problem: Logistic, split: DataSplit, w: FloatArray) -> dict[str, FloatArray]:
    """Losses and accuracies on train and test, for every trial."""
    count, d = len(w), problem.dimension
    x = problem.x.transpose(1, 0, 2, 3).reshape(count, -1, d)
    y = problem.y.transpose(1, 0, 2).reshape(count, -1)
    train = y * (x @ w[..., None])[..., 0]
    test = split.test_y * (w @ split.test_x.T)
    scores = {
        "train loss": np.logaddexp(0, -train).mean(1), "test loss": np.logaddexp(0, -test).mean(1),
        "train accuracy": (train > 0).mean(1), "test accuracy": (test > 0).mean(1),
    }  # fmt: skip
    scores["loss gap"] = np.abs(scores["test loss"] - scores["train loss"])
    scores["accuracy gap"] = np.abs(scores["test accuracy"] - scores["train accuracy"])
    return scores


def _claims(name: str, by_capacity: dict[float, dict[str, FloatArray]]) -> list[Statement]:
    chain = sorted(by_capacity, reverse=True)
    claims = []
    for measure in ("loss gap", "accuracy gap"):
        mean, low, high = interval(by_capacity[chain[0]][measure] - by_capacity[chain[-1]][measure])
        verdict = "yes" if low > 0 else ("no" if high < 0 else "undecided")
        claims.append(
            Statement(
                f"{name}: {measure} smaller at p={chain[-1]:g} than at p={chain[0]:g}",
                f"{mean:.4f} [{low:.4f}, {high:.4f}] less",
                "> 0",
                verdict,
            )
        )
    for measure in ("total", "test loss"):
        best = min(chain, key=lambda p: float(by_capacity[p][measure].mean()))
        value = float(by_capacity[best][measure].mean())
        mean, low, high = interval(by_capacity[chain[0]][measure] - by_capacity[best][measure])
        pays = "yes" if low > 0 else ("no" if best == chain[0] else "undecided")
        measurement = (
            f"p={best:g} ({value:.4f}; {mean:.4f} [{low:.4f}, {high:.4f}] below p={chain[0]:g})"
        )
        claims.append(
            Statement(f"{name}: {measure} is least at", measurement, "p < 1 if masking pays", pays)
        )
    return claims


def _panels(name: str, by_capacity: dict[float, dict[str, FloatArray]]) -> list[Panel]:
    x = sorted(by_capacity)

    def lines(names: dict[str, str]) -> list[PlotLine]:
        return [
            PlotLine.of(
                label,
                x,
                [1 - by_capacity[p][n] if "error" in label else by_capacity[p][n] for p in x],
            )
            for n, label in names.items()
        ]

    losses = {n: n for n in ("train loss", "test loss", "loss gap", "total")}
    errors = {"train accuracy": "train error", "test accuracy": "test error", "accuracy gap": "gap"}
    return [
        Panel(f"{name}: loss", "p", "loss", lines(losses), log=(False, False)),
        Panel(f"{name}: error rate", "p", "1 - accuracy", lines(errors), log=(False, False)),
    ]
