"""Who runs the tasks of a round: the protocols of engines, and of processes that share a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from torch import Tensor

from submodel.algorithm.merge import Accumulator
from submodel.algorithm.round_statistics import RoundStatistics
from submodel.algorithm.types import Assignment, Failure, Outcome, Task, Update


@dataclass(frozen=True)
class Bundle:
    """Assignments that are trained together: what processes share is whole bundles."""

    assignments: Sequence[Assignment]
    overhead: float = 0.0  # seconds, roughly, that do not grow with the number of assignments
    estimate: Callable[[], float] = float  # seconds that do; asked where there is work to share

    @cached_property
    def work(self) -> float:
        """The estimate."""
        return self.estimate()

    @property
    def cost(self) -> float:
        """Both together."""
        return self.overhead + self.work

    def split(self, parts: int) -> list[Bundle]:
        """About equal parts, each with the overhead of the whole."""
        if parts == 1:
            return [self]
        return [
            Bundle([self.assignments[i] for i in part], self.overhead, lambda: self.work / parts)
            for part in np.array_split(np.arange(len(self.assignments)), parts)
        ]


class Engine(Protocol):
    """Where tasks run: updates, or the news that there is none, come back in any order."""

    def bundles(self, assignments: Sequence[Assignment]) -> list[Bundle]:
        """What to train together: a function of the round, not of who trains it."""
        ...

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Train the tasks of one bundle; their tensors are not to be changed."""
        ...


class Group(Protocol):
    """The processes that share a run: each plans the same round and trains its part of it."""

    def share(self, bundles: Sequence[Bundle]) -> Sequence[Bundle]:
        """The bundles of this process."""
        ...

    def reduce(self, accumulators: Sequence[Accumulator], statistics: RoundStatistics) -> None:
        """Let every process hold the sums and the books of all."""
        ...

    def spread(self, count: int, work: Callable[[int], Tensor]) -> list[Tensor]:
        """Compute work(0), work(1), ..., all of one shape, together; everyone gets all of it."""
        ...


class Alone:
    """One process does everything."""

    def share(self, bundles: Sequence[Bundle]) -> Sequence[Bundle]:
        """All of them."""
        return bundles

    def reduce(self, accumulators: Sequence[Accumulator], statistics: RoundStatistics) -> None:
        """There is nobody else."""

    def spread(self, count: int, work: Callable[[int], Tensor]) -> list[Tensor]:
        """One after another."""
        return [work(number) for number in range(count)]


ALONE = Alone()


class Workers:
    """An engine and the processes that share a run: what they do is booked in a statistics."""

    def __init__(self, engine: Engine, group: Group, statistics: RoundStatistics) -> None:
        self._engine, self._group, self._statistics = engine, group, statistics

    def share(self, assignments: Sequence[Assignment]) -> Sequence[Bundle]:
        """The part of a round for this process, as bundles of clients that train together."""
        bundles = self._group.share(self._engine.bundles(assignments))
        self._statistics.lap("plan")
        return bundles

    def train(self, tasks: Iterable[Task]) -> Iterator[Update]:
        """The updates of one bundle, in any order; whoever sends none is booked as missing.

        Tasks are made one at a time, as the engine asks for them.
        """
        for outcome in self._engine.run(self._send(tasks)):
            self._statistics.lap("train")
            if isinstance(outcome, Failure):
                self._statistics.miss(outcome.assignment.client, outcome.reason)
            else:
                yield outcome
        self._statistics.lap("train")

    def _send(self, tasks: Iterable[Task]) -> Iterator[Task]:
        waiting = iter(tasks)
        while True:
            self._statistics.lap("train")
            if (task := next(waiting, None)) is None:
                return
            self._statistics.send(task.cut)
            yield task

    def reduce(self, accumulators: Sequence[Accumulator]) -> None:
        """Let every process hold the sums and the books of all."""
        self._group.reduce(accumulators, self._statistics)
        self._statistics.lap("reduce")
