"""App of a device; Flower starts it for every message in a new process."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp

from submodel.core.amounts import parse_amount, parse_capacity
from submodel.core.errors import SubmodelError, plain
from submodel.federation.channel import MessageKind
from submodel.federation.device import Device, DeviceOptions
from submodel.federation.facts import digest
from submodel.federation.flower.messages import ARRAY, RECORD, take_payload, to_records
from submodel.federation.own_data import OwnData
from submodel.federation.wire import Message, ModelBase, WireError

app = ClientApp()
# records of Flower that processes of one run share
_STATE, _BASE = "submodel", "submodel-base"
_log = logging.getLogger(__name__)


def options_of(node_config: Mapping[str, object]) -> DeviceOptions:
    """Read the options of a device from a node's configuration, in the keys of `submodel join`.

    A node of a Flower simulation is the client of its ``partition-id``.

    >>> options_of({"partition-id": 3, "num-partitions": 10}).data.part
    3
    >>> options_of({"data": "/data", "capacity": "1/4"}).capacity
    0.25
    """
    settings = {key: str(value) for key, value in node_config.items()}
    text, part = settings.get("data"), settings.get("part", settings.get("partition-id"))
    own_keys = tuple(settings.get("set", "").splitlines())
    data = OwnData.of(text, own_keys) if text else OwnData(part=None if part is None else int(part))
    return DeviceOptions(
        data,
        parse_capacity(settings["capacity"]) if "capacity" in settings else None,
        parse_amount(settings["memory"]) if "memory" in settings else None,
        settings.get("name", ""),
    )


def answer(kind: MessageKind, message: FlowerMessage, context: Context) -> FlowerMessage:
    """Answer a message and record it in the device's journal, if there is one."""
    start = time.monotonic()
    payload = take_payload(message)
    bytes_down = len(payload)
    try:
        request = Message.from_bytes(payload)
        del payload  # frees scarce memory
        # a request for a report comes with every connection: trace the model anew
        earlier_axes = None if kind == "report" else _earlier_axes(context, request.head)
        earlier_base = _earlier_base(context)
        options = options_of(context.node_config)
        device = Device(request.head, options, earlier_axes, earlier_base)
        reply = device.answer(kind, request)
        if device.base is not None and device.base is not earlier_base:
            context.state[_BASE] = base_record(device.base)
        if kind == "report" and "problem" not in reply.head:
            record = ConfigRecord({"axes": device.axes_json, "of": digest(request.head)})
            context.state[_STATE] = record
    except SubmodelError as error:
        what = "the message: " if isinstance(error, WireError) else ""
        reply = Message({"problem": plain(f"{what}{error}")}, {})
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
    return FlowerMessage(to_records(reply_bytes), reply_to=message)


def _earlier_axes(context: Context, head: Mapping[str, Any]) -> str | None:
    """Return the axes found by an earlier process for the same run, else None."""
    record = context.state.config_records.get(_STATE)
    return str(record["axes"]) if record and record.get("of") == digest(head) else None


def base_record(base: ModelBase) -> ArrayRecord:
    """Return a base as a record that Flower keeps on the device for the run."""
    payload = Message({"base": base.digest}, base.tensors).to_bytes()
    return to_records(payload).array_records[RECORD]


def _earlier_base(context: Context) -> ModelBase | None:
    """Return the base kept by an earlier process, else None."""
    record = context.state.array_records.get(_BASE)
    if record is None:
        return None
    request = Message.from_bytes(record[ARRAY].data)
    return ModelBase(str(request.head["base"]), request.tensors)


_JOURNAL_KEYS = ("problem", "capacity", "examples", "labels", "loss", "processed", "peak_memory")


@app.query()
def answer_report(message: FlowerMessage, context: Context) -> FlowerMessage:
    """Answer a request for a report."""
    return answer("report", message, context)


@app.train()
def answer_train(message: FlowerMessage, context: Context) -> FlowerMessage:
    """Answer a task with an update."""
    return answer("train", message, context)


@app.evaluate()
def answer_moments(message: FlowerMessage, context: Context) -> FlowerMessage:
    """Answer a request for statistics of the static norms."""
    return answer("moments", message, context)
