"""Before a round: a scheme that adapts looks at the model, at costs, and at the clients' gradients.

The gradients come from the clients of the round, each over all its examples, through the engine
like any other work: one step on the whole model, whose change is the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from submodel.algorithm.execution import Bundle, Engine, Group
from submodel.algorithm.gradients import WORK, gradients
from submodel.algorithm.merge import FILL_IN, Accumulator
from submodel.algorithm.tally import Tally
from submodel.algorithm.types import Assignment, Failure, Setup, State, Task
from submodel.errors import DivergedError, SilentRoundError
from submodel.model.cost import CostModel
from submodel.model.cut import WHOLE, CoordinateCut, gather
from submodel.schemes import Adaptation, Adapts, Scheme, role


def adapting_scheme(scheme: Scheme, round_: int) -> Adapts | None:
    """The scheme, if it adapts before this round."""
    adapts = role(scheme, Adapts)
    return adapts if adapts is not None and adapts.adapts(round_) else None


def adapt_state(
    setup: Setup,
    state: State,
    engine: Engine,
    costs: CostModel,
    assignments: Sequence[Assignment],
    group: Group,
    tally: Tally,
) -> State:
    """The state with which the round begins; what the clients did for it is in the tally."""
    scheme = adapting_scheme(setup.scheme, state.round)
    if scheme is None:
        return state
    now = Adaptation(
        setup.seed,
        state.round,
        state.tensors,
        [name for name, _ in setup.module.named_parameters()],
        setup.population.capacities,
        state.recall("scheme"),
        lambda masks: squared_gradients(setup, state, engine, assignments, group, tally, masks),
        costs.flops_per_weight,
    )
    tensors, memory = scheme.adapt(now)
    tally.lap("adapt")
    return replace(state, tensors=dict(tensors)).remember("scheme", memory)


def squared_gradients(
    setup: Setup,
    state: State,
    engine: Engine,
    assignments: Sequence[Assignment],
    group: Group,
    tally: Tally,
    masks: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """The mean over the clients of grad f_i(w)^2, for every parameter, in full shape.

    Of what is not trained it is 0, and nobody sends it.

    Clients count as they do in the merge. Sent are the weights inside the ``masks``, back come
    gradients of all. Squares below 2^-62 count as zero, as sums without order need it.
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
                tally.miss(update.assignment.client, update.reason)
                continue
            gradient = gradients(state.tensors, update.tensors, zeros)
            squares = {n: g.square() for n, g in gradient.items()}
            weight = setup.weight(update.examples)
            tally.book_gradients(cut_sent, zeros, update.examples_used)
            if reason := accumulator.refusal(WHOLE, squares, weight) or update.unusable:
                tally.refuse(update.assignment.client, f"its gradient: {reason}")
            else:
                accumulator.add(WHOLE, squares, weight)
    # only sums are exchanged here: the tally keeps its own part of the books until the round's end
    group.reduce([accumulator], Tally(setup.axes, state.tensors, tally.costs))
    if not accumulator.count:
        if tally.missing:
            raise SilentRoundError(f"round {state.round + 1}: no gradient ({tally.why()})")
        raise DivergedError(f"round {state.round + 1}: no client has a finite gradient")
    return everything | accumulator.merge()
