"""What is trained, and how: a configuration together with the setup that was made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import nn

from submodel.algorithm.dispatch import cut_of, knowledge_of, scale_model
from submodel.algorithm.evaluation import EVALUATOR, ClientTests, assemble_module, client_tests
from submodel.algorithm.execution import Engine
from submodel.algorithm.types import Assignment, Scorer, Setup, State
from submodel.config import Config
from submodel.data import Dataset
from submodel.engines.device import own_device
from submodel.engines.select import scorer_of
from submodel.model.cut import WHOLE, Cut, Tensors
from submodel.prepare.engine import make_engine
from submodel.prepare.selection import without_selection
from submodel.runs.finishing import setup_of_round

Metric = Callable[[nn.Module, Dataset], float]
"""A score of the user's own, from the global model and all the data."""


@dataclass(frozen=True)
class Training:
    """A configuration, its setup, and where tasks run if not as configured.

    Args:
        config: the checked configuration.
        setup: what `prepare` made of it.
        engine: where tasks run; None: the engine that the configuration names.
        metrics: scores of the user's own, by name.
        checkpoint_every: rounds between checkpoints; None: as configured.
        takes_module: whether the module is for one run alone, which may take its values.
    """

    config: Config
    setup: Setup
    engine: Engine | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    checkpoint_every: int | None = None
    takes_module: bool = False

    @property
    def rounds(self) -> int:
        """How many rounds the run has."""
        return self.config.train.rounds

    @cached_property
    def device(self) -> torch.device:
        """Where this process computes."""
        return own_device(self.config.engine.device)

    @cached_property
    def client_tests(self) -> ClientTests:
        """What every client is scored on."""
        return client_tests(self.setup.clients, self.setup.population.count)

    def make_engine(self, setup: Setup | None = None) -> Engine:
        """Where the tasks of this process run; ``setup``: those of other rounds."""
        return self.engine or make_engine(self.config, setup or self.setup)

    def setup_at(self, state: State) -> Setup:
        """By what the round that begins with a state is trained."""
        return setup_of_round(self.config, self.setup, state)

    def scored_setup_at(self, state: State) -> Setup:
        """The same, by which a state is scored: native kernels do that where they train."""
        return replace(self.setup_at(state), scorer=self._scorer)

    @cached_property
    def _scorer(self) -> Scorer:
        return scorer_of(self.config.engine, self.setup, self.device)

    def cut(self, state: State, capacity: float) -> Cut:
        """What stands for a capacity: what it would hold in the coming round."""
        if capacity == 1:
            return WHOLE
        setup, where = self.setup_at(state), Assignment(state.round, EVALUATOR, capacity)
        return cut_of(setup, where, knowledge=knowledge_of(setup, state))

    def model(self, state: State, capacity: float = 1.0) -> nn.Module:
        """The global model of a state, or the sub-model of a capacity, ready to use."""
        tensors = scale_model(self.setup_at(state), state.tensors, capacity)
        return self.assemble(tensors, self.cut(state, capacity))

    def assemble(self, tensors: Tensors, cut: Cut) -> nn.Module:
        """The module of a cut with these weights, ready to use."""
        return without_selection(assemble_module(self.setup, tensors, cut))
