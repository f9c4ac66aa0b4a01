"""A little of a run's work, timed: some bundles of a round, some batches of an evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import Tensor

from submodel.algorithm.execution import Bundle, Engine
from submodel.algorithm.merge import Accumulator
from submodel.algorithm.tally import Tally
from submodel.algorithm.types import Assignment, Outcome, Task


class SampleGroup:
    """A group of processes of which only this one is there: it does a part, and notes the rest.

    Args:
        choose: the bundles of a round that are trained.
        longest: seconds after which no further batch of an evaluation is computed.
    """

    def __init__(
        self, choose: Callable[[Sequence[Bundle]], Sequence[Bundle]], longest: float
    ) -> None:
        self._choose, self._longest = choose, longest
        self.seconds_left_out = 0.0
        """What the batches that were left out would have taken, as long as the others did."""
        self.batches_left_out = 0

    def share(self, bundles: Sequence[Bundle]) -> Sequence[Bundle]:
        """Those that were chosen."""
        return self._choose(bundles)

    def reduce(self, accumulators: Sequence[Accumulator], tally: Tally) -> None:
        """There is nobody else."""

    def spread(self, count: int, work: Callable[[int], Tensor]) -> list[Tensor]:
        """As many as there is time for; the last stands for the others."""
        start = time.perf_counter()
        results: list[Tensor] = []
        for number in range(count):
            results.append(work(number))
            if time.perf_counter() - start > self._longest:
                break
        rest = count - len(results)
        if rest:
            seconds_per_batch = (time.perf_counter() - start) / len(results)
            self.seconds_left_out += rest * seconds_per_batch
            self.batches_left_out += rest
        return results + results[-1:] * rest


class TimedEngine:
    """An engine that knows how long each bundle took, without making its tasks and merging.

    Args:
        engine: who trains.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.bundle_seconds: list[float] = []

    def bundles(self, assignments: Sequence[Assignment]) -> list[Bundle]:
        """As the engine's."""
        return self._engine.bundles(assignments)

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """As the engine does."""
        waiting = _TimedTasks(tasks)
        outcomes = self._engine.run(waiting)
        busy = 0.0
        while True:
            start, elsewhere = time.perf_counter(), waiting.seconds
            outcome = next(outcomes, None)
            busy += time.perf_counter() - start - (waiting.seconds - elsewhere)
            if outcome is None:
                break
            yield outcome
        self.bundle_seconds.append(busy)


class _TimedTasks:
    """Tasks as they are asked for, and how long making them took."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tasks = iter(tasks)
        self.seconds = 0.0

    def __iter__(self) -> Iterator[Task]:
        return self

    def __next__(self) -> Task:
        start = time.perf_counter()
        try:
            return next(self._tasks)
        finally:
            self.seconds += time.perf_counter() - start
