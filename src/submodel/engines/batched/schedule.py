"""Which clients of a stack take a step together, and on which examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby

import numpy as np
from numpy.typing import NDArray

from submodel.algorithm.types import Setup, Task
from submodel.local.work import batches, batches_per_pass


@dataclass(frozen=True)
class StackedClient:
    """A task with its batches, as positions in the training set."""

    task: Task
    total: int
    batches: list[NDArray[np.int64]]
    per_pass: int  # batches in one pass over the examples

    @classmethod
    def of(cls, setup: Setup, task: Task) -> StackedClient:
        """The batches of a task.

        Args:
            setup: whose clients and seed they follow from.
            task: of the client.
        """
        where = task.assignment
        indices = setup.clients.indices(where.client)
        order = batches(len(indices), task.work, setup.seed, where.round, where.client)
        per_pass = batches_per_pass(len(indices), task.work)
        return cls(task, len(indices), [indices[b] for b in order], per_pass)

    @property
    def largest_batch(self) -> int:
        """Examples of it."""
        return max(map(len, self.batches), default=0)

    def batch(self, number: int, step: int) -> NDArray[np.int64] | None:
        """Batch ``step`` of pass ``number``, if there is one."""
        position = number * self.per_pass + step
        if step >= self.per_pass or position >= len(self.batches):
            return None
        return self.batches[position]


@dataclass(frozen=True)
class Turn:
    """A step of neighbouring clients with batches of one size."""

    start: int
    stop: int
    positions: NDArray[np.int64]  # of all their examples, example by example
    steps: list[int]  # which of its own steps it is for each


def schedule(clients: Sequence[StackedClient]) -> Iterator[Turn]:
    """All steps of all clients: everyone does a batch of a pass before anyone goes on."""
    longest = max(client.per_pass for client in clients)
    for number in count():
        has_batches = False
        for step in range(longest):
            now = [client.batch(number, step) for client in clients]
            sizes = [0 if batch is None else len(batch) for batch in now]
            for size, members in groupby(range(len(clients)), key=sizes.__getitem__):
                if size:
                    has_batches = True
                    group = list(members)
                    together = np.stack([b for i in group if (b := now[i]) is not None], 1)
                    steps = [number * clients[i].per_pass + step for i in group]
                    yield Turn(group[0], group[-1] + 1, together.ravel(), steps)
        if not has_batches:
            return
