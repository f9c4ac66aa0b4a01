"""Interface of message transport between a server and its devices."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

MessageKind = Literal["report", "train", "moments"]
"""Request to a device: a report on itself, an update, or statistics of the norms."""


@dataclass(frozen=True)
class Reply:
    """Answer to one message: its bytes, or the reason why there are none."""

    ticket: str
    payload: bytes
    problem: str = ""
    is_gone: bool = False  # the problem: the node has left


def growing_pauses(first: float = 0.02, longest: float = 0.5) -> Iterator[float]:
    """Yield seconds between polls: short at first, then about a sixth of the time waited.

    Early answers are read early, and a long round does not keep the server busy with polling.

    >>> pauses = growing_pauses()
    >>> [round(next(pauses), 3) for _ in range(3)]
    [0.02, 0.024, 0.029]
    """
    pause = first
    while True:
        yield pause
        pause = min(1.2 * pause, longest)


class Channel(Protocol):
    """Transport of messages to nodes and of their answers."""

    def present(self) -> Collection[int]:
        """Return the nodes that are connected now, as far as is known."""
        ...

    def send(
        self, node: int, kind: MessageKind, payload: bytes, seconds: float, topic: str
    ) -> str | None:
        """Send a message that expires after so many seconds.

        A node answers its messages one after another.

        Returns:
            A ticket for the answer; None if the message cannot be sent.
        """
        ...

    def replies(self, tickets: Collection[str]) -> Sequence[Reply]:
        """Return the complete answers so far, each once; no answer waits for another."""
        ...

    def forget(self, tickets: Collection[str]) -> None:
        """Drop the received parts of answers that are no longer needed."""
        ...
