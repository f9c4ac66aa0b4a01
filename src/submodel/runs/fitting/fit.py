"""Fit the sub-models of some capacities of a finished run, one after another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rich.console import Console

from submodel.algorithm.types import State
from submodel.errors import ConfigError
from submodel.runs.callbacks.progress import show_progress
from submodel.runs.checkpoint import model_sha256
from submodel.runs.fitting.options import plan_fit
from submodel.runs.fitting.rounds import Fitting
from submodel.runs.fitting.store import FitFolder
from submodel.runs.folder import RunFolder
from submodel.runs.metrics import Metrics
from submodel.runs.training import Training


def fit_submodels(
    training: Training,
    state: State,
    folder: RunFolder,
    capacities: Sequence[float],
    rounds: int | None,
    lr: float | None,
    cut: str,
    console: Console | None,
) -> list[Metrics]:
    """Fit each capacity's sub-model, unless that is done already; returns what each came to.

    Args:
        training: of the run.
        state: its trained global model.
        folder: of the run.
        capacities: of the sub-models.
        rounds: for each; None: a quarter of the run's.
        lr: the clients' learning rate; None: the run's.
        cut: which units a sub-model begins with.
        console: where progress is shown; None: nowhere.
    """
    config, setup = training.config, training.setup
    if config.engine.name == "flower":
        raise ConfigError(
            ["engine.name: the data of this run is on its devices, and fitting needs it here"]
        )
    if not setup.axes.cut_by_capacity:
        raise ConfigError(["capacity: the model of this run has no axes: nothing can be cut"])
    if not capacities:
        raise ConfigError(["capacity: none is given; 1/4, say"])
    run = training.rounds, config.local.lr, model_sha256(state.tensors)
    plans = [plan_fit(c, setup.population, run, rounds, lr, cut) for c in capacities]
    results = []
    for plan in plans:
        files = FitFolder(folder.path, plan.capacity)
        result = files.result(plan.model_sha256) if files.start(setup, plan) else None
        if result is None:
            with folder.lock(), torch.inference_mode(False), torch.enable_grad():
                quiet = console or Console(quiet=True)
                if console is not None:
                    console.print(f"capacity {plan.capacity:g}: {plan.rounds} rounds")
                with show_progress(plan.rounds, quiet) as tell:
                    result = Fitting(training, state, plan, files).run(tell)
        results.append(result)
    return results
