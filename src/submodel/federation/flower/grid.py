"""Message transport over a Flower grid, on the side of the server.

A device announces an answer, then sends its parts, and Flower's grid waits for the parts of one
answer after another. So a device that dies in between, or never sends an announced answer, would
block the other answers until the end of the round. Here every poll fetches the parts that have
arrived, and an answer is returned once it is complete.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.superlink.grid import HttpGrid

from submodel.core.errors import plain
from submodel.federation.channel import MessageKind, Reply
from submodel.federation.flower.messages import TYPES, payload_of, to_records

_log = logging.getLogger(__name__)
_GRACE = 5.0  # seconds that a message outlives our deadline in Flower: our error comes first
_GONE = int(ErrorCode.NODE_UNAVAILABLE)
_REASONS = {
    1: "its app could not be loaded",
    2: "its app failed",
    3: "the message was lost, or not answered in time",
    4: "its answer was lost",
    _GONE: "the device is gone",
    7: "it does not trust the app",
    8: "its app was killed",
}


@dataclass
class _Announced:
    """Answer that a device has begun to send."""

    message_id: str
    parts: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)  # of the received parts
    is_lost: bool = False  # Flower has dropped a part


class GridChannel:
    """`Channel` over a Flower grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._announced: dict[str, _Announced] = {}  # by ticket

    def present(self) -> Collection[int]:
        """Return Flower's nodes; a dead one is listed until two heartbeats are missing."""
        return set(self._grid.get_node_ids())

    def send(
        self, node: int, kind: MessageKind, payload: bytes, seconds: float, topic: str
    ) -> str | None:
        """Push one message; Flower drops it soon after its time."""
        lives = seconds + _GRACE
        message = Message(to_records(payload), node, TYPES[kind], ttl=lives, group_id=topic)
        tickets = list(self._grid.push_messages([message]))
        return tickets[0] or None if tickets else None

    def replies(self, tickets: Collection[str]) -> list[Reply]:
        """Return answers by ticket: errors come from nodes of other numbers."""
        if isinstance(self._grid, HttpGrid):
            return list(self._whole_answers(self._grid, tickets))
        messages = self._grid.pull_messages(list(tickets))  # a simulation delivers whole answers
        answers = ((message.metadata.reply_to_message_id, message) for message in messages)
        return [_reply(ticket, message) for ticket, message in answers if ticket in tickets]

    def forget(self, tickets: Collection[str]) -> None:
        """Drop the received parts of answers."""
        for ticket in tickets:
            self._announced.pop(ticket, None)

    def _whole_answers(self, grid: HttpGrid, tickets: Collection[str]) -> Iterator[Reply]:
        if silent := [ticket for ticket in tickets if ticket not in self._announced]:
            request = PullAppMessagesRequest(message_ids=silent)
            found = grid._runtime_client.PullMessages(request)
            for proto, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                parts = [part.object_id for part in iterate_object_tree(tree)]
                answer = _Announced(proto.metadata.message_id, parts)
                self._announced[proto.metadata.reply_to_message_id] = answer
        for ticket in tickets:
            if ticket not in self._announced:
                continue
            answer = self._announced[ticket]
            is_whole = _fetch(grid, answer)
            if is_whole or answer.is_lost:
                del self._announced[ticket]
                lost = Reply(ticket, b"", _REASONS[4])
                yield _assemble(ticket, answer) if is_whole else lost


def _fetch(grid: HttpGrid, answer: _Announced) -> bool:
    """Fetch the new parts of an answer; return whether it is complete."""
    client, run_id = grid._runtime_client, grid.run.run_id
    fetch_part = make_pull_object_fn_protobuf(client.PullObject, grid.node, run_id)

    def fetch(part: str) -> bytes:
        if part not in answer.contents:
            try:
                answer.contents[part] = fetch_part(part)
            except ObjectPullError:
                answer.is_lost = True
                raise
        return answer.contents[part]

    try:
        pull_objects(answer.parts, fetch, max_tries_per_object=1)
    except ObjectPullError:
        return False
    client.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(
            node=grid.node, run_id=run_id, message_object_id=answer.message_id
        )
    )
    return True


def _assemble(ticket: str, answer: _Announced) -> Reply:
    """Assemble an answer from its parts, which are untrusted."""
    try:
        message = inflate_object_from_contents(answer.message_id, answer.contents)
        if not isinstance(message, Message):
            raise TypeError(f"it is a {type(message).__name__}")
        return _reply(ticket, message)
    except Exception as error:  # Flower may raise anything for invalid parts
        _log.warning("an answer is not a Flower message: %s", plain(error))
        return Reply(ticket, b"", "its answer is not a Flower message")


def _reply(ticket: str, message: Message) -> Reply:
    if not message.has_error():
        return Reply(ticket, payload_of(message))
    code, lines = message.error.code, (message.error.reason or "").strip().splitlines()
    reason = _REASONS.get(code, f"error {code}")
    why = f"{reason} ({plain(lines[-1])})" if lines else reason
    return Reply(ticket, b"", why, is_gone=code == _GONE)
