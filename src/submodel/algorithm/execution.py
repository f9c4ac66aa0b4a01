"""Execution of the tasks of a round: protocols of engines and of groups of processes."""

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
    """Assignments that are trained together; processes divide a round by whole bundles."""

    assignments: Sequence[Assignment]
    overhead: float = 0.0  # approximate seconds, independent of the number of assignments
    estimate: Callable[[], float] = float  # seconds proportional to it; called to divide work

    @cached_property
    def work(self) -> float:
        """The estimate of the work in seconds."""
        return self.estimate()

    @property
    def cost(self) -> float:
        """Overhead and work in seconds."""
        return self.overhead + self.work

    def split(self, parts: int) -> list[Bundle]:
        """Split into about equal parts, each with the overhead of the whole."""
        if parts == 1:
            return [self]
        return [
            Bundle([self.assignments[i] for i in part], self.overhead, lambda: self.work / parts)
            for part in np.array_split(np.arange(len(self.assignments)), parts)
        ]


class Engine(Protocol):
    """Runs tasks; updates or failures come back in any order."""

    def bundles(self, assignments: Sequence[Assignment]) -> list[Bundle]:
        """Group assignments for joint training: a function of the round, not of the processes."""
        ...

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Train the tasks of one bundle; their tensors must not be changed."""
        ...


class Group(Protocol):
    """The processes that share a run: each plans the same round and trains its part of it."""

    def share(self, bundles: Sequence[Bundle]) -> Sequence[Bundle]:
        """Return the bundles of this process."""
        ...

    def reduce(self, accumulators: Sequence[Accumulator], statistics: RoundStatistics) -> None:
        """Exchange sums and statistics, so that every process has the totals."""
        ...

    def spread(self, count: int, work: Callable[[int], Tensor]) -> list[Tensor]:
        """Compute work(0), work(1), ..., of equal shapes; every process gets all."""
        ...


class Alone:
    """A group of one process."""

    def share(self, bundles: Sequence[Bundle]) -> Sequence[Bundle]:
        """Return all bundles."""
        return bundles

    def reduce(self, accumulators: Sequence[Accumulator], statistics: RoundStatistics) -> None:
        """Do nothing: there is no other process."""

    def spread(self, count: int, work: Callable[[int], Tensor]) -> list[Tensor]:
        """Compute the results one after another."""
        return [work(number) for number in range(count)]


ALONE = Alone()


class Workers:
    """Engine and group of a run; they record their work in the statistics of the round."""

    def __init__(self, engine: Engine, group: Group, statistics: RoundStatistics) -> None:
        self._engine, self._group, self._statistics = engine, group, statistics

    def share(self, assignments: Sequence[Assignment]) -> Sequence[Bundle]:
        """Return this process's part of a round, as bundles of clients that train together."""
        bundles = self._group.share(self._engine.bundles(assignments))
        self._statistics.lap("plan")
        return bundles

    def train(self, tasks: Iterable[Task]) -> Iterator[Update]:
        """Yield the updates of one bundle, in any order; record clients without one as missing.

        Tasks are made one at a time, as the engine asks for them.
        """
        for outcome in self._engine.run(self._send(tasks)):
            self._statistics.lap("train")
            if isinstance(outcome, Failure):
                self._statistics.record_missing(outcome.assignment.client, outcome.reason)
            else:
                yield outcome
        self._statistics.lap("train")

    def _send(self, tasks: Iterable[Task]) -> Iterator[Task]:
        waiting = iter(tasks)
        while True:
            self._statistics.lap("train")
            if (task := next(waiting, None)) is None:
                return
            self._statistics.record_task(task.cut)
            yield task

    def reduce(self, accumulators: Sequence[Accumulator]) -> None:
        """Exchange sums and statistics, so that every process has the totals."""
        self._group.reduce(accumulators, self._statistics)
        self._statistics.lap("reduce")
