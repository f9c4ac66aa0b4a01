"""Our messages inside Flower's: one array of bytes per message, and one kind per message type."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from submodel.errors import plain
from submodel.federation.post import MessageKind, Reply

TYPES: dict[MessageKind, str] = {
    "report": MessageType.QUERY,
    "train": MessageType.TRAIN,
    "moments": MessageType.EVALUATE,
}
RECORD, ARRAY, _FORMAT = "submodel", "payload", "safetensors"
_LATER = 5.0  # seconds by which Flower's patience outlasts ours: the deadline is told by us
_REASONS = {
    1: "its app could not be loaded",
    2: "its app failed",
    3: "the message was lost, or not answered in time",
    4: "its answer was lost",
    5: "the device is gone",
    7: "it does not trust the app",
    8: "its app was killed",
}


def to_records(payload: bytes) -> RecordDict:
    """A payload as Flower carries it."""
    array = Array("uint8", (len(payload),), _FORMAT, payload)
    return RecordDict({RECORD: ArrayRecord({ARRAY: array})})


def payload_of(message: Message) -> bytes:
    """The payload of a message; empty if it is not one of ours.

    The bytes are taken as they are: Flower would have numpy read them, which strangers can fail.
    """
    try:
        return message.content.array_records[RECORD][ARRAY].data
    except (KeyError, ValueError):
        return b""


def take_payload(message: Message) -> bytes:
    """`payload_of`, which the message does not keep: it would hold the memory of the values."""
    payload = payload_of(message)
    message.content.array_records.pop(RECORD, None)
    return payload


def wait_no_longer(seconds: float) -> None:
    """Let Flower wait so long for the objects of an answer that was announced, not two hours.

    A device that dies between the two, or announces what it never sends, would hold up the rest.
    """
    from flwr.supercore.inflatable.inflatable_utils import pull_objects
    from flwr.superlink.grid import http_grid  # on the server alone: devices import this file too

    http_grid.pull_objects = partial(pull_objects, max_time=seconds)  # type: ignore[attr-defined]


class GridPost:
    """Carries our messages over a Flower grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def present(self) -> Collection[int]:
        """The nodes that Flower lists; one that died is listed for up to a minute."""
        return set(self._grid.get_node_ids())

    def send(
        self, node: int, kind: MessageKind, payload: bytes, seconds: float, topic: str
    ) -> str | None:
        """Push one message; soon after its time Flower neither delivers nor answers it."""
        lives = seconds + _LATER
        message = Message(to_records(payload), node, TYPES[kind], ttl=lives, group_id=topic)
        tickets = list(self._grid.push_messages([message]))
        return tickets[0] or None if tickets else None

    def replies(self, tickets: Collection[str]) -> list[Reply]:
        """Answers by the message that they reply to: errors come from nodes of other numbers."""
        answers = []
        for message in self._grid.pull_messages(list(tickets)):
            ticket = message.metadata.reply_to_message_id
            if ticket not in tickets:
                continue
            if message.has_error():
                reason = _REASONS.get(message.error.code, f"error {message.error.code}")
                lines = (message.error.reason or "").strip().splitlines()
                why = f"{reason} ({plain(lines[-1])})" if lines else reason
                answers.append(Reply(ticket, b"", why))
            else:
                answers.append(Reply(ticket, payload_of(message)))
        return answers
