"""Which units a fitted sub-model begins with: some candidates, tried on clients who keep out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from submodel.algorithm.evaluation import assemble_module
from submodel.algorithm.score import Score, score
from submodel.algorithm.types import Setup
from submodel.data import Examples
from submodel.data.able import AblePopulation
from submodel.errors import ConfigError
from submodel.model.capacity import prefix_cut
from submodel.model.cost import CostModel
from submodel.model.cut import Cut, Tensors, UnitCut
from submodel.runs.fitting.options import CutChoice
from submodel.schemes.base import Draw
from submodel.schemes.draw import draw_units
from submodel.schemes.ranked import RankedUnits, rank_by_size

_MOST_CLIENTS = 100  # that are asked where none keeps out


@dataclass(frozen=True)
class CutSearch:
    """The cut that was chosen, and what choosing it took.

    Args:
        cut: the units that the sub-model has.
        name: of the candidate.
        scores: of every candidate that was tried.
        bytes_down: that went to the clients who tried them.
        flops: that they computed.
    """

    cut: UnitCut
    name: str
    scores: Mapping[str, Score]
    bytes_down: int = 0
    flops: int = 0


@dataclass(frozen=True)
class CutTrial:
    """The examples that sub-models are tried on, and how many clients have them."""

    examples: Examples
    clients: int


def trial_of(setup: Setup, clients: AblePopulation) -> CutTrial:
    """What `data.held_out` keeps; or the examples of clients who keep out; or of some who train.

    Args:
        setup: of the run.
        clients: those who can hold the sub-model.
    """
    data = setup.clients.dataset
    if data.held_out is not None:
        return CutTrial(data.held_out, 0)
    names = clients.validators
    if not names:
        (capacity,) = clients.capacities
        able = (c for c in range(clients.count) if clients.whole.capacity(c, 0) >= capacity)
        names = tuple(client for client, _ in zip(able, range(_MOST_CLIENTS), strict=False))
    if not names:
        raise ConfigError([f"capacity: no client can hold {clients.capacities[0]:g}"])
    positions = np.concatenate([setup.clients.indices(client) for client in names])
    return CutTrial(data.train.take(torch.from_numpy(positions)), len(names))


def candidate_cuts(
    setup: Setup, tensors: Tensors, capacity: float, scheme_cut: Cut, choice: CutChoice
) -> dict[str, UnitCut]:
    """The cuts to choose from, all of one size.

    Args:
        setup: of the run.
        tensors: the global model's.
        capacity: of the sub-model.
        scheme_cut: what the run's scheme would give a client of that capacity.
        choice: "search": all that there are.
    """
    by_place = prefix_cut(setup.axes, capacity, least=setup.least)
    ranking = rank_by_size(setup.axes, {n: tensors[n] for n in setup.parameter_names})
    draw = Draw(setup.seed, 0, 0)
    cuts = {
        "importance": draw_units(
            RankedUnits(ranking), setup.axes, capacity, draw, least=setup.least
        ),
        "prefix": by_place,
    }
    if isinstance(scheme_cut, UnitCut) and scheme_cut.shape_key == by_place.shape_key:
        cuts["scheme"] = scheme_cut
    if choice == "search":
        return cuts
    if choice not in cuts:
        raise ConfigError(
            [f"cut: the run's scheme has no sub-model of exactly {capacity:g}; use 'search'"]
        )
    return {choice: cuts[choice]}


def search_cut(
    setup: Setup, tensors: Tensors, cuts: Mapping[str, UnitCut], trial: CutTrial, costs: CostModel
) -> CutSearch:
    """The candidate with the least loss on the trial's examples; ties go to the first.

    Args:
        setup: of the run.
        tensors: the global model's.
        cuts: the candidates by name.
        trial: what they are tried on.
        costs: of sub-models.
    """
    if len(cuts) == 1:
        ((name, cut),) = cuts.items()
        return CutSearch(cut, name, {})
    scores = {
        name: score(assemble_module(setup, tensors, cut), trial.examples, setup)
        for name, cut in cuts.items()
    }
    best = min(scores, key=lambda name: scores[name].loss)
    cost = costs.of(cuts[best])
    return CutSearch(
        cuts[best],
        best,
        scores,
        cost.bytes * len(cuts) * trial.clients,
        cost.forward_flops * len(cuts) * len(trial.examples),
    )
