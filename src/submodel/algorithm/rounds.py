"""The algorithm: one round as the paper writes it (Algorithms 1 and 2), for any scheme.

    plan -> gather -> train -> guard -> add -> merge -> server step -> project

Everything here is a pure function of the state, the setup and the round's number; the engine
alone knows where a task runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from submodel.algorithm.adapting import adapted
from submodel.algorithm.cells import Cells
from submodel.algorithm.cells import begin as begin_cells
from submodel.algorithm.merge import Accumulator, coverage, unsound
from submodel.algorithm.observing import observe, observers
from submodel.algorithm.scaling import scales
from submodel.algorithm.tally import RoundReport, Tally
from submodel.algorithm.types import (
    ALONE,
    Assignment,
    Bundle,
    Engine,
    Failure,
    Group,
    Setup,
    State,
    Task,
    Update,
)
from submodel.errors import DivergedError, SilentRoundError
from submodel.local.work import LocalWork
from submodel.model.build import tensors_of
from submodel.model.cost import CostModel
from submodel.model.cut import Cut, LastCut, gather
from submodel.schemes import NOTHING, Draw, HasMemory, Known, role
from submodel.schemes.draw import draw_coordinates, draw_units
from submodel.schemes.knowledge import known_to
from submodel.schemes.ordered.steps import passes_of
from submodel.schemes.protocols import local_work, output_passes, sends_masks
from submodel.schemes.random.independent import draw_independent
from submodel.schemes.unbiased.scaling import scales_held
from submodel.tasks.counting import NOTHING_COUNTS

_log = logging.getLogger(__name__)


def initial_state(setup: Setup) -> State:
    """The untrained model, and the memory with which scheme and server begin."""
    tensors = {n: t.clone() for n, t in tensors_of(setup.module).items()}
    parameters = {n: tensors[n] for n, _ in setup.module.named_parameters()}
    state = begin_cells(setup, State(0, tensors))
    memory = role(setup.scheme, HasMemory)
    state = state.remember("scheme", {} if memory is None else memory.begin(parameters))
    return state.remember("server", setup.server.begin(parameters))


def known(setup: Setup, state: State) -> Known:
    """What the scheme may look at when it draws from this state."""
    parameters = {n: state.tensors[n] for n, _ in setup.module.named_parameters()}
    memory = state.recall("scheme")
    return known_to(setup.scheme, setup.axes, parameters, memory, setup.granularity)


def plan(setup: Setup, round_: int) -> list[Assignment]:
    """Sample the clients of a round and their capacities: from (seed, round) alone."""
    clients = setup.population.sample(round_)
    return [
        Assignment(round_, client, setup.population.capacity(client, round_), place)
        for place, client in enumerate(clients)
    ]


def cut_of(
    setup: Setup,
    assignment: Assignment,
    classes: NDArray[np.int64] | None = None,
    known: Known = NOTHING,
) -> Cut:
    """The cut m_i^r of one client in one round, optionally restricted to some classes.

    Schemes that look at the model need what is `known` of it.
    """
    draw = Draw(setup.seed, assignment.round, assignment.client, assignment.place, known)
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
        self._known = known(setup, state)
        self._last: Cut | None = None
        self._scales = lru_cache(lambda capacity: scales(setup, capacity))
        self._gather = LastCut(lambda cut: gather(cut, state.tensors))

    def cut(self, assignment: Assignment, classes: NDArray[np.int64] | None = None) -> Cut:
        """What this client holds, optionally of some classes only."""
        return cut_of(self._setup, assignment, classes, self._known)

    def task(self, assignment: Assignment) -> Task:
        """What goes to this client."""
        setup = self._setup
        restricted = setup.absent_labels != "keep"
        classes = setup.federation.labels(assignment.client) if restricted else None
        cut = self.cut(assignment, classes)
        if self._last is None or self._last.same_key != cut.same_key:
            self._last = cut
        work = local_work(setup.scheme, self._work, assignment.capacity)
        factors = scales_held(self._last, self._scales(assignment.capacity))
        return Task(assignment, self._last, self._gather(self._last), work, classes, factors)


def step(
    setup: Setup, state: State, engine: Engine, costs: CostModel, group: Group = ALONE
) -> tuple[State, RoundReport]:
    """One round: w_r -> w_{r+1}."""
    work = replace(setup.work, lr=setup.work.lr * setup.schedule.factor(state.round))
    tally = Tally(setup.axes, state.tensors, costs, sends_masks(setup.scheme), setup.transport)
    assignments = plan(setup, state.round)
    own = group.share(engine.bundles(assignments))
    tally.lap("plan")
    state = adapted(setup, state, engine, costs, assignments, group, tally)
    cells = Cells(setup, state)
    dispatchers = [Dispatcher(setup, replace(state, tensors=base), work) for base in cells.bases]

    def tasks(bundle: Bundle) -> Iterator[Task]:
        for assignment in bundle.assignments:
            tally.lap("train")
            task = dispatchers[cells.number(assignment.client)].task(assignment)
            tally.send(task.cut)
            yield task

    for bundle in own:
        if observers(setup.scheme, state.round):
            for assignment in bundle.assignments:
                task = dispatchers[cells.number(assignment.client)].task(assignment)
                observe(setup, state, engine, task, tally)
        for outcome in engine.run(tasks(bundle)):
            tally.lap("train")
            if isinstance(outcome, Failure):
                tally.miss(outcome.assignment.client, outcome.reason)
            else:
                _add(setup, cells, outcome, tally)
        tally.lap("train")
    group.reduce(cells.accumulators, tally)
    tally.lap("reduce")
    if not tally.accepted:
        if tally.missing:
            raise SilentRoundError(f"round {state.round + 1}: no update to merge ({tally.why()})")
        client, reason = next(iter(tally.refused.items()))
        hint = "" if reason == NOTHING_COUNTS else "; a smaller local.lr, or local.clip, may help"
        raise DivergedError(
            f"round {state.round + 1}: all {len(tally.refused)} updates were refused "
            f"(client {client}: {reason}){hint}"
        )
    new = _next(setup, state, cells, dispatchers[0])
    tally.lap("merge")
    return new, tally.report(coverage(cells.accumulators))


def _add(setup: Setup, cells: Cells, update: Update, tally: Tally) -> None:
    """Guard an update and add it, or refuse it by name."""
    accumulator = cells.accumulators[cells.number(update.assignment.client)]
    weight = setup.weight(update.examples)
    if reason := accumulator.refusal(update.cut, update.tensors, weight) or update.unusable:
        tally.refuse(update.assignment.client, reason)
        return
    accumulator.add(update.cut, update.tensors, weight)
    passes = passes_of(update.cut, update.passes, setup.least)
    tally.accept(update.cut, update.processed, update.loss, passes, update.counted)


def _next(setup: Setup, state: State, cells: Cells, dispatcher: Dispatcher) -> State:
    """The state after the merge: server step, projection, and a new start for the cells."""
    merged, covered, together = cells.merge(
        lambda cell: dispatcher.cut(Assignment(state.round, cell, 1.0, cell))
    )
    if together:
        merged = begin_cells(setup, _server_step(setup, state, merged, covered))
    return replace(merged, round=state.round + 1)


def _server_step(setup: Setup, state: State, merged: State, covered: Mapping[str, Tensor]) -> State:
    """The merged state after the server's own step from ``state`` and the projection."""
    names = [name for name, _ in setup.module.named_parameters()]
    old, new = ({n: s.tensors[n] for n in names} for s in (state, merged))
    stepped, memory = setup.server.step(old, new, covered, state.recall("server"))
    if (reason := unsound(stepped)) is not None:
        raise DivergedError(
            f"round {state.round + 1}: after the server step {reason}; a smaller server.lr may help"
        )
    tensors = _project(setup, {**merged.tensors, **stepped})
    return replace(merged, tensors=tensors).remember("server", memory)


def _project(setup: Setup, merged: dict[str, Tensor]) -> dict[str, Tensor]:
    """P_W of the parameters; buffers are merged too, but W is a set of parameters."""
    names = {name for name, _ in setup.module.named_parameters()}
    return merged | setup.projection({n: t for n, t in merged.items() if n in names})


def output_step(
    setup: Setup,
    state: State,
    engine: Engine,
    costs: CostModel,
    smoothness: float,
    group: Group = ALONE,
) -> State:
    """The algorithms' output: one more masked gradient step with step size 1/L, over all clients.

    w^ = P(w_R - (1/L) (1/N) sum_i m_i (.) grad f_i(m_i (.) w_R)); rolling averages over all its
    windows as well. That is a round in which everyone takes one full-batch step, filled in. The
    f_i are what the rounds trained: with weight decay lambda, + (lambda / 2) ||m_i (.) w||^2, and
    a gradient that is clipped there is clipped here; clients weigh what they do in the merge.
    """
    work = replace(
        setup.work, lr=1 / smoothness, epochs=None, steps=1, batch_size=None, momentum=0.0
    )
    accumulator = Accumulator(state.tensors, "fill_in")
    tally = Tally(setup.axes, state.tensors, costs)
    everyone = [
        Assignment(
            state.round,
            client,
            setup.population.capacity(client, state.round),
            client % setup.population.per_round,
        )
        for client in setup.population.everyone()
    ]
    own = group.share(engine.bundles(everyone))
    for scheme in output_passes(setup.scheme):
        dispatcher = Dispatcher(replace(setup, scheme=scheme), state, work)
        for bundle in own:
            # whoever did not answer for one window is not waited for in each of the others
            left = [a for a in bundle.assignments if str(a.client) not in tally.missing]
            for outcome in engine.run(map(dispatcher.task, left)):
                client = outcome.assignment.client
                if isinstance(outcome, Failure):
                    tally.miss(client, outcome.reason)
                    continue
                weight = setup.weight(outcome.examples)
                refusal = accumulator.refusal(outcome.cut, outcome.tensors, weight)
                if reason := refusal or outcome.unusable:
                    tally.refuse(client, reason)
                else:
                    accumulator.add(outcome.cut, outcome.tensors, weight)
    group.reduce([accumulator], tally)
    if not accumulator.added:
        kind = SilentRoundError if tally.missing else DivergedError
        raise kind(f"output step: no update to merge ({tally.why()})")
    if tally.missing or tally.refused:
        _log.warning("the output step was taken without %s", tally.why())
    return replace(state, tensors=_project(setup, accumulator.merge()))
