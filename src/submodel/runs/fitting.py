"""Fitting: sub-models for devices are cut from the trained model and trained on their own.

The clients that can hold a sub-model train it, and only the sub-model is merged; the rest of the
global model is unchanged. An interrupted fit is continued from its folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
import torch
from rich.console import Console

from submodel.algorithm.dispatch import scale_model
from submodel.algorithm.evaluation import assemble_module
from submodel.algorithm.rounds import step
from submodel.algorithm.score import Score, score
from submodel.algorithm.server import Plain
from submodel.algorithm.types import Setup, State
from submodel.config import Config
from submodel.config.engine import make_engine
from submodel.core.errors import ConfigError, Interruption
from submodel.data import Examples
from submodel.data.population import AblePopulation, able_clients
from submodel.model.cost import CostModel
from submodel.model.cut import WHOLE, Cut, Tensors, UnitCut, prefix_cut
from submodel.runs import checkpoint
from submodel.runs.callbacks import OnRound
from submodel.runs.callbacks.progress import show_progress
from submodel.runs.fitted import CutChoice, FitFolder, FitPlan, FitStart, cut_of_units, units_of
from submodel.runs.folder import RunFolder
from submodel.runs.metrics import Metrics, round_line
from submodel.runs.training import Training
from submodel.schemes.draw import draw_units
from submodel.schemes.ordered import RankedUnits, rank_by_size, rank_first
from submodel.schemes.scheme import Draw
from submodel.tasks.schedule import Constant

_ONE_IN = 4  # a fit takes a quarter of the run's rounds by default
_MOST_CLIENTS = 100  # clients that try cuts, if there is no validation split


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
    """Fit the sub-model of each capacity, unless that is done already; return the results.

    Args:
        training: training of the finished run.
        state: state of its trained global model.
        folder: folder of the run.
        capacities: capacities of the sub-models.
        rounds: rounds for each; None: a quarter of the run's.
        lr: learning rate of the clients; None: the run's.
        cut: choice of the units of a sub-model.
        console: console for progress; None: no progress.
    """
    setup = training.setup
    if training.config.engine.name == "flower":
        raise ConfigError(
            "engine.name: the data of this run is on its devices, but fitting needs it locally"
        )
    if not setup.axes.cut_by_capacity:
        raise ConfigError("capacity: the model of this run has no axes, so nothing can be cut")
    if not capacities:
        raise ConfigError("capacity: none is given; give one, as 1/4")
    sha256 = folder.result()["model_sha256"]
    plans = [_plan(training, sha256, capacity, rounds, lr, cut) for capacity in capacities]
    results = []
    for plan in plans:
        files = FitFolder(folder.path, plan.capacity)
        result = files.result(sha256) if files.start(setup, plan) else None
        if result is None:
            with folder.lock(), torch.inference_mode(False), torch.enable_grad():
                if console is not None:
                    console.print(f"capacity {plan.capacity:g}: {plan.rounds} rounds")
                with show_progress(plan.rounds, console or Console(quiet=True)) as on_round:
                    result = _Fitting(training, state, plan, files).run(on_round)
        results.append(result)
    return results


def _plan(
    training: Training,
    sha256: str,
    capacity: float,
    rounds: int | None,
    lr: float | None,
    cut: str,
) -> FitPlan:
    """Make the plan for a capacity; raise `ConfigError` with all problems."""
    largest = max(training.setup.population.capacities)
    problems = []
    if capacity == 1:
        problems.append("capacity: 1 is the global model, which is already trained")
    elif capacity > largest:
        problems.append(f"capacity: no client can hold {capacity:g}; the largest is {largest:g}")
    if rounds is not None and (isinstance(rounds, bool) or rounds < 1):
        problems.append(f"rounds: {rounds!r} is not a number of rounds, 1 or more")
    if lr is not None and not 0 < lr < float("inf"):
        problems.append(f"lr: {lr!r} is not a positive number")
    choice = next((c for c in get_args(CutChoice) if c == cut), None)
    if choice is None:
        problems.append(f"cut: {cut!r} is not one of {', '.join(get_args(CutChoice))}")
    if problems or choice is None:
        raise ConfigError(problems)
    rounds = -(-training.rounds // _ONE_IN) if rounds is None else rounds
    lr = training.config.local.lr if lr is None else float(lr)
    return FitPlan(capacity, rounds, lr, choice, sha256)


class _Fitting:
    """The fit of one sub-model.

    Args:
        training: training of the run.
        state: state of its trained global model.
        plan: plan of the fit.
        folder: folder of the fit; an interrupted fit with the same plan is continued.
    """

    def __init__(self, training: Training, state: State, plan: FitPlan, folder: FitFolder) -> None:
        self._training, self._plan, self._folder = training, plan, folder
        setup = training.setup
        has_part = setup.clients.dataset.held_out is not None
        self._clients = able_clients(setup.population, plan.capacity, keep_out=not has_part)
        if not self._clients.sample(state.round):
            raise ConfigError(f"capacity: no client can hold {plan.capacity:g}")
        self._trial, self._trial_clients = _trial_of(setup, self._clients)
        self._costs = CostModel(setup.module, setup.clients.dataset.example, setup.travel)
        scaled_model = scale_model(training.setup_at(state), state.tensors, plan.capacity)
        self._global, self._first = state, State(state.round, scaled_model)
        self._scheme_cut = training.cut(state, plan.capacity)
        self._start = folder.start(setup, plan) or self._begin()
        self._cut = cut_of_units(setup, self._start.units)
        self._setup = replace(  # the run's setup, with one cut for all clients that can hold it
            setup,
            scheme=RankedUnits(rank_first(setup.axes.cut_by_capacity, self._cut.units)),
            population=self._clients,
            work=replace(setup.work, lr=plan.lr),
            schedule=Constant(),
            server=Plain(),
            granularity="unit",
            keeps_slots=False,
        )

    def _begin(self) -> FitStart:
        """Choose the cut with the least loss on the trial's examples, and save it."""
        setup, tensors, plan = self._training.setup, self._first.tensors, self._plan
        cuts = _cuts_to_try(setup, tensors, plan, self._scheme_cut)
        name, scores, bytes_down, flops = next(iter(cuts)), {}, 0, 0
        if len(cuts) > 1:
            scores = {
                cut_name: score(assemble_module(setup, tensors, cut), self._trial, setup)
                for cut_name, cut in cuts.items()
            }
            name = min(scores, key=lambda cut_name: scores[cut_name].loss)  # ties: the first
            cost = self._costs.of(cuts[name])
            bytes_down = cost.bytes * len(cuts) * self._trial_clients
            flops = cost.forward_flops * len(cuts) * len(self._trial)
        entries = {cut_name: cut_score.entries() for cut_name, cut_score in scores.items()}
        units = units_of(cuts[name])
        start = FitStart(plan, name, units, entries, bytes_down, flops)
        self._folder.begin(start)
        return start

    def run(self, on_round: OnRound) -> Metrics:
        """Train the remaining rounds; return the result.

        ``on_round`` is called with the line of every round, including finished ones. Ctrl-C raises
        `Interruption` after the last round is saved.
        """
        torch.set_num_threads(self._training.config.engine.threads)
        files, rounds, behind = self._folder.files, self._plan.rounds, self._first.round
        state = self._first
        if checkpoint.checkpoint_folders(files.checkpoints):
            state, _ = checkpoint.latest(files.checkpoints, self._config, state)
        files.keep_metrics(state.round - behind)
        for line in files.metrics():
            on_round(line)
        engine = make_engine(self._training.config, self._setup)
        try:
            while state.round < behind + rounds:
                after, report = step(self._setup, state, engine, self._costs)
                number = after.round - behind
                line = round_line(number, report)
                if number % self._training.config.train.evaluate_every == 0 or number == rounds:
                    scores = self._score(after.tensors).entries()
                    line |= {f"test_{name}": value for name, value in scores.items()}
                files.add_metrics(line)
                state = after  # from here on the round counts
                if number % self._training.config.train.checkpoint_every == 0:
                    self._save(state)
                on_round(line)
        except KeyboardInterrupt:
            self._save(state)
            rounds_so_far = state.round - behind
            what = f"the fit of capacity {self._plan.capacity:g}"
            raise Interruption(f"{what} stopped after round {rounds_so_far} of {rounds}") from None
        return self._finish(state.tensors)

    def _save(self, state: State) -> None:
        files = self._folder.files
        files.flush_metrics()
        checkpoint.save(files.checkpoints, state, self._config)

    @property
    def _config(self) -> Config:
        """The run's configuration with the additional rounds, which checkpoints require."""
        config = self._training.config
        rounds = self._first.round + self._plan.rounds
        return config.model_copy(
            update={"train": config.train.model_copy(update={"rounds": rounds})}
        )

    def _score(
        self, tensors: Tensors, cut: Cut | None = None, examples: Examples | None = None
    ) -> Score:
        """Score the sub-model of a cut, by default the fitted one, by default on the test part."""
        setup = self._training.setup
        cut = self._cut if cut is None else cut
        module = assemble_module(setup, tensors, cut, self._training.device)
        return score(module, setup.clients.dataset.test if examples is None else examples, setup)

    def _finish(self, tensors: Tensors) -> Metrics:

        plan, start, state = self._plan, self._start, self._global
        lines, examples, first = self._folder.files.metrics(), self._trial, self._first.tensors
        about: Metrics = {
            "capacity": plan.capacity,
            "rounds": plan.rounds,
            "lr": plan.lr,
            "cut": start.cut,
            "candidates": start.candidates,
            "headline": self._setup.headline,
            "score": self._score(tensors).entries(),
            "score_before": self._score(first, self._scheme_cut).entries(),
            "global_score": self._score(state.tensors, WHOLE).entries(),
            "held_out": {
                "clients": len(self._clients.validators),
                "examples": len(examples),
                "before": self._score(first, examples=examples).entries(),
                "score": self._score(tensors, examples=examples).entries(),
            },
            "parameters": self._costs.of(self._cut).parameters,
            "bytes_down": start.bytes_down + sum(line["bytes_down"] for line in lines),
            "bytes_up": sum(line["bytes_up"] for line in lines),
            "flops": start.flops + sum(line["flops"] for line in lines),
            "seconds": round(sum(sum(line["seconds"].values()) for line in lines), 3),
            "model_sha256": plan.model_sha256,
        }
        return self._folder.finish(self._cut, tensors, about)


def _trial_of(setup: Setup, clients: AblePopulation) -> tuple[Examples, int]:
    """Return the examples to compare cuts on, and the number of clients that have them.

    They are the examples of `data.held_out`, else those of held-out clients, else those of some
    training clients.
    """
    data = setup.clients.dataset
    if data.held_out is not None:
        return data.held_out, 0
    names = clients.validators
    if not names:
        (capacity,) = clients.capacities
        able = (c for c in range(clients.count) if clients.whole.capacity(c, 0) >= capacity)
        names = tuple(client for client, _ in zip(able, range(_MOST_CLIENTS), strict=False))
    if not names:
        raise ConfigError(f"capacity: no client can hold {clients.capacities[0]:g}")
    positions = np.concatenate([setup.clients.indices(client) for client in names])
    return data.train.take(torch.from_numpy(positions)), len(names)


def _cuts_to_try(
    setup: Setup, tensors: Tensors, plan: FitPlan, scheme_cut: Cut
) -> Mapping[str, UnitCut]:
    """Make the cuts to choose from, of equal size: the largest units, the first, the scheme's."""
    by_place = prefix_cut(setup.axes, plan.capacity, least=setup.least)
    ranked = RankedUnits(rank_by_size(setup.axes, {n: tensors[n] for n in setup.parameter_names}))
    draw = Draw(setup.seed, 0, 0)
    by_size = draw_units(ranked, setup.axes, plan.capacity, draw, least=setup.least)
    cuts = {"importance": by_size, "prefix": by_place}
    if isinstance(scheme_cut, UnitCut) and scheme_cut.shape_key == by_place.shape_key:
        cuts["scheme"] = scheme_cut
    if plan.cut == "search":
        return cuts
    if plan.cut not in cuts:
        raise ConfigError(
            f"cut: the run's scheme has no sub-model of exactly {plan.capacity:g}; use 'search'"
        )
    return {plan.cut: cuts[plan.cut]}
