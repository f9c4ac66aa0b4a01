"""The last rounds of a run under ``train.finish``: nested sub-models, ranked once, are trained.

The ranking is made of the model with which the first of these rounds begins. It is kept in the
memory of the state, so that a resumed run has it; before, that has the units by place.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

from submodel.algorithm.types import Setup, State
from submodel.config import Config
from submodel.prepare.fit import cross_entropy_options
from submodel.schemes.ranked import FinishingCuts, rank_by_size

_OWNER = "finish"


def finishing_round(config: Config) -> int | None:
    """The round that finishing begins with, from 0; None: it never does.

    >>> from submodel.config import parse
    >>> config = parse({"train": {"rounds": 10, "finish": "1/4"}})
    >>> finishing_round(config), finishing_round(Config())
    (7, None)
    """
    if config.train.finish is None:
        return None
    share = Fraction(config.train.finish).limit_denominator(1 << 20)
    return config.train.rounds - math.ceil(share * config.train.rounds)


def rank_by_place(config: Config, setup: Setup, state: State) -> State:
    """The untrained state, with the ranking that it has until finishing begins.

    Args:
        config: of the run.
        setup: of the run.
        state: the global model.
    """
    if config.train.finish is None:
        return state
    sizes = setup.axes.cut_by_capacity
    return state.remember(_OWNER, {axis: torch.arange(size) for axis, size in sizes.items()})


def with_ranking(setup: Setup, state: State) -> State:
    """The state with which finishing begins: its units are ranked by the size of their weights.

    Args:
        setup: of the run.
        state: the global model.
    """
    return state.remember(_OWNER, _rank(setup, state))


def setup_of_round(config: Config, setup: Setup, state: State) -> Setup:
    """By what the round that begins with a state is trained: the run's setup, or what ends it.

    Args:
        config: of the run.
        setup: of the run.
        state: the global model.
    """
    first = finishing_round(config)
    if first is None or state.round < first:
        return setup
    ranking = _rank(setup, state) if state.round == first else state.recall(_OWNER)
    data = setup.clients.dataset
    has_labels = data.classes is not None and not cross_entropy_options(setup.loss, data)
    cuts = FinishingCuts(
        {axis: units.numpy() for axis, units in ranking.items()},
        tuple(setup.population.capacities),
        1.0 if has_labels else 0.0,
    )
    return replace(setup, scheme=cuts, granularity="unit")


def _rank(setup: Setup, state: State) -> dict[str, Tensor]:
    parameters = {name: state.tensors[name] for name in setup.parameter_names}
    ranking = rank_by_size(setup.axes, parameters)
    return {axis: torch.from_numpy(units) for axis, units in ranking.items()}
