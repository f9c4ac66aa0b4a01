"""Before a round: what a scheme measures of its clients, for the books; nothing depends on it.

A gradient is one full-batch step through the engine, like any other work. The step size is a large
power of two, so that the change of a weight holds its gradient to full precision whatever the
weight's size. Measuring is not part of the algorithm: its passes are in the round's seconds, but
not among its FLOPs and bytes.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from submodel.cut import WHOLE, gather
from submodel.exchange import Engine, Setup, State, Task
from submodel.local import LocalWork
from submodel.schemes import Observation
from submodel.tally import Tally

_STEP = 2.0**20


def observe(setup: Setup, state: State, engine: Engine, task: Task, tally: Tally) -> None:
    """Note what the scheme sees of one client and its sub-model, before it trains."""
    whole = replace(
        task,
        assignment=replace(task.assignment, capacity=1.0),
        cut=WHOLE,
        tensors=gather(WHOLE, state.tensors),
        scales={},
    )
    now = Observation(gradient(setup, state, engine, whole), gradient(setup, state, engine, task))
    tally.note(setup.scheme.observe(now))
    tally.lap("observe")


def gradient(setup: Setup, state: State, engine: Engine, task: Task) -> dict[str, Tensor]:
    """The gradient m (.) grad f(m (.) w) over all examples of a client, in whole shapes."""
    work = LocalWork(lr=_STEP, epochs=None, steps=1, batch_size=None)
    (update,) = engine.run([replace(task, work=work)])
    found = {}
    for name, _ in setup.module.named_parameters():
        found[name] = torch.zeros_like(state.tensors[name])
        step = (task.tensors[name] - update.tensors[name]) / _STEP
        task.cut.add(name, found[name], step)
    return found
