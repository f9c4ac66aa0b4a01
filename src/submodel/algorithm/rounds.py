"""The algorithm: one round as in the paper (Algorithms 1 and 2), for any scheme.

    present clients -> plan -> gather -> train -> guard -> add -> merge -> server step -> project

Every function here depends only on the state, the setup, the round's number and the present
clients, which are determined before anything is planned; where a task runs is up to the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from submodel.algorithm.adaptation import adapt_state, observe
from submodel.algorithm.dispatch import ClientSlots, Dispatcher
from submodel.algorithm.execution import ALONE, Engine, Group, Workers
from submodel.algorithm.merge import FILL_IN, Accumulator, average, coverage, unsound
from submodel.algorithm.round_statistics import RoundReport, RoundStatistics, holdings_recorder
from submodel.algorithm.types import Assignment, Present, Setup, State, Task, Update
from submodel.core.errors import DivergedError, SilentRoundError, SubmodelError
from submodel.data import Population
from submodel.model.axes import CLASSES, Axes
from submodel.model.build import release, tensors_of
from submodel.model.cost import CostModel
from submodel.model.cut import Cut
from submodel.schemes.scheme import observers_of, output_passes, pass_cuts, sends_masks
from submodel.tasks.loss import NOTHING_COUNTS

_log = logging.getLogger(__name__)


def initial_state(setup: Setup, *, take: bool = False, follows: bool = False) -> State:
    """Return the untrained model, with the initial memory of scheme and server.

    Args:
        setup: the settings of the run
        take: move the values out of the module, and leave only shapes in it
        follows: another process has the values, so shapes suffice
    """
    if any(parameter.is_meta for parameter in setup.module.parameters()) and not follows:
        raise SubmodelError(
            "another run has taken the values of this setup's module: prepare a new one"
        )
    if take:
        tensors = release(setup.module)
    else:
        tensors = {n: t.clone() for n, t in tensors_of(setup.module).items()}
    parameters = {n: tensors[n] for n, _ in setup.module.named_parameters()}
    state = begin_cells(setup, State(0, tensors))
    state = state.remember("scheme", setup.scheme.begin(parameters))
    return state.remember("server", setup.server.begin(setup.travel.of_update(parameters)))


def plan(setup: Setup, round_: int, present: Present | None = None) -> list[Assignment]:
    """Sample the clients of a round and their capacities, from seed, round and present clients.

    Args:
        setup: the settings of the run
        round_: the number of completed rounds
        present: the present clients and the capacity of each; None: all, as configured
    """
    return assign(setup.population, round_, present)


def assign(population: Population, round_: int, present: Present | None = None) -> list[Assignment]:
    """Do the same as `plan`, given only the population."""
    return [
        Assignment(round_, client, _capacity(population, client, round_, present), place)
        for place, client in enumerate(population.sample(round_, present))
    ]


def _capacity(population: Population, client: int, round_: int, present: Present | None) -> float:
    own_capacity = None if present is None else present[client]
    return population.capacity(client, round_) if own_capacity is None else own_capacity


def step(
    setup: Setup,
    state: State,
    engine: Engine,
    costs: CostModel,
    group: Group = ALONE,
    one_model: OneModel | None = None,
) -> tuple[State, RoundReport]:
    """Compute one round: w_r -> w_{r+1}.

    Args:
        setup: the settings of the run
        state: the global model w_r, and the memory of scheme and server
        engine: runs the clients' training
        costs: costs of sub-models, for the report
        group: the processes that share the run
        one_model: permits to write w_{r+1} over w_r, if scheme, rule and server allow it

    Returns:
        the state after the round, and its report
    """
    statistics = RoundStatistics(
        setup.axes,
        state.tensors,
        costs,
        sends_masks(setup.scheme),
        setup.transport,
        setup.travel,
        holdings_recorder(setup, state),
    )
    workers = Workers(engine, group, statistics)

    # 1. Sample the clients and their capacities; some schemes then adapt the model to them.
    present = setup.clients.present(state.round)
    assignments = plan(setup, state.round, present)
    bundles = workers.share(assignments)
    if setup.scheme.adapts(state.round):
        state = adapt_state(setup, state, engine, costs, assignments, group, statistics)

    # 2. Client i trains its sub-model m_i (.) w_r; with cells, w_r is the model of its cell.
    work = replace(setup.work, lr=setup.work.lr * setup.schedule.factor(state.round))
    cells = Cells(setup, state)
    dispatchers = [Dispatcher(setup, replace(state, tensors=base), work) for base in cells.bases]

    slots = ClientSlots(setup, state)

    def task(assignment: Assignment) -> Task:
        return slots.give(dispatchers[cells.number(assignment.client)].task(assignment))

    # 3. Sound updates are summed: in any order, to the same bits.
    observers = observers_of(setup.scheme, state.round)
    for bundle in bundles:
        if observers:
            observe(setup, state, engine, map(task, bundle.assignments), statistics, observers)
        for update in workers.train(map(task, bundle.assignments)):
            if _add(setup, cells, update, statistics):
                slots.take(update)
    workers.reduce(cells.accumulators)
    _require_updates(statistics, state.round)

    # 4. The sums are merged; the server then takes its step and projects: w_{r+1}.
    if one_model is not None:
        one_model.is_torn = can_overwrite(setup, state, cells)
    new = slots.keep_in(_next(setup, state, cells, dispatchers[0], one_model))
    for sums in cells.accumulators:
        statistics.record_measurements(sums.notes)
    return new, statistics.report(coverage(cells.accumulators))


def _add(setup: Setup, cells: Cells, update: Update, statistics: RoundStatistics) -> bool:
    """Add an update to the sums, or refuse it; return whether it was added."""
    accumulator = cells.accumulators[cells.number(update.assignment.client)]
    if reason := _add_sound(setup, accumulator, update):
        statistics.record_refusal(update.assignment.client, reason)
        return False
    rule = setup.scheme.step_rule(update.assignment.capacity)
    passes = pass_cuts(rule, update.cut, update.passes, setup.least)
    statistics.record_update(
        update.cut, update.examples_used, update.loss, passes, update.examples_counted
    )
    statistics.record_cut(update.assignment, update.cut)
    return True


def _add_sound(setup: Setup, accumulator: Accumulator, update: Update) -> str | None:
    """Add an update to the sums, or return the reason to refuse it."""
    weight = setup.weight(update.examples)
    reason = accumulator.refusal(update.cut, update.tensors, weight) or update.unusable
    if reason is None:
        accumulator.add(update.cut, update.tensors, weight)
    return reason


def _require_updates(statistics: RoundStatistics, round_: int) -> None:
    if statistics.update_count:
        return
    if not statistics.refusals and not statistics.missing:
        raise SubmodelError(f"round {round_ + 1}: no client has enough capacity to take part")
    if statistics.missing:
        raise SilentRoundError(f"round {round_ + 1}: no update to merge ({statistics.reasons()})")
    client, reason = next(iter(statistics.refusals.items()))
    hint = "" if reason == NOTHING_COUNTS else "; a smaller local.lr, or local.clip, may help"
    raise DivergedError(
        f"round {round_ + 1}: all {len(statistics.refusals)} updates were refused "
        f"(client {client}: {reason}){hint}"
    )


def _next(
    setup: Setup, state: State, cells: Cells, dispatcher: Dispatcher, one_model: OneModel | None
) -> State:
    """Return the state after merge, server step and projection, with new starts for the cells."""
    new, coverage_masks, together = cells.merge(
        lambda cell: dispatcher.cut(Assignment(state.round, cell, 1.0, cell)),
        overwrite=one_model is not None and one_model.is_torn,
        writes=one_model is None or one_model.writes,
    )
    if together:
        new = begin_cells(setup, _server_step(setup, state, new, coverage_masks))
    return replace(new, round=state.round + 1)


def _server_step(
    setup: Setup, state: State, merged_state: State, coverage_masks: Mapping[str, Tensor]
) -> State:
    """Return the merged state after the server step from ``state`` and the projection."""
    old, target = ({n: s.tensors[n] for n in setup.trained_names} for s in (state, merged_state))
    parameters, memory = setup.server.step(old, target, coverage_masks, state.recall("server"))
    # a mean of sound updates is sound
    own_tensors = {n: t for n, t in parameters.items() if t is not target[n]}
    if (reason := unsound(own_tensors)) is not None:
        raise DivergedError(
            f"round {state.round + 1}: after the server step {reason}; a smaller server.lr may help"
        )
    tensors = _project(setup, {**merged_state.tensors, **parameters})
    return replace(merged_state, tensors=tensors).remember("server", memory)


def _project(setup: Setup, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Apply P_W to the trained parameters; merged buffers are not part of W."""
    return tensors | setup.projection({n: tensors[n] for n in setup.trained_names})


def output_step(
    setup: Setup,
    state: State,
    engine: Engine,
    costs: CostModel,
    smoothness: float,
    group: Group = ALONE,
) -> State:
    """Compute the algorithms' output: another masked gradient step, of size 1/L, over all clients.

    w^ = P(w_R - (1/L) (1/N) sum_i m_i (.) grad f_i(m_i (.) w_R)); rolling also averages over all
    its windows. It is a round in which every client takes one full-batch step, merged by
    ``fill_in``. The f_i are the objectives of the rounds: weight decay lambda adds (lambda / 2)
    ||m_i (.) w||^2, clipping clips these gradients, too, and clients have their weights in the
    merge.
    """
    work = replace(
        setup.work,
        lr=1 / smoothness,
        epochs=None,
        steps=1,
        batch_size=None,
        optimiser=setup.work.optimiser.plain(),
    )
    statistics = RoundStatistics(setup.axes, state.tensors, costs, travel=setup.travel)
    workers = Workers(engine, group, statistics)
    accumulator = replace(setup, rule=FILL_IN).begin_sums(setup.travel.of_update(state.tensors))
    present = setup.clients.present(None)
    assignments = [
        Assignment(
            state.round,
            client,
            _capacity(setup.population, client, state.round, present),
            client % setup.population.per_round,
        )
        for client in (setup.population.everyone() if present is None else sorted(present))
    ]
    bundles = workers.share(assignments)
    for scheme in output_passes(setup.scheme):
        dispatcher = Dispatcher(replace(setup, scheme=scheme), state, work)
        for bundle in bundles:
            # a client that did not answer for one window is not asked for the others
            remaining = [a for a in bundle.assignments if str(a.client) not in statistics.missing]
            for update in workers.train(map(dispatcher.task, remaining)):
                if reason := _add_sound(setup, accumulator, update):
                    statistics.record_refusal(update.assignment.client, reason)
    workers.reduce([accumulator])
    if not accumulator.count:
        kind = SilentRoundError if statistics.missing else DivergedError
        raise kind(f"output step: no update to merge ({statistics.reasons()})")
    if statistics.missing or statistics.refusals:
        _log.warning("the output step was taken without %s", statistics.reasons())
    return replace(state, tensors=_project(setup, {**state.tensors, **accumulator.merge()}))


@dataclass
class OneModel:
    """Permission to overwrite the model of a round."""

    is_torn: bool = False  # whether writing has begun, before the round is complete
    writes: bool = True  # whether this process writes; False: another one does, for all


def can_overwrite(setup: Setup, state: State, cells: Cells) -> bool:
    """Return whether the model before the round is not needed once updates are summed.

    A server step may use it, and tensors of the state's memory may share its storage.
    """
    if not (getattr(setup.server, "forgets_old", False) and cells.can_overwrite):
        return False
    addresses = {t.untyped_storage().data_ptr() for t in state.tensors.values()}
    others = [*state.memory.values(), *state.client_slots.values()]
    return addresses.isdisjoint(t.untyped_storage().data_ptr() for t in others)


CutOfCell = Callable[[int], Cut]
_OWNER = "cells"


def _row_counted_tensors(axes: Axes) -> list[str]:
    """Return the names of tensors that are also cut by a client's labels."""
    return [
        name
        for name, layouts in axes.layouts.items()
        if any(CLASSES in layout.axes() for layout in layouts)
    ]


def begin_cells(setup: Setup, state: State) -> State:
    """Return the state in which all cells start from the global model, without updates so far."""
    cells, tensors = setup.scheme.cells, setup.travel.of_update(state.tensors)
    if cells == 1:
        return state
    memory = {"weights": torch.zeros(cells, dtype=torch.float64)}
    for cell in range(cells):  # copies: a file cannot hold one tensor under two names
        memory |= {f"{cell}/model/{name}": t.clone() for name, t in tensors.items()}
        memory |= {f"{cell}/held/{name}": torch.zeros_like(tensors[name], dtype=torch.float64)
                   for name in _row_counted_tensors(setup.axes)}  # fmt: skip
    return state.remember(_OWNER, memory)


class Cells:
    """The sums of a round: one accumulator, or one per cell of a hierarchical scheme.

    Clients of a cell average among themselves. In rounds that `Scheme.joins` names, the cells'
    models w_c are merged, by the rule of the run; until then the global model w does not change:

        delta_j = sum_c h_c[j] (w_c[j] - w[j]) / D_j,

    with D_j = sum_c h_c[j] (``selective``) or sum_c a_c (``fill_in``). a_c is the total weight of
    the updates that cell c took since the last join, h_c[j] of those that held weight j. All
    clients of a cell have one cut m_c, so h_c = a_c m_c, except for rows of the classifier, which
    clients without the label do not hold: only these are counted row by row.
    """

    def __init__(self, setup: Setup, state: State) -> None:
        self._setup, self._state = setup, state
        self._scheme = setup.scheme
        self._count = self._scheme.cells
        self._memory = state.recall(_OWNER)
        self._tensors_back = setup.travel.of_update(state.tensors)
        self.bases: list[Mapping[str, Tensor]] = [state.tensors]
        if self._count > 1:
            self.bases = [
                {n: self._memory.get(f"{cell}/model/{n}", t) for n, t in state.tensors.items()}
                for cell in range(self._count)
            ]
        trained_bases = [setup.travel.of_update(base) for base in self.bases]
        self.accumulators = [setup.begin_sums(base) for base in trained_bases]

    def number(self, client: int) -> int:
        """Return the cell of a client."""
        return self._scheme.cell(client)

    @property
    def can_overwrite(self) -> bool:
        """Whether the merged tensors may overwrite the previous ones."""
        return self._count == 1 and self.accumulators[0].can_overwrite

    def merge(
        self, cut_of_cell: CutOfCell, *, overwrite: bool = False, writes: bool = True
    ) -> tuple[State, Mapping[str, Tensor], bool]:
        """Return the state with the merged tensors, their coverage, and whether it is global."""
        if self._count == 1:
            (sums,) = self.accumulators
            tensors = sums.merge(in_place=overwrite, writes=writes)
            return self._with(tensors), sums.coverage_masks(), True
        memory = self._after_round()
        if self._scheme.joins(self._state.round):
            tensors, coverage = self._join(memory, cut_of_cell)
            return self._with(tensors), coverage, True
        nothing = {n: torch.zeros_like(t, dtype=torch.bool) for n, t in self._tensors_back.items()}
        return self._state.remember(_OWNER, memory), nothing, False

    def _with(self, tensors: Mapping[str, Tensor]) -> State:
        """Return the state with these tensors; untrained tensors stay."""
        return replace(self._state, tensors={**self._state.tensors, **tensors})

    def _after_round(self) -> dict[str, Tensor]:
        """Return the memory with every cell's new average, and the total weight of its updates."""
        new = torch.tensor([sums.weight for sums in self.accumulators], dtype=torch.float64)
        memory = self._memory | {"weights": self._memory["weights"] + new}
        for cell, sums in enumerate(self.accumulators):
            if sums.count:  # a cell may have no client in a round
                memory |= {f"{cell}/model/{name}": t for name, t in sums.merge().items()}
                rows = sums.holder_weights(_row_counted_tensors(self._setup.axes))
                memory |= {f"{cell}/held/{n}": memory[f"{cell}/held/{n}"] + h
                           for n, h in rows.items()}  # fmt: skip
        return memory

    def _join(
        self, memory: Mapping[str, Tensor], cut_of_cell: CutOfCell
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the merged models of the cells, and their coverage."""
        weights = memory["weights"].tolist()
        cuts = {cell: cut_of_cell(cell) for cell, total in enumerate(weights) if total}
        tensors, coverage = {}, {}
        for name, whole in self._tensors_back.items():
            move, weight = (torch.zeros_like(whole, dtype=torch.float64) for _ in range(2))
            for cell, cut in cuts.items():
                holders = memory.get(f"{cell}/held/{name}")
                if holders is None:
                    holders = torch.zeros_like(weight)
                    cut.add(name, holders, weights[cell])
                move += holders * (memory[f"{cell}/model/{name}"].double() - whole.double())
                weight += holders
            tensors[name] = average(whole, move, weight, sum(weights), self._setup.rule)
            coverage[name] = weight > 0
        return tensors, coverage
