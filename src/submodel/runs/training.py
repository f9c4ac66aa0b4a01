"""What is trained, and how: a configuration together with the setup that was made of it.

The last rounds of a run under ``train.finish`` train nested sub-models. Their units are ranked
once, by the model with which the first of these rounds begins. The ranking is kept in the memory of
the state, so that a resumed run has it; before, that has the units by place.
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
"""A score of the user's own, from the global model and all the data."""
_RANKING = "finish"  # in the memory of a state


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
        """The device of this process."""
        return own_device(self.config.engine.device)

    @cached_property
    def client_tests(self) -> ClientTests:
        """The test examples of every client."""
        return client_tests(self.setup.clients, self.setup.population.count)

    def make_engine(self, setup: Setup | None = None) -> Engine:
        """An engine for the tasks of this process; ``setup``: of rounds with another setup."""
        return self.engine or make_engine(self.config, setup or self.setup)

    def initial_state(self, *, take: bool = False, follows: bool = False) -> State:
        """The untrained state; under ``train.finish``, its units are ranked by position."""
        state = initial_state(self.setup, take=take, follows=follows)
        if self.config.train.finish is None:
            return state
        sizes = self.setup.axes.cut_by_capacity
        return state.remember(_RANKING, {axis: torch.arange(size) for axis, size in sizes.items()})

    def with_ranking(self, state: State) -> State:
        """The state with which finishing begins: units are ranked by the size of their weights."""
        return state.remember(_RANKING, self._rank(state))

    def _rank(self, state: State) -> dict[str, Tensor]:
        parameters = {name: state.tensors[name] for name in self.setup.parameter_names}
        ranking = rank_by_size(self.setup.axes, parameters)
        return {axis: torch.from_numpy(units) for axis, units in ranking.items()}

    def setup_at(self, state: State) -> Setup:
        """The setup of the round that begins with a state: the run's, or that of finishing."""
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
        """The same, for scoring a state: by native kernels where they train."""
        return replace(self.setup_at(state), scorer=self._scorer)

    @cached_property
    def _scorer(self) -> Scorer:
        return scorer_of(self.config.engine, self.setup, self.device)

    def cut(self, state: State, capacity: float) -> Cut:
        """The cut that stands for a capacity: the one that it would hold in the coming round."""
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


@dataclass(frozen=True)
class Material:
    """A module and data of the user's own; None of both where the configuration names them.

    Args:
        model: the module.
        data: the examples.
        axes: what is cut together, if that is not to be traced.
        loss: of a batch, from outputs and targets; None: the configuration's.
        outputs: selects from what the module returns the tensor that counts.
        clients: the positions of every client's training examples.
        metrics: scores by name.
    """

    model: nn.Module | None = None
    data: Dataset | None = None
    axes: Axes | Mapping[str, tuple[Dimension, ...]] | None = None
    loss: Loss | None = None
    outputs: Selector | None = None
    clients: Any = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    def training(self, config: Config, located: Config | None = None) -> Training:
        """What is trained by a configuration; raises `ConfigError` where it does not fit.

        Args:
            config: what the run keeps.
            located: the same, with paths as they are found now; None: as they are.
        """
        check_kinds(self.model, self.data, self.loss or functional.cross_entropy)
        model, partition = self.model, None
        if self.outputs is not None:
            if model is None or not callable(self.outputs):
                raise ConfigError(
                    f"outputs: {self.outputs!r} is not a function of what a model= returns"
                )
            model = select_outputs(model, self.outputs)
        if self.clients is not None:
            if self.data is None:
                raise ConfigError("clients: lists the examples of data=, which is not given")
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
