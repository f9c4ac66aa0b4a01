"""Before a round: what a scheme measures of its clients, for the books; nothing depends on it.

Measuring is not part of the algorithm: its passes are in the round's seconds, but not among its
FLOPs and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from submodel.algorithm.execution import Engine
from submodel.algorithm.gradients import WORK, gradients
from submodel.algorithm.tally import Tally
from submodel.algorithm.types import Failure, Setup, State, Task
from submodel.errors import SilentRoundError
from submodel.model.cut import WHOLE, gather
from submodel.schemes import Observation, Observes, Scheme, all_roles


def observers_of(scheme: Scheme, round_: int) -> list[Observes]:
    """Those that observe this round: the scheme, and whoever it has its masks from."""
    return [one for one in all_roles(scheme, Observes) if one.observes(round_)]


def observe(
    setup: Setup, state: State, engine: Engine, tasks: Iterable[Task], tally: Tally
) -> None:
    """Note what the scheme sees of clients and their sub-models, before they train."""
    observers = observers_of(setup.scheme, state.round)
    for task in tasks if observers else ():
        tally.note(_notes(setup, state, engine, task, observers))
        tally.lap("observe")


def _notes(
    setup: Setup, state: State, engine: Engine, task: Task, observers: Sequence[Observes]
) -> dict[str, float]:
    """What observers see of one client; where two use a name, the scheme's own counts."""
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
    """The gradient m (.) grad f(m (.) w) over all examples of a client, in whole shapes."""
    (update,) = engine.run([replace(task, work=WORK, step_rule=None)])
    if isinstance(update, Failure):
        raise SilentRoundError(f"nothing to observe: {update.reason}")
    names = [name for name, _ in setup.module.named_parameters()]
    whole = {name: torch.zeros_like(state.tensors[name]) for name in names}
    trained_names = setup.travel.of_update(whole)
    for name, part in gradients(task.tensors, update.tensors, trained_names).items():
        task.cut.add(name, whole[name], part)
    return whole
