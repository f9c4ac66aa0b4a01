"""Tasks of clients: the cut that the scheme draws, its slice of the model, and optimiser slots.

A client's slots hold, of every weight, the optimiser's state from when the client last held that
weight. A cut takes its part of them; a weight that the client never held starts afresh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from submodel.algorithm.types import Assignment, Setup, State, Task, Update
from submodel.core.errors import SubmodelError
from submodel.model.cut import Cut, CutSource, LastCut, Tensors
from submodel.schemes import NOTHING, Draw, Knowledge
from submodel.schemes.draw import draw_coordinates, draw_units, knowledge_for
from submodel.schemes.unbiased import factors_of_cut, weight_factors
from submodel.tasks.optimisers import slot_forms
from submodel.tasks.training import LocalWork, trainable_parameters


def knowledge_of(setup: Setup, state: State) -> Knowledge:
    """Return the facts about this state that the scheme may use in its draws."""
    parameters = {n: state.tensors[n] for n in setup.parameter_names}
    memory = state.recall("scheme")
    return knowledge_for(setup.scheme, setup.axes, parameters, memory, setup.granularity)


def cut_of(
    setup: Setup,
    assignment: Assignment,
    classes: NDArray[np.int64] | None = None,
    knowledge: Knowledge = NOTHING,
) -> Cut:
    """Return the cut m_i^r of one client in one round, optionally restricted to some classes.

    A scheme with `Scheme.looks_at_model` needs ``knowledge`` of the model.
    """
    draw = Draw(setup.seed, assignment.round, assignment.client, assignment.place, knowledge)
    capacity = assignment.capacity
    if (draw_own := setup.scheme.own_cut) is not None:
        return draw_own(setup.module, setup.axes, capacity, draw, classes)
    if setup.granularity == "unit":
        return draw_units(setup.scheme, setup.axes, capacity, draw, classes, setup.least)
    parameters = {n: p.detach() for n, p in setup.module.named_parameters()}
    return draw_coordinates(setup.scheme, setup.axes, parameters, capacity, draw, classes)


class Dispatcher:
    """Makes the tasks of a round: every client's slice of the global model, m_i (.) w_r.

    Consecutive clients that hold the same share one copy of it.
    """

    def __init__(self, setup: Setup, state: State, work: LocalWork) -> None:
        self._setup, self._work = setup, work
        self._knowledge = knowledge_of(setup, state)
        self._last: Cut | None = None
        self._scales = lru_cache(lambda capacity: setup_factors(setup, capacity))
        base = setup.travel.of_base(state.tensors)  # never changed, so tasks share its memory

        source = CutSource(setup.travel.of_task(state.tensors))

        def gather_part(cut: Cut) -> dict[str, Tensor]:
            parts = source.gather(cut)
            return {name: base[name] if name in base else parts[name] for name in state.tensors}

        self._gather = LastCut(gather_part)

    def cut(self, assignment: Assignment, classes: NDArray[np.int64] | None = None) -> Cut:
        """Return the cut of a client, optionally restricted to some classes."""
        return cut_of(self._setup, assignment, classes, self._knowledge)

    def task(self, assignment: Assignment) -> Task:
        """Make the task of a client."""
        setup = self._setup
        by_labels = setup.absent_labels != "keep"
        classes = setup.clients.labels(assignment.client) if by_labels else None
        cut = self.cut(assignment, classes)
        if self._last is None or self._last.same_key != cut.same_key:
            self._last = cut
        work = setup.scheme.work(self._work, assignment.capacity)
        factors = self._scales(assignment.capacity)
        factors = factors and factors_of_cut(self._last, factors)
        rule = setup.scheme.step_rule(assignment.capacity)
        tensors = self._gather(self._last)
        return Task(assignment, self._last, tensors, work, classes, factors, rule)


def setup_factors(setup: Setup, capacity: float) -> dict[str, Tensor]:
    """Return the factor of every parameter that has one: a scalar, or one per weight."""
    if setup.scheme.chance(1, 1.0) is None:
        return {}
    parameters = {name: p.detach() for name, p in setup.module.named_parameters()}
    return weight_factors(
        setup.scheme, setup.axes, parameters, capacity, setup.granularity, setup.least
    )


def scale_model(setup: Setup, tensors: Tensors, capacity: float) -> dict[str, Tensor]:
    """Return the global model as sub-models of a capacity use it before the cut: S w."""
    factors = setup_factors(setup, capacity)
    return {n: t * factors[n].to(t) if n in factors else t for n, t in tensors.items()}


class ClientSlots:
    """The slots of all clients in one round: sent with tasks, updated with updates."""

    def __init__(self, setup: Setup, state: State) -> None:
        self._slots = dict(state.client_slots)
        self._forms: dict[str, Tensor] = {}
        if setup.keeps_slots:
            parameters = trainable_parameters(setup.module)
            self._forms = slot_forms(setup.work.optimiser, parameters)

    def give(self, task: Task) -> Task:
        """Return the task with the client's part of its slots."""
        if not self._forms:
            return task
        cut, client = task.cut, task.assignment.client
        slots = {
            name: _part(cut, _parameter(name), self._whole(client, name)) for name in self._forms
        }
        return replace(task, slots=slots)

    def take(self, update: Update) -> None:
        """Store the slots of a sound update."""
        if self._forms and update.slots is None:
            raise SubmodelError(
                "local.optimiser_state: 'kept', but the engine does not return the state"
            )
        for name, values in (update.slots or {}).items():
            whole = self._whole(update.assignment.client, name)
            key = f"{update.assignment.client}/{name}"
            self._slots[key] = _put(update.cut, _parameter(name), whole, values)

    def _whole(self, client: int, name: str) -> Tensor:
        """Return a client's slot of a whole parameter; NaN for weights it never held."""
        key = f"{client}/{name}"
        if key in self._slots:
            return self._slots[key]
        form = self._forms[name]
        return torch.full(form.shape, torch.nan, dtype=form.dtype)

    def keep_in(self, state: State) -> State:
        """Return the state with the current slots."""
        return replace(state, client_slots=self._slots) if self._forms else state


def _parameter(name: str) -> str:
    """Return the parameter of a slot.

    >>> _parameter("0/layers/1.weight")
    'layers/1.weight'
    """
    return name.partition("/")[2]


def _part(cut: Cut, name: str, whole: Tensor) -> Tensor:
    mask = cut.mask(name)
    if mask is not None:
        return whole.where(mask.bool(), torch.nan)
    return cut.part(name, whole).clone()


def _put(cut: Cut, name: str, whole: Tensor, values: Tensor) -> Tensor:
    """Return the whole slot with the values of a cut's part inserted."""
    mask = cut.mask(name)
    if mask is not None:
        return torch.where(mask.bool(), values, whole)
    places = cut.part(name, torch.arange(whole.numel()).view(whole.shape))
    new = whole.clone().view(-1)
    new[places.reshape(-1)] = values.reshape(-1)
    return new.view(whole.shape)


def check_slots(slots: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> bool:
    """Return whether slots fit these tensors by client, slot number, name and shape.

    >>> check_slots({"0/0/w": torch.ones(2)}, {"w": torch.ones(2)})
    True
    >>> check_slots({"0/0/w": torch.ones(3)}, {"w": torch.ones(2)})
    False
    """
    for key, slot in slots.items():
        client, _, name = key.partition("/")
        like = tensors.get(_parameter(name))
        numbers = client, name.partition("/")[0]
        if like is None or like.shape != slot.shape or not all(n.isdecimal() for n in numbers):
            return False
    return True
