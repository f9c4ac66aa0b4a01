"""How messages travel between the server and its devices, whoever carries them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
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
    is_gone: bool = False  # the problem is that the node has left


def growing_pauses(first: float = 0.02, longest: float = 0.5) -> Iterator[float]:
    """Seconds between looks for answers: short at first, then about a sixth of the time waited.

    So what comes soon is seen soon, and a long round does not keep the server busy with asking.

    >>> pauses = growing_pauses()
    >>> [round(next(pauses), 3) for _ in range(3)]
    [0.02, 0.024, 0.029]
    """
    pause = first
    while True:
        yield pause
        pause = min(1.2 * pause, longest)


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
        """The answers that have come whole so far, each once; none waits for another."""
        ...

    def forget(self, tickets: Collection[str]) -> None:
        """Drop what has come of answers that are of no use any more."""
        ...
