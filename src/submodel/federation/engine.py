"""Engine over devices: a round closes at its deadline, or when enough devices have answered.

A device that several rounds in a row closed without is overdue: the next round that includes it
closes early only with its answer. So a quorum excludes no slow device for ever.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from submodel.algorithm.execution import Bundle
from submodel.algorithm.types import Assignment, Failure, Outcome, Task
from submodel.config import Config
from submodel.core.errors import plain
from submodel.federation.channel import Channel, MessageKind, Reply, growing_pauses
from submodel.federation.roster import Roster
from submodel.federation.wire import (
    Limits,
    Message,
    ModelBase,
    TrainingCost,
    WireError,
    moments_limits,
    read_as,
    read_update,
    task_message,
    update_limits,
)
from submodel.model.travel import EVERYTHING, Travel

_PASSED_OVER = 2  # rounds in a row that may close without a device before it is overdue


@dataclass(frozen=True)
class _OpenTask:
    """Task that was sent and is not answered yet."""

    task: Task
    sent_at: float
    sent_bytes: int
    answer_limits: Limits  # of a valid answer, by the cut of the task


class DeviceEngine:
    """Engine that sends tasks to the devices of a roster and returns their updates."""

    def __init__(
        self,
        config: Config,
        module: nn.Module,
        sends_masks: bool,
        run_head: Mapping[str, Any],
        channel: Channel,
        roster: Roster,
        clock: Callable[[], float] = time.monotonic,
        travel: Travel = EVERYTHING,
    ) -> None:
        self._travel = travel
        self._base: ModelBase | None = None  # of the first task; all tasks share it
        self._has_base: dict[int, bool] = {}  # by node, as of its last answer
        self._config, self._module, self._masks = config.devices, module, sends_masks
        self._briefing, self._channel, self._roster = run_head, channel, roster
        self._clock = clock
        self._measurements: dict[str, dict[str, float]] = {}

    def bundles(self, assignments: Sequence[Assignment]) -> list[Bundle]:
        """Return one bundle: devices work at the same time."""
        return [Bundle(assignments)]

    def measurements(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return seconds, bytes and memory of every device since the last call."""
        measurements, self._measurements = self._measurements, {}
        return {"devices": measurements} if measurements else {}

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Send all tasks, then yield updates; a missing answer is a failure with its reason."""
        for task, reply in self.ask(tasks, "train"):
            try:
                if isinstance(reply, Failure):
                    yield reply
                    continue
                if "problem" in reply.head:
                    raise WireError(plain(reply.head["problem"]))
                update = read_update(reply, task, self._travel)
                self._roster.note_answer(task.assignment.client)
                yield update
            except WireError as error:
                reason = f"its answer: {error}"
                self._roster.note_failure(task.assignment.client, reason, silent=False)
                yield Failure(task.assignment, reason)

    def ask(
        self, tasks: Iterable[Task], kind: MessageKind
    ) -> Iterator[tuple[Task, Message | Failure]]:
        """Send every task as a request of some kind; yield answers as they arrive."""
        open_tasks, unreachable_tasks = self._send(tasks, kind)
        yield from ((task, Failure(task.assignment, why)) for task, why in unreachable_tasks)
        enough = math.ceil(self._config.quorum * (len(open_tasks) + len(unreachable_tasks)))
        overdue = {t for t, task in open_tasks.items() if self._is_overdue(task)}
        end, answers = self._clock() + self._config.deadline, 0
        pauses, is_over = growing_pauses(), False
        while open_tasks and not is_over and (answers < enough or overdue & open_tasks.keys()):
            is_over = self._clock() >= end  # poll once more: reading answers takes time
            replies = self._channel.replies(list(open_tasks))
            for reply in replies:
                open_task = open_tasks.pop(reply.ticket)
                answer = self._open(open_task, reply)
                answers += not isinstance(answer, Failure)
                yield open_task.task, answer
            self._roster.read_reports()
            if replies:
                pauses = growing_pauses()
            else:
                time.sleep(max(0.0, min(next(pauses), end - self._clock())))
        self._channel.forget(open_tasks)
        is_early = not is_over
        for open_task in open_tasks.values():
            assignment, seconds = open_task.task.assignment, self._clock() - open_task.sent_at
            reason = f"no answer in {seconds:.0f} s" + (", when enough had answered" * is_early)
            entry, passed_over = self._roster.entry(assignment.client), None
            if kind == "train":  # waiting until the deadline resets the count
                passed_over = entry.passed_over + 1 if is_early else 0
            self._roster.note_failure(assignment.client, reason, True, passed_over)
            yield open_task.task, Failure(assignment, reason)

    def _is_overdue(self, open_task: _OpenTask) -> bool:
        """Whether the round may not close early without this answer."""
        entry = self._roster.entry(open_task.task.assignment.client)
        return entry.passed_over >= _PASSED_OVER

    def _send(
        self, tasks: Iterable[Task], kind: MessageKind
    ) -> tuple[dict[str, _OpenTask], list[tuple[Task, str]]]:
        """Send tasks; return the open ones by ticket, and the unreachable ones with reasons."""
        open_tasks: dict[str, _OpenTask] = {}
        unreachable_tasks = []
        masks = self._masks or kind == "moments"  # moments use cuts that a client cannot draw
        for task in tasks:
            node = self._roster.entry(task.assignment.client).node
            sends_base = self._needs_base(task)
            message = task_message(
                task, self._module, masks, self._config.transport, self._base, sends_base
            )
            payload = replace(message, head={**self._briefing, **message.head}).to_bytes()
            topic = str(task.assignment.round + 1)
            ticket = self._channel.send(node, kind, payload, self._config.deadline, topic)
            if ticket is None:
                self._roster.note_failure(
                    task.assignment.client, "it cannot be reached", silent=True
                )
                unreachable_tasks.append((task, "it cannot be reached"))
            else:
                limits = (
                    moments_limits(task)
                    if kind == "moments"
                    else update_limits(task, self._config.transport, self._travel)
                )
                open_tasks[ticket] = _OpenTask(task, self._clock(), len(payload), limits)
        return open_tasks, unreachable_tasks

    def _needs_base(self, task: Task) -> bool:
        """Whether the device of a task lacks the base."""
        if self._base is None and self._travel.base_names:
            self._base = ModelBase.of(self._travel.of_base(task.tensors))
        if self._base is None:
            return False
        entry = self._roster.entry(task.assignment.client)
        return not self._has_base.get(entry.node, entry.report.base == self._base.digest)

    def _open(self, open_task: _OpenTask, reply: Reply) -> Message | Failure:
        """Read an answer and record its cost."""
        client = open_task.task.assignment.client
        node = self._roster.entry(client).node
        self._has_base[node] = False  # until an answer proves otherwise
        if reply.problem:
            self._roster.note_failure(client, reply.problem, silent=True)
            return Failure(open_task.task.assignment, reply.problem)
        try:
            message = Message.from_bytes(reply.payload, open_task.answer_limits)
            cost = read_as(TrainingCost, message.head)
        except WireError as error:
            self._roster.note_failure(client, f"its answer: {error}", silent=False)
            return Failure(open_task.task.assignment, f"its answer: {error}")
        self._has_base[node] = "problem" not in message.head
        measurement = {
            "capacity": open_task.task.assignment.capacity,
            "seconds": round(self._clock() - open_task.sent_at, 3),
            "bytes_down": open_task.sent_bytes,
            "bytes_up": len(reply.payload),
        }
        measurement |= {name: value for name, value in asdict(cost).items() if value is not None}
        self._measurements[str(client)] = measurement
        return message
