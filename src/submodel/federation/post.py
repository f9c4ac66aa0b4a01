"""How messages travel between the server and its devices, whoever carries them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

MessageKind = Literal["report", "train", "moments"]
"""What a device is asked for: who it is, an update, what the norms of a sub-model see."""


@dataclass(frozen=True)
class Reply:
    """The answer to one message: its bytes, or why there are none."""

    ticket: str
    payload: bytes
    problem: str = ""


class Post(Protocol):
    """Carries messages to nodes and brings their answers."""

    def present(self) -> Collection[int]:
        """The nodes that are there now, as far as is known."""
        ...

    def send(
        self, node: int, kind: MessageKind, payload: bytes, seconds: float, topic: str
    ) -> str | None:
        """Send a message that is worth so many seconds; a ticket for its answer, None: impossible.

        A node answers its messages one after another.
        """
        ...

    def replies(self, tickets: Collection[str]) -> Sequence[Reply]:
        """The answers that have come so far, each once."""
        ...
