"""What goes to a client: the cut that the scheme draws for it, and its slice of the model."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from submodel.algorithm.scaling import setup_factors
from submodel.algorithm.types import Assignment, Setup, State, Task
from submodel.local.work import LocalWork
from submodel.model.cut import Cut, CutSource, LastCut
from submodel.schemes import NOTHING, Draw, Knowledge
from submodel.schemes.draw import draw_coordinates, draw_units
from submodel.schemes.knowledge import knowledge_for
from submodel.schemes.random.independent import draw_independent
from submodel.schemes.roles import local_work, step_rule
from submodel.schemes.unbiased.factors import factors_of_cut


def knowledge_of(setup: Setup, state: State) -> Knowledge:
    """What the scheme may look at when it draws from this state."""
    parameters = {n: state.tensors[n] for n in setup.parameter_names}
    memory = state.recall("scheme")
    return knowledge_for(setup.scheme, setup.axes, parameters, memory, setup.granularity)


def cut_of(
    setup: Setup,
    assignment: Assignment,
    classes: NDArray[np.int64] | None = None,
    knowledge: Knowledge = NOTHING,
) -> Cut:
    """The cut m_i^r of one client in one round, optionally restricted to some classes.

    Schemes that look at the model need ``knowledge`` of it.
    """
    draw = Draw(setup.seed, assignment.round, assignment.client, assignment.place, knowledge)
    capacity = assignment.capacity
    if setup.alignment == "independent":
        return draw_independent(setup.module, setup.axes, capacity, draw, classes)
    if setup.granularity == "unit":
        return draw_units(setup.scheme, setup.axes, capacity, draw, classes, setup.least)
    parameters = {n: p.detach() for n, p in setup.module.named_parameters()}
    return draw_coordinates(setup.scheme, setup.axes, parameters, capacity, draw, classes)


class Dispatcher:
    """Makes the tasks of a round: gathers every client's slice of the global model, m_i (.) w_r.

    Clients that hold the same share one copy of it, as long as they come in a row.
    """

    def __init__(self, setup: Setup, state: State, work: LocalWork) -> None:
        self._setup, self._work = setup, work
        self._knowledge = knowledge_of(setup, state)
        self._last: Cut | None = None
        self._scales = lru_cache(lambda capacity: setup_factors(setup, capacity))
        base = setup.travel.of_base(state.tensors)  # nobody changes it: all share its memory

        source = CutSource(setup.travel.of_task(state.tensors))

        def gather_part(cut: Cut) -> dict[str, Tensor]:
            parts = source.gather(cut)
            return {name: base[name] if name in base else parts[name] for name in state.tensors}

        self._gather = LastCut(gather_part)

    def cut(self, assignment: Assignment, classes: NDArray[np.int64] | None = None) -> Cut:
        """What this client holds, optionally of some classes only."""
        return cut_of(self._setup, assignment, classes, self._knowledge)

    def task(self, assignment: Assignment) -> Task:
        """What goes to this client."""
        setup = self._setup
        by_labels = setup.absent_labels != "keep"
        classes = setup.clients.labels(assignment.client) if by_labels else None
        cut = self.cut(assignment, classes)
        if self._last is None or self._last.same_key != cut.same_key:
            self._last = cut
        work = local_work(setup.scheme, self._work, assignment.capacity)
        factors = factors_of_cut(self._last, self._scales(assignment.capacity))
        rule = step_rule(setup.scheme, assignment.capacity)
        tensors = self._gather(self._last)
        return Task(assignment, self._last, tensors, work, classes, factors, rule)
