"""Roster of a run's devices: identity, capacity, and availability.

Every device that connects is sent a request for a report, also after a reconnect: its data or its
memory may have changed. A device that missed a deadline may still be training. It is sent a request
as well; devices answer messages in order, so it is free again when the report arrives, and tasks do
not pile up.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from submodel.core.errors import CheckpointError, SubmodelError, plain
from submodel.core.files import UnreadableError, read_typed, write_text
from submodel.federation.channel import Channel, growing_pauses
from submodel.federation.device import Report
from submodel.federation.wire import Limits, Message, WireError

_log = logging.getLogger(__name__)
_REPORT_TIMEOUT = 120.0  # seconds for a device to report
_RETRY_AFTER = 60.0  # seconds until a rejected device gets another request
_READ_INTERVAL = 1.0  # seconds between polls for reports during a round
_MOST_BYTES = 2**30  # of the file of all devices
_REMINDER_INTERVAL = 30.0


@dataclass(frozen=True)
class Entry:
    """One device; the field names are those of the file."""

    node: int
    client: int
    report: Report
    answered: int = 0
    missed: int = 0
    passed_over: int = 0  # the last missed rounds in a row that a quorum closed
    last_seen: float = 0.0  # seconds since 1970
    present: bool = True
    last_problem: str = ""


@dataclass(frozen=True)
class _Request:
    node: int
    expires: float
    is_awaited: bool  # whether the next round waits for the report; not if late


class Roster:
    """Devices of a run; ``accepts`` returns why a report is not acceptable, or an empty string."""

    def __init__(
        self,
        channel: Channel,
        run_head: Mapping[str, Any],
        accepts: Callable[[Report], str],
        most: int,
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channel, self._accepts, self._most = channel, accepts, most
        self._request = Message(run_head, {}).to_bytes()
        classes = run_head.get("facts", {}).get("classes") or 0
        self._limits = Limits.of(0, lines=classes // 25)  # for the labels in a report
        self._file, self._clock = file, clock
        self._open: dict[str, _Request] = {}
        self._rejected: dict[int, tuple[float, str]] = {}  # by node: time, reason
        self._silent_nodes: set[int] = set()  # nodes that did not report in time
        self._read_at = -math.inf
        self._entries: dict[int, Entry] = {}  # by client
        self._restore()

    def entry(self, client: int) -> Entry:
        """Return the entry of a client's device."""
        return self._entries[client]

    def free(self) -> list[int]:
        """Return the clients whose devices are connected, known and idle, in ascending order."""
        self._look()
        busy = {request.node for request in self._open.values()}
        return sorted(c for c, e in self._entries.items() if e.present and e.node not in busy)

    def wait(self, least: int) -> list[int]:
        """Wait for ``least`` free clients and for all awaited reports; return the free clients."""
        last_reminder, pauses = self._clock(), growing_pauses()
        while True:
            free = self.free()
            if len(free) >= least and not any(q.is_awaited for q in self._open.values()):
                return free
            if self._clock() - last_reminder > _REMINDER_INTERVAL:
                last_reminder = self._clock()
                _log.warning("waiting for devices: %d of %d are free, %d have not reported yet%s",
                             len(free), least, len(self._open), self._why())  # fmt: skip
            time.sleep(next(pauses))

    def _why(self) -> str:
        reasons = [f"node {node}: {why}" for node, (_, why) in self._rejected.items()]
        return f" ({'; '.join(reasons)})" if reasons else ""

    def note_answer(self, client: int) -> None:
        """Record an answer of the client's device."""
        entry, now = self._entries[client], time.time()
        entry = replace(entry, answered=entry.answered + 1, passed_over=0, last_problem="")
        self._set(replace(entry, last_seen=now))

    def note_failure(
        self, client: int, reason: str, silent: bool, passed_over: int | None = None
    ) -> None:
        """Record a missing or wrong answer.

        Args:
            client: client of the device.
            reason: reason of the failure.
            silent: send no tasks before the device has reported again.
            passed_over: number of rounds in a row that closed early without it; None: unchanged.
        """
        entry = self._entries[client]
        passed_over = entry.passed_over if passed_over is None else passed_over
        entry = replace(entry, missed=entry.missed + 1, passed_over=passed_over)
        self._set(replace(entry, last_problem=plain(reason)))
        if silent and all(request.node != entry.node for request in self._open.values()):
            self._ask(entry.node, is_awaited=False)

    def _look(self) -> None:
        """Update the connected devices, read their reports and send new requests."""
        present, now = set(self._channel.present()), self._clock()
        self._leave({entry.node for entry in self._entries.values()} - present)
        self._read_answers()
        for ticket, request in list(self._open.items()):
            if request.node in present and now <= request.expires:
                continue
            del self._open[ticket]
            self._channel.forget([ticket])
            self._note_silence(request)
            if request.node in present:
                self._reject(request.node, f"no report in {_REPORT_TIMEOUT:g} s")
        self._rejected = {n: why for n, why in self._rejected.items() if n in present}
        known_nodes = {e.node for e in self._entries.values() if e.present}
        requested_nodes = {request.node for request in self._open.values()}
        recent_nodes = {n for n, (since, _) in self._rejected.items() if now - since < _RETRY_AFTER}
        for node in sorted(present - known_nodes - requested_nodes - recent_nodes):
            self._ask(node, is_awaited=node not in {*self._rejected, *self._silent_nodes})

    def read_reports(self) -> None:
        """Read reports during a round.

        A report is available only until its request expires, which may be before the round ends.
        """
        if self._open and self._clock() >= self._read_at + _READ_INTERVAL:
            self._read_answers()

    def _read_answers(self) -> None:
        """Read the reports that have arrived."""
        self._read_at = self._clock()
        for reply in self._channel.replies(list(self._open)) if self._open else ():
            request = self._open.pop(reply.ticket, None)
            if request is None:
                continue
            if reply.is_gone:  # it may reconnect before the next poll
                self._rejected.pop(request.node, None)
                self._note_silence(request)
                self._leave({request.node})
            else:
                self._read(request.node, reply.payload, reply.problem)

    def _ask(self, node: int, is_awaited: bool) -> None:
        ticket = self._channel.send(node, "report", self._request, _REPORT_TIMEOUT, "report")
        if ticket is None:
            self._reject(node, "it cannot be reached")
        else:
            self._open[ticket] = _Request(node, self._clock() + _REPORT_TIMEOUT, is_awaited)

    def _read(self, node: int, payload: bytes, problem: str) -> None:
        """Enter a device, or reject it with the reason."""
        self._silent_nodes.discard(node)
        try:
            if problem:
                raise SubmodelError(problem)
            head = Message.from_bytes(payload, self._limits).head
            if "problem" in head:
                raise SubmodelError(plain(head["problem"]))
            report = Report.read(head)
            if why := self._accepts(report):
                raise SubmodelError(why)
            self._enter(node, report)
            self._rejected.pop(node, None)
        except SubmodelError as error:
            self._reject(node, plain(error))

    def _note_silence(self, request: _Request) -> None:
        """Do not wait for this node again, or one device could delay all rounds."""
        if request.is_awaited:
            self._silent_nodes.add(request.node)

    def _leave(self, nodes: Collection[int], client: int | None = None) -> None:
        """Mark the entries of nodes as absent, except that of ``client``."""
        for entry in list(self._entries.values()):
            if entry.present and entry.node in nodes and entry.client != client:
                self._set(replace(entry, present=False))

    def _reject(self, node: int, why: str) -> None:
        """Send a node no tasks until it has reported again."""
        self._rejected[node] = (self._clock(), why)
        _log.warning("node %d is rejected: %s", node, why)
        for client, entry in list(self._entries.items()):
            if entry.node == node and entry.present:
                self._set(replace(entry, present=False, last_problem=why))
                _log.warning("client %d is left out", client)

    def _enter(self, node: int, report: Report) -> None:
        client = self._number(node, report)
        old = self._entries.get(client)
        new = Entry(node, client, report) if old is None else replace(old, node=node, report=report)
        if old is None or old.node != node or not old.present:
            _log.info("client %d is %s, capacity %s, %d examples", client, report.name,
                      report.capacity, report.examples)  # fmt: skip
        self._leave({node}, client)  # it may have been another client before
        self._set(replace(new, present=True, last_seen=time.time()))

    def _number(self, node: int, report: Report) -> int:
        """Return the client of a device: its part of the data, its former number, or the next."""
        if report.part is not None:
            holder = self._entries.get(report.part)
            if holder is not None and holder.present and holder.node != node:
                raise SubmodelError(f"part {report.part} is already taken by {holder.report.name}")
            return report.part
        for client, entry in self._entries.items():
            if entry.node == node:
                return client
        for client, entry in self._entries.items():  # the same machine with a new node number
            if not entry.present and entry.report.part is None and entry.report.name == report.name:
                return client
        number = next(n for n in range(len(self._entries) + 1) if n not in self._entries)
        if number >= self._most:
            raise SubmodelError(f"the run is full: clients.count is {self._most}")
        return number

    def _set(self, entry: Entry) -> None:
        self._entries[entry.client] = entry
        if self._file is not None:
            text = json.dumps([asdict(e) for _, e in sorted(self._entries.items())], indent=2)
            write_text(self._file, text + "\n")

    def _restore(self) -> None:
        """Restore the numbers of a resumed run; all devices count as absent at first."""
        for entry in read_roster(self._file):
            self._entries[entry.client] = replace(entry, present=False)


_ENTRIES = TypeAdapter(list[Entry])


def read_roster(file: Path | None) -> list[Entry]:
    """Read the devices from the file of a run."""
    if file is None or not file.is_file():
        return []
    try:
        return [
            replace(entry, report=Report.read(entry.report.head()))
            for entry in read_typed(_ENTRIES, file, _MOST_BYTES)
        ]
    except (UnreadableError, WireError) as error:
        raise CheckpointError(
            f"{file}: damaged ({plain(error, 200)}); delete it to number devices anew"
        ) from None
