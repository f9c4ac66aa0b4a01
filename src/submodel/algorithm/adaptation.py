"""Adaptation before a round: a scheme may use the model, the costs and the clients' gradients.

The gradients come from the clients of the round, each over all its examples, through the engine
like any other work: one step on the whole model, whose change is the gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from submodel.algorithm.execution import Bundle, Engine, Group
from submodel.algorithm.merge import FILL_IN, Accumulator
from submodel.algorithm.round_statistics import RoundStatistics
from submodel.algorithm.types import Assignment, Failure, Setup, State, Task
from submodel.core.errors import DivergedError, SilentRoundError
from submodel.model.cost import CostModel
from submodel.model.cut import WHOLE, CoordinateCut, Tensors, gather
from submodel.schemes import Adaptation, Observation, Scheme
from submodel.tasks.training import LocalWork


def adapt_state(
    setup: Setup,
    state: State,
    engine: Engine,
    costs: CostModel,
    assignments: Sequence[Assignment],
    group: Group,
    statistics: RoundStatistics,
) -> State:
    """Return the state after the scheme's adaptation, with which the round begins."""
    now = Adaptation(
        setup.seed,
        state.round,
        state.tensors,
        [name for name, _ in setup.module.named_parameters()],
        setup.population.capacities,
        state.recall("scheme"),
        lambda masks: squared_gradients(
            setup, state, engine, assignments, group, statistics, masks
        ),
        costs.flops_per_weight,
    )
    tensors, memory = setup.scheme.adapt(now)
    statistics.lap("adapt")
    return replace(state, tensors=dict(tensors)).remember("scheme", memory)


def squared_gradients(
    setup: Setup,
    state: State,
    engine: Engine,
    assignments: Sequence[Assignment],
    group: Group,
    statistics: RoundStatistics,
    masks: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Compute the mean over the clients of grad f_i(w)^2, for every parameter, in full shape.

    It is 0 for a parameter that is not trained, which no client sends. Clients have their weights
    in the merge. The weights inside the ``masks`` are sent; gradients of all come back. Squares
    below 2^-62 count as zero, as exact sums require.
    """
    whole = [replace(a, capacity=1.0) for a in assignments]
    everything = {n: torch.zeros_like(state.tensors[n]) for n, _ in setup.module.named_parameters()}
    zeros = setup.travel.of_update(everything)
    accumulator = Accumulator(zeros, FILL_IN)
    tensors, cut_sent = gather(WHOLE, state.tensors), CoordinateCut(masks)
    by_labels = setup.absent_labels != "keep"

    def tasks(bundle: Bundle) -> Iterator[Task]:
        for assignment in bundle.assignments:
            classes = setup.clients.labels(assignment.client) if by_labels else None
            yield Task(assignment, WHOLE, tensors, WORK, classes)

    for bundle in group.share(engine.bundles(whole)):
        for update in engine.run(tasks(bundle)):
            if isinstance(update, Failure):
                statistics.record_missing(update.assignment.client, update.reason)
                continue
            gradient = gradients(state.tensors, update.tensors, zeros)
            squares = {n: g.square() for n, g in gradient.items()}
            weight = setup.weight(update.examples)
            statistics.record_gradients(cut_sent, zeros, update.examples_used)
            if reason := accumulator.refusal(WHOLE, squares, weight) or update.unusable:
                statistics.record_refusal(update.assignment.client, f"its gradient: {reason}")
            else:
                accumulator.add(WHOLE, squares, weight)
    # only sums are exchanged here; each process keeps its own statistics until the round's end
    group.reduce([accumulator], RoundStatistics(setup.axes, state.tensors, statistics.costs))
    if not accumulator.count:
        if statistics.missing:
            raise SilentRoundError(f"round {state.round + 1}: no gradient ({statistics.reasons()})")
        raise DivergedError(f"round {state.round + 1}: no client has a finite gradient")
    return everything | accumulator.merge()


def observe(
    setup: Setup,
    state: State,
    engine: Engine,
    tasks: Iterable[Task],
    statistics: RoundStatistics,
    observers: Sequence[Scheme],
) -> None:
    """Record the scheme's observations of clients and their sub-models, before training."""
    for task in tasks:
        statistics.record_measurements(_notes(setup, state, engine, task, observers))
        statistics.lap("observe")


def _notes(
    setup: Setup, state: State, engine: Engine, task: Task, observers: Sequence[Scheme]
) -> dict[str, float]:
    """Return the observations of one client; the scheme's own take precedence."""
    whole = replace(
        task,
        assignment=replace(task.assignment, capacity=1.0),
        cut=WHOLE,
        tensors=gather(WHOLE, state.tensors),
        scales={},
    )
    now = Observation(
        client_gradient(setup, state, engine, whole),
        client_gradient(setup, state, engine, task),
        state.round,
    )
    notes: dict[str, float] = {}
    for observer in reversed(observers):
        notes |= observer.observe(now)
    return notes


def client_gradient(setup: Setup, state: State, engine: Engine, task: Task) -> dict[str, Tensor]:
    """Compute the gradient m (.) grad f(m (.) w) over all examples of a client, in full shape."""
    (update,) = engine.run([replace(task, work=WORK, step_rule=None)])
    if isinstance(update, Failure):
        raise SilentRoundError(f"nothing to observe: {update.reason}")
    names = [name for name, _ in setup.module.named_parameters()]
    whole = {name: torch.zeros_like(state.tensors[name]) for name in names}
    trained_names = setup.travel.of_update(whole)
    for name, part in gradients(task.tensors, update.tensors, trained_names).items():
        task.cut.add(name, whole[name], part)
    return whole


_STEP = 2.0**24
"""The step is so long that float32 rounds w away in w - step * gradient, without changing the
gradient."""
WORK = LocalWork(lr=_STEP, epochs=None, steps=1, batch_size=None)
"""Local work of a client: one full-batch step of length `_STEP`."""


def gradients(before: Tensors, after: Tensors, names: Iterable[str]) -> dict[str, Tensor]:
    """Return the gradients that `WORK` applied to the tensors.

    >>> import torch
    >>> gradients({"w": torch.tensor([1.0])}, {"w": torch.tensor([1.0 - 2.0**23])}, ["w"])
    {'w': tensor([0.5000])}
    """
    return {
        n: ((before[n].double() - after[n].double()) / _STEP).to(before[n].dtype) for n in names
    }
