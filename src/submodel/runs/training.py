"""A training: a configuration together with the setup made from it.

With ``train.finish``, the last rounds of a run train nested sub-models. Their units are ranked
once, by the model at the start of these rounds. The ranking is kept in the memory of the state, so
that a resumed run has it; before these rounds, the memory has the units in order of position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from submodel.algorithm.dispatch import cut_of, knowledge_of, scale_model
from submodel.algorithm.evaluation import EVALUATOR, ClientTests, assemble_module, client_tests
from submodel.algorithm.execution import Engine
from submodel.algorithm.rounds import initial_state
from submodel.algorithm.types import Assignment, Scorer, Setup, State
from submodel.config import Config
from submodel.config.checks import check_kinds, cross_entropy_options
from submodel.config.engine import make_engine
from submodel.config.model_facts import Selector, select_outputs, without_selection
from submodel.config.parts import keep_clients
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.data import Dataset
from submodel.data.partitions import parse_lists
from submodel.engines.device import own_device
from submodel.engines.select import scorer_of
from submodel.model.axes import Axes, Dimension
from submodel.model.cut import WHOLE, Cut, Tensors
from submodel.schemes.ordered import FinishingCuts, rank_by_size
from submodel.tasks.loss import Loss

Metric = Callable[[nn.Module, Dataset], float]
"""A user's score of the global model, computed with all the data."""
_RANKING = "finish"  # name in the memory of a state


@dataclass(frozen=True)
class Training:
    """A configuration, its setup, and deviations from it.

    Args:
        config: checked configuration.
        setup: setup made by `prepare`.
        engine: engine of the tasks; None: as configured.
        metrics: further scores by name.
        checkpoint_every: rounds between checkpoints; None: as configured.
        takes_module: whether the run may consume the values of the module.
    """

    config: Config
    setup: Setup
    engine: Engine | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    checkpoint_every: int | None = None
    takes_module: bool = False

    @property
    def rounds(self) -> int:
        """Number of rounds of the run."""
        return self.config.train.rounds

    @cached_property
    def device(self) -> torch.device:
        """Device of this process."""
        return own_device(self.config.engine.device)

    @cached_property
    def client_tests(self) -> ClientTests:
        """Test examples of every client."""
        return client_tests(self.setup.clients, self.setup.population.count)

    def make_engine(self, setup: Setup | None = None) -> Engine:
        """Make an engine for the tasks of this process, optionally for another setup."""
        return self.engine or make_engine(self.config, setup or self.setup)

    def initial_state(self, *, take: bool = False, follows: bool = False) -> State:
        """Make the untrained state; with ``train.finish``, units are ranked by position."""
        state = initial_state(self.setup, take=take, follows=follows)
        if self.config.train.finish is None:
            return state
        sizes = self.setup.axes.cut_by_capacity
        return state.remember(_RANKING, {axis: torch.arange(size) for axis, size in sizes.items()})

    def with_ranking(self, state: State) -> State:
        """Rank the units of a state by the size of their weights, at the start of finishing."""
        return state.remember(_RANKING, self._rank(state))

    def _rank(self, state: State) -> dict[str, Tensor]:
        parameters = {name: state.tensors[name] for name in self.setup.parameter_names}
        ranking = rank_by_size(self.setup.axes, parameters)
        return {axis: torch.from_numpy(units) for axis, units in ranking.items()}

    def setup_at(self, state: State) -> Setup:
        """Return the setup of the round that begins with a state: the run's, or for finishing."""
        first, setup = self.config.train.finishing_round, self.setup
        if first is None or state.round < first:
            return setup
        ranking = self._rank(state) if state.round == first else state.recall(_RANKING)
        data = setup.clients.dataset
        has_labels = data.classes is not None and not cross_entropy_options(setup.loss, data)
        cuts = FinishingCuts(
            {axis: units.numpy() for axis, units in ranking.items()},
            tuple(setup.population.capacities),
            1.0 if has_labels else 0.0,
        )
        return replace(setup, scheme=cuts, granularity="unit")

    def scored_setup_at(self, state: State) -> Setup:
        """Return the setup for scoring a state, with native kernels if they train."""
        return replace(self.setup_at(state), scorer=self._scorer)

    @cached_property
    def _scorer(self) -> Scorer:
        return scorer_of(self.config.engine, self.setup, self.device)

    def cut(self, state: State, capacity: float) -> Cut:
        """Return the cut to evaluate a capacity with: the one it would hold in the next round."""
        if capacity == 1:
            return WHOLE
        setup, where = self.setup_at(state), Assignment(state.round, EVALUATOR, capacity)
        return cut_of(setup, where, knowledge=knowledge_of(setup, state))

    def model(self, state: State, capacity: float = 1.0) -> nn.Module:
        """Make the global model of a state, or the sub-model of a capacity, ready to use."""
        tensors = scale_model(self.setup_at(state), state.tensors, capacity)
        return self.assemble(tensors, self.cut(state, capacity))

    def assemble(self, tensors: Tensors, cut: Cut) -> nn.Module:
        """Make the module of a cut with these weights, ready to use."""
        return without_selection(assemble_module(self.setup, tensors, cut))


@dataclass(frozen=True)
class Material:
    """Objects of a run that are given in Python; None where the configuration names them.

    Args:
        model: module.
        data: examples.
        axes: axes, instead of traced ones.
        loss: function of outputs and targets that returns the loss of a batch.
        outputs: function that selects the output tensor from the module's return value.
        clients: positions of every client's training examples.
        metrics: further scores by name.
    """

    model: nn.Module | None = None
    data: Dataset | None = None
    axes: Axes | Mapping[str, tuple[Dimension, ...]] | None = None
    loss: Loss | None = None
    outputs: Selector | None = None
    clients: Any = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    def training(self, config: Config, located: Config | None = None) -> Training:
        """Make the training of a configuration; raise `ConfigError` if they do not fit.

        Args:
            config: configuration that the run keeps.
            located: the same with resolved paths; None: paths need no resolution.
        """
        check_kinds(self.model, self.data, self.loss or functional.cross_entropy)
        model, partition = self.model, None
        if self.outputs is not None:
            if model is None or not callable(self.outputs):
                raise ConfigError(
                    f"outputs: {self.outputs!r} is not a function of the return value of model="
                )
            model = select_outputs(model, self.outputs)
        if self.clients is not None:
            if self.data is None:
                raise ConfigError("clients: requires data=, whose examples it lists")
            partition = parse_lists(self.clients, len(self.data.train))
            if len(partition.lists) != config.clients.client_count:
                raise ConfigError(
                    f"clients.count: {config.clients.client_count} is not the number of lists "
                    f"in clients=, {len(partition.lists)}"
                )
        setup = prepare(located or config, model, self.data, self.axes, self.loss, partition)
        metrics = dict(self.metrics)
        config, takes_module = keep_clients(config, setup), self.model is None
        return Training(config, setup, metrics=metrics, takes_module=takes_module)
