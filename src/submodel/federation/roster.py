"""The devices that a run knows: who they are, what they can hold, who is free.

A device that comes, also one that was here before, is asked who it is: it may have got other data
or a smaller part of its machine since. One that missed a deadline may still be at work. It is asked
too, and as devices answer their messages one after another, it is free again when that answer
comes: nothing piles up.
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
from submodel.federation.device import Report
from submodel.federation.post import Post, growing_pauses
from submodel.federation.wire import Limits, Parcel, WireError

_log = logging.getLogger(__name__)
_PATIENCE = 120.0  # seconds that a device has to say who it is
_AGAIN = 60.0  # seconds after which one that cannot take part is asked once more
_LISTEN = 1.0  # seconds between looking for answers while a round runs
_MOST_BYTES = 2**30  # of the file that keeps all devices
_REMIND = 30.0


@dataclass(frozen=True)
class Entry:
    """One device; the names are those of the file that keeps them."""

    node: int
    client: int
    report: Report
    answered: int = 0
    missed: int = 0
    passed_over: int = 0  # of these, the last ones in a row that a quorum closed without it
    last_seen: float = 0.0  # seconds since 1970
    present: bool = True
    last_problem: str = ""


@dataclass(frozen=True)
class _Question:
    node: int
    expires: float
    is_awaited: bool  # by the next round; nobody waits for one that is late already


class Roster:
    """Who takes part; ``accepts`` says why a report is not acceptable, or nothing."""

    def __init__(
        self,
        post: Post,
        briefing: Mapping[str, Any],
        accepts: Callable[[Report], str],
        most: int,
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._post, self._accepts, self._most = post, accepts, most
        self._question = Parcel(briefing, {}).to_bytes()
        classes = briefing.get("facts", {}).get("classes") or 0
        self._limits = Limits.of(0, lines=classes // 25)  # a report lists the labels of a device
        self._file, self._clock = file, clock
        self._open: dict[str, _Question] = {}
        self._turned_away: dict[int, tuple[float, str]] = {}  # node -> since when, why
        self._unheard: set[int] = set()  # nodes that were waited for and did not say who they are
        self._heard_at = -math.inf
        self._entries: dict[int, Entry] = {}  # by client
        self._restore()

    def entry(self, client: int) -> Entry:
        """What is known of a client's device."""
        return self._entries[client]

    def free(self) -> list[int]:
        """The clients whose devices are there, known, and wait for work; ascending."""
        self._look()
        busy = {question.node for question in self._open.values()}
        return sorted(c for c, e in self._entries.items() if e.present and e.node not in busy)

    def wait(self, least: int) -> list[int]:
        """`free`, when there are at least so many, and nobody who came is still to be heard."""
        last_reminder, pauses = self._clock(), growing_pauses()
        while True:
            free = self.free()
            if len(free) >= least and not any(q.is_awaited for q in self._open.values()):
                return free
            if self._clock() - last_reminder > _REMIND:
                last_reminder = self._clock()
                _log.warning("waiting for devices: %d of %d are free, %d are asked who they are%s",
                             len(free), least, len(self._open), self._why())  # fmt: skip
            time.sleep(next(pauses))

    def _why(self) -> str:
        reasons = [f"node {node}: {why}" for node, (_, why) in self._turned_away.items()]
        return f" ({'; '.join(reasons)})" if reasons else ""

    def note_answer(self, client: int) -> None:
        """The client's device answered."""
        entry, now = self._entries[client], time.time()
        entry = replace(entry, answered=entry.answered + 1, passed_over=0, last_problem="")
        self._set(replace(entry, last_seen=now))

    def note_failure(
        self, client: int, reason: str, silent: bool, passed_over: int | None = None
    ) -> None:
        """It did not, or badly; a ``silent`` one gets no work before it says that it is there.

        ``passed_over``: how many rounds in a row have now closed early without it; None: as before.
        """
        entry = self._entries[client]
        passed_over = entry.passed_over if passed_over is None else passed_over
        entry = replace(entry, missed=entry.missed + 1, passed_over=passed_over)
        self._set(replace(entry, last_problem=plain(reason)))
        if silent and all(question.node != entry.node for question in self._open.values()):
            self._ask(entry.node, is_awaited=False)

    def _look(self) -> None:
        """See who is there, ask who they are, read what they say."""
        present, now = set(self._post.present()), self._clock()
        self._leave({entry.node for entry in self._entries.values()} - present)
        self._hear()
        for ticket, question in list(self._open.items()):
            if question.node in present and now <= question.expires:
                continue
            del self._open[ticket]
            self._post.forget([ticket])
            self._note_unheard(question)
            if question.node in present:
                self._turn_away(question.node, f"it did not say in {_PATIENCE:g} s who it is")
        self._turned_away = {n: why for n, why in self._turned_away.items() if n in present}
        known_nodes = {e.node for e in self._entries.values() if e.present}
        asked_nodes = {question.node for question in self._open.values()}
        recent_nodes = {n for n, (since, _) in self._turned_away.items() if now - since < _AGAIN}
        for node in sorted(present - known_nodes - asked_nodes - recent_nodes):
            self._ask(node, is_awaited=node not in {*self._turned_away, *self._unheard})

    def listen(self) -> None:
        """Hear, while a round runs, who has said who it is.

        An answer is there as long as its question is worth something, and a round may be longer.
        """
        if self._open and self._clock() >= self._heard_at + _LISTEN:
            self._hear()

    def _hear(self) -> None:
        """Read the answers that have come."""
        self._heard_at = self._clock()
        for reply in self._post.replies(list(self._open)) if self._open else ():
            question = self._open.pop(reply.ticket, None)
            if question is None:
                continue
            if reply.is_gone:  # it may be back before the next look at who is there
                self._turned_away.pop(question.node, None)
                self._note_unheard(question)
                self._leave({question.node})
            else:
                self._read(question.node, reply.payload, reply.problem)

    def _ask(self, node: int, is_awaited: bool) -> None:
        ticket = self._post.send(node, "report", self._question, _PATIENCE, "report")
        if ticket is None:
            self._turn_away(node, "it cannot be reached")
        else:
            self._open[ticket] = _Question(node, self._clock() + _PATIENCE, is_awaited)

    def _read(self, node: int, payload: bytes, problem: str) -> None:
        """Enter a device, or turn it away and say why."""
        self._unheard.discard(node)
        try:
            if problem:
                raise SubmodelError(problem)
            head = Parcel.from_bytes(payload, self._limits).head
            if "problem" in head:
                raise SubmodelError(plain(head["problem"]))
            report = Report.read(head)
            if why := self._accepts(report):
                raise SubmodelError(why)
            self._enter(node, report)
            self._turned_away.pop(node, None)
        except SubmodelError as error:
            self._turn_away(node, plain(error))

    def _note_unheard(self, question: _Question) -> None:
        """A round waited in vain: the next does not, or one device could hold up all rounds."""
        if question.is_awaited:
            self._unheard.add(question.node)

    def _leave(self, nodes: Collection[int], client: int | None = None) -> None:
        """Nodes have left, or are ``client`` now; one that returns is asked who it is."""
        for entry in list(self._entries.values()):
            if entry.present and entry.node in nodes and entry.client != client:
                self._set(replace(entry, present=False))

    def _turn_away(self, node: int, why: str) -> None:
        """No work for a node, until it is asked again and answers."""
        self._turned_away[node] = (self._clock(), why)
        _log.warning("node %d takes no part: %s", node, why)
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
        self._leave({node}, client)  # if it played another part before, it does so no more
        self._set(replace(new, present=True, last_seen=time.time()))

    def _number(self, node: int, report: Report) -> int:
        """The client that a device is: the part that it plays, the one it was, or the next."""
        if report.part is not None:
            holder = self._entries.get(report.part)
            if holder is not None and holder.present and holder.node != node:
                raise SubmodelError(f"part {report.part} is {holder.report.name}'s already")
            return report.part
        for client, entry in self._entries.items():
            if entry.node == node:
                return client
        for client, entry in self._entries.items():  # the same machine under another number
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
        """A resumed run keeps its numbers; who is there, it finds out anew."""
        for entry in read_roster(self._file):
            self._entries[entry.client] = replace(entry, present=False)


_ENTRIES = TypeAdapter(list[Entry])


def read_roster(file: Path | None) -> list[Entry]:
    """The devices that a run's folder tells of."""
    if file is None or not file.is_file():
        return []
    try:
        return [
            replace(entry, report=Report.read(entry.report.head()))
            for entry in read_typed(_ENTRIES, file, _MOST_BYTES)
        ]
    except (UnreadableError, WireError) as error:
        raise CheckpointError(
            f"{file}: damaged ({plain(error, 200)}); delete it, and devices are numbered anew"
        ) from None
