"""The app of a device: Flower starts it for every message, in a process of its own."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from submodel.core.amounts import parse_amount, parse_capacity
from submodel.core.errors import SubmodelError, plain
from submodel.federation.device import Device, Means
from submodel.federation.facts import digest
from submodel.federation.flower.messages import ARRAY, RECORD, take_payload, to_records
from submodel.federation.own_data import OwnData
from submodel.federation.post import MessageKind
from submodel.federation.wire import ModelBase, Parcel, WireError

app = ClientApp()
# where Flower keeps what the processes of one run tell each other
_STATE, _BASE = "submodel", "submodel-base"
_log = logging.getLogger(__name__)


def means_of(node_config: Mapping[str, object]) -> Means:
    """What the owner of a node gives: its configuration, in the keys of `submodel join`.

    A node of a Flower simulation is the client of its ``partition-id``.

    >>> means_of({"partition-id": 3, "num-partitions": 10}).data.part
    3
    >>> means_of({"data": "/data", "capacity": "1/4"}).capacity
    0.25
    """
    settings = {key: str(value) for key, value in node_config.items()}
    text, part = settings.get("data"), settings.get("part", settings.get("partition-id"))
    own_keys = tuple(settings.get("set", "").splitlines())
    data = OwnData.of(text, own_keys) if text else OwnData(part=None if part is None else int(part))
    return Means(
        data,
        parse_capacity(settings["capacity"]) if "capacity" in settings else None,
        parse_amount(settings["memory"]) if "memory" in settings else None,
        settings.get("name", ""),
    )


def answer(kind: MessageKind, message: Message, context: Context) -> Message:
    """The answer to a message, noted in the device's journal if it keeps one."""
    start = time.monotonic()
    payload = take_payload(message)
    bytes_down = len(payload)
    try:
        parcel = Parcel.from_bytes(payload)
        del payload  # memory is what a device has least of
        # a device is asked who it is whenever it comes: then it looks at the model anew
        earlier_axes = None if kind == "report" else _earlier_axes(context, parcel.head)
        earlier_base = _earlier_base(context)
        means = means_of(context.node_config)
        device = Device(parcel.head, means, earlier_axes, earlier_base)
        reply = device.answer(kind, parcel)
        if device.base is not None and device.base is not earlier_base:
            context.state[_BASE] = base_record(device.base)
        if kind == "report" and "problem" not in reply.head:
            record = ConfigRecord({"axes": device.axes_json, "of": digest(parcel.head)})
            context.state[_STATE] = record
    except SubmodelError as error:
        what = "the message: " if isinstance(error, WireError) else ""
        reply = Parcel({"problem": plain(f"{what}{error}")}, {})
    reply_bytes = reply.to_bytes()
    if journal := context.node_config.get("journal"):
        line = {
            "kind": kind,
            "topic": message.metadata.group_id,
            "bytes_down": bytes_down,
            "bytes_up": len(reply_bytes),
            "seconds": round(time.monotonic() - start, 3),
            **{k: reply.head[k] for k in _JOURNAL_KEYS if k in reply.head},
        }
        with Path(str(journal)).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    return Message(to_records(reply_bytes), reply_to=message)


def _earlier_axes(context: Context, head: Mapping[str, Any]) -> str | None:
    """The axes that a process before this one found, if it was briefed alike."""
    record = context.state.config_records.get(_STATE)
    return str(record["axes"]) if record and record.get("of") == digest(head) else None


def base_record(base: ModelBase) -> ArrayRecord:
    """A base as Flower keeps it between messages: on the device, for the run."""
    payload = Parcel({"base": base.digest}, base.tensors).to_bytes()
    return to_records(payload).array_records[RECORD]


def _earlier_base(context: Context) -> ModelBase | None:
    """The base that a process before this one kept."""
    record = context.state.array_records.get(_BASE)
    if record is None:
        return None
    parcel = Parcel.from_bytes(record[ARRAY].data)
    return ModelBase(str(parcel.head["base"]), parcel.tensors)


_JOURNAL_KEYS = ("problem", "capacity", "examples", "labels", "loss", "processed", "peak_memory")


@app.query()
def answer_report(message: Message, context: Context) -> Message:
    """Who the device is and what it can hold."""
    return answer("report", message, context)


@app.train()
def answer_train(message: Message, context: Context) -> Message:
    """An update for a task."""
    return answer("train", message, context)


@app.evaluate()
def answer_moments(message: Message, context: Context) -> Message:
    """What the static norms of a sub-model see of the device's examples."""
    return answer("moments", message, context)
