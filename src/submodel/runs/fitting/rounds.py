"""The rounds that fit a sub-model: those who can hold it train it, and it alone is merged."""

from __future__ import annotations

from dataclasses import replace

import torch

from submodel.algorithm.dispatch import scale_model
from submodel.algorithm.evaluation import assemble_module
from submodel.algorithm.rounds import step
from submodel.algorithm.score import Score, score
from submodel.algorithm.server import Plain
from submodel.algorithm.types import Setup, State
from submodel.config import Config
from submodel.data import Examples
from submodel.data.able import AblePopulation, able_clients
from submodel.errors import ConfigError
from submodel.local.schedule import Constant
from submodel.model.cost import CostModel
from submodel.model.cut import WHOLE, Cut, Tensors
from submodel.prepare.engine import make_engine
from submodel.runs import checkpoint
from submodel.runs.callbacks import OnRound
from submodel.runs.fitting.cuts import CutSearch, candidate_cuts, search_cut, trial_of
from submodel.runs.fitting.options import FitPlan
from submodel.runs.fitting.store import FitFolder
from submodel.runs.loop import Interruption
from submodel.runs.metrics import Metrics, round_line
from submodel.runs.training import Training
from submodel.schemes.ranked import RankedUnits, rank_first


class Fitting:
    """A sub-model on its way to stand by itself: the rest of the global model stays as it is.

    Args:
        training: of the run.
        state: its trained global model.
        plan: what is fitted, and how.
        folder: where it is kept; what a fit of the same plan left there is gone on with.
    """

    def __init__(self, training: Training, state: State, plan: FitPlan, folder: FitFolder) -> None:
        self._training, self._plan, self._folder = training, plan, folder
        setup = training.setup
        has_part = setup.clients.dataset.held_out is not None
        self._clients = able_clients(setup.population, plan.capacity, keep_out=not has_part)
        if not self._clients.sample(state.round):
            raise ConfigError([f"capacity: no client can hold {plan.capacity:g}"])
        self._trial = trial_of(setup, self._clients)
        self._costs = CostModel(setup.module, setup.clients.dataset.example, setup.travel)
        scaled_model = scale_model(training.setup_at(state), state.tensors, plan.capacity)
        self._global, self._first = state, State(state.round, scaled_model)
        self._search = folder.start(setup, plan) or self._begin(state)
        self._setup = _fit_setup(setup, self._clients, self._search, plan)

    def _begin(self, state: State) -> CutSearch:
        """Choose the cut, and keep it."""
        setup, plan = self._training.setup, self._plan
        tensors, scheme_cut = self._first.tensors, self._training.cut(state, plan.capacity)
        cuts = candidate_cuts(setup, tensors, plan.capacity, scheme_cut, plan.cut)
        search = search_cut(setup, tensors, cuts, self._trial, self._costs)
        self._folder.begin(plan, search)
        return search

    def run(self, tell: OnRound) -> Metrics:
        """All rounds that are left; returns what the sub-model came to.

        Args:
            tell: told of every round, also of those that are done.

        Raises:
            Interruption: somebody stopped it; the last round is saved.
        """
        torch.set_num_threads(self._training.config.engine.threads)
        files, rounds, behind = self._folder.files, self._plan.rounds, self._first.round
        state = self._latest()
        files.keep_metrics(state.round - behind)
        for line in files.metrics():
            tell(line)
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
                tell(line)
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

    def _latest(self) -> State:
        """The state to go on from."""
        folder = self._folder.files.checkpoints
        if not checkpoint.checkpoint_folders(folder):
            return self._first
        return checkpoint.latest(folder, self._config, self._first)[0]

    @property
    def _config(self) -> Config:
        """The run's, with the rounds that fitting adds: checkpoints are of no more than it has."""
        config = self._training.config
        rounds = self._first.round + self._plan.rounds
        return config.model_copy(
            update={"train": config.train.model_copy(update={"rounds": rounds})}
        )

    def _score(
        self, tensors: Tensors, cut: Cut | None = None, examples: Examples | None = None
    ) -> Score:
        """The sub-model of a cut, by default ours, on examples, by default those of the test."""
        setup = self._training.setup
        device, cut = self._training.device, self._search.cut if cut is None else cut
        module = assemble_module(setup, tensors, cut, device)
        test = setup.clients.dataset.test
        return score(module, test if examples is None else examples, setup)

    def _finish(self, tensors: Tensors) -> Metrics:
        """Write the sub-model, how good it is, and what it took."""
        plan, search, state = self._plan, self._search, self._global
        lines, examples = self._folder.files.metrics(), self._trial.examples
        first = self._first.tensors
        about: Metrics = {
            "capacity": plan.capacity,
            "rounds": plan.rounds,
            "lr": plan.lr,
            "cut": search.name,
            "candidates": self._folder.candidates(),
            "headline": self._setup.headline,
            "score": self._score(tensors).entries(),
            "score_before": self._score(first, self._training.cut(state, plan.capacity)).entries(),
            "global_score": self._score(state.tensors, WHOLE).entries(),
            "held_out": {
                "clients": len(self._clients.validators),
                "examples": len(examples),
                "before": self._score(first, examples=examples).entries(),
                "score": self._score(tensors, examples=examples).entries(),
            },
            "parameters": self._costs.of(search.cut).parameters,
            "bytes_down": search.bytes_down + sum(line["bytes_down"] for line in lines),
            "bytes_up": sum(line["bytes_up"] for line in lines),
            "flops": search.flops + sum(line["flops"] for line in lines),
            "seconds": round(sum(sum(line["seconds"].values()) for line in lines), 3),
            "model_sha256": plan.model_sha256,
        }
        return self._folder.finish(search.cut, tensors, about)


def _fit_setup(setup: Setup, clients: AblePopulation, search: CutSearch, plan: FitPlan) -> Setup:
    """The run's setup, with one cut for all who can hold it."""
    return replace(
        setup,
        scheme=RankedUnits(rank_first(setup.axes.cut_by_capacity, search.cut.units)),
        population=clients,
        work=replace(setup.work, lr=plan.lr),
        schedule=Constant(),
        server=Plain(),
        granularity="unit",
        keeps_slots=False,
    )
