"""Messages inside those of Flower: one array of bytes each, and one message type per kind."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict

from submodel.federation.channel import MessageKind

TYPES: dict[MessageKind, str] = {
    "report": MessageType.QUERY,
    "train": MessageType.TRAIN,
    "moments": MessageType.EVALUATE,
}
RECORD, ARRAY, _FORMAT = "submodel", "payload", "safetensors"


def to_records(payload: bytes) -> RecordDict:
    """Wrap a payload for Flower."""
    array = Array("uint8", (len(payload),), _FORMAT, payload)
    return RecordDict({RECORD: ArrayRecord({ARRAY: array})})


def payload_of(message: Message) -> bytes:
    """Return the payload of a message; empty if it has none.

    The bytes are returned as they are: Flower would read them with numpy, which fails on invalid
    input.
    """
    try:
        return message.content.array_records[RECORD][ARRAY].data
    except (KeyError, ValueError):
        return b""


def take_payload(message: Message) -> bytes:
    """Return the payload and remove it from the message, to free its memory."""
    payload = payload_of(message)
    message.content.array_records.pop(RECORD, None)
    return payload
