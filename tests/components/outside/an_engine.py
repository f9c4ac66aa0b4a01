"""An engine that runs tasks in reverse order and records each in a file."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from submodel.algorithm.execution import Bundle
from submodel.algorithm.types import Assignment, Outcome, Task
from submodel.engines.select import EngineContext
from submodel.engines.serial import SerialEngine


class Backwards:
    def __init__(self, context: EngineContext, notes: str) -> None:
        self._one_by_one = SerialEngine(context.setup, context.device)
        self._notes = Path(notes)

    def bundles(self, assignments: Sequence[Assignment]) -> list[Bundle]:
        return [Bundle(list(assignments))]

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        for task in reversed(list(tasks)):
            with self._notes.open("a") as file:
                file.write(f"{task.assignment.round} {task.assignment.client}\n")
            yield from self._one_by_one.run([task])
