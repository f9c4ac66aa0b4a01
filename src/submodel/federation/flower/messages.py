"""Our messages inside Flower's: one array of bytes per message, and one kind per message type."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict

from submodel.federation.post import MessageKind

TYPES: dict[MessageKind, str] = {
    "report": MessageType.QUERY,
    "train": MessageType.TRAIN,
    "moments": MessageType.EVALUATE,
}
RECORD, ARRAY, _FORMAT = "submodel", "payload", "safetensors"


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
