"""Who trains the tasks of a round, with the books kept of all that passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from submodel.algorithm.execution import Bundle, Engine, Group
from submodel.algorithm.merge import Accumulator
from submodel.algorithm.tally import Tally
from submodel.algorithm.types import Assignment, Failure, Task, Update


class Workers:
    """An engine and the processes that share a run: what they do is booked in a tally.

    Args:
        engine: trains tasks
        group: the processes
        tally: the books
    """

    def __init__(self, engine: Engine, group: Group, tally: Tally) -> None:
        self._engine, self._group, self._tally = engine, group, tally

    def share(self, assignments: Sequence[Assignment]) -> Sequence[Bundle]:
        """The part of a round for this process, as bundles of clients that train together."""
        bundles = self._group.share(self._engine.bundles(assignments))
        self._tally.lap("plan")
        return bundles

    def train(self, tasks: Iterable[Task]) -> Iterator[Update]:
        """The updates of one bundle, in any order; whoever sends none is booked as missing.

        Tasks are made one at a time, as the engine asks for them.
        """
        for outcome in self._engine.run(self._send(tasks)):
            self._tally.lap("train")
            if isinstance(outcome, Failure):
                self._tally.miss(outcome.assignment.client, outcome.reason)
            else:
                yield outcome
        self._tally.lap("train")

    def _send(self, tasks: Iterable[Task]) -> Iterator[Task]:
        waiting = iter(tasks)
        while True:
            self._tally.lap("train")
            if (task := next(waiting, None)) is None:
                return
            self._tally.send(task.cut)
            yield task

    def reduce(self, accumulators: Sequence[Accumulator]) -> None:
        """Let every process hold the sums and the books of all."""
        self._group.reduce(accumulators, self._tally)
        self._tally.lap("reduce")
