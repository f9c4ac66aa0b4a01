"""Devices in this process that answer like real ones."""

from __future__ import annotations

from collections.abc import Callable, Collection

from submodel.config import Config, DevicesSection
from submodel.federation.channel import MessageKind, Reply
from submodel.federation.device import Device, DeviceOptions
from submodel.federation.wire import Message, ModelBase


def alone(config: Config) -> Config:
    """Return the configuration of a run over devices for one process, task after task."""
    engine = config.engine.with_values(name="local", batching="never")
    return config.model_copy(update={"engine": engine, "devices": DevicesSection()})


class LocalChannel:
    """A channel whose nodes are in this process; each answers on request for the answer.

    ``spoil`` may replace a node's answer: None is silence.
    """

    def __init__(self, options: dict[int, DeviceOptions]) -> None:
        self.options = options
        self.spoil: dict[int, Callable[[MessageKind, bytes], bytes | None]] = {}
        self.mute: set[int] = set()  # send nothing, not even their identity
        self.bases: dict[int, ModelBase] = {}  # kept by nodes from message to message
        self.sent: list[tuple[int, MessageKind, bytes]] = []
        self._waiting: dict[str, tuple[int, MessageKind, bytes]] = {}

    def present(self) -> Collection[int]:
        return set(self.options)

    def send(
        self,
        node: int,
        kind: MessageKind,
        payload: bytes,
        seconds: float,  # noqa: ARG002
        topic: str,  # noqa: ARG002
    ) -> str | None:
        if node not in self.options:
            return None
        self.sent.append((node, kind, payload))
        ticket = str(len(self.sent))
        self._waiting[ticket] = (node, kind, payload)
        return ticket

    def replies(self, tickets: Collection[str]) -> list[Reply]:
        found = []
        for ticket in reversed(list(tickets)):  # in no particular order
            if ticket not in self._waiting or self._waiting[ticket][0] not in self.options:
                continue
            if self._waiting[ticket][0] in self.mute:
                continue
            node, kind, payload = self._waiting[ticket]
            answer: bytes | None
            if node in self.spoil and kind != "report":
                answer = self.spoil[node](kind, payload)
            else:
                answer = self.honest(node, kind, payload)
            if answer is not None:
                del self._waiting[ticket]
                found.append(Reply(ticket, answer))
        return found

    def forget(self, tickets: Collection[str]) -> None:
        """Discard a node's late answer."""

    def honest(self, node: int, kind: MessageKind, payload: bytes) -> bytes:
        message = Message.from_bytes(payload)
        device = Device(message.head, self.options[node], base=self.bases.get(node))
        answer = device.answer(kind, message).to_bytes()
        if device.base is not None:
            self.bases[node] = device.base
        return answer
