"""What of which text is for training and what for testing, and who is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from submodel.data.text.options import TextOptions
from submodel.data.text.sequences import count_windows
from submodel.data.text.store import BYTES_PER_PLACE
from submodel.data.text.streams import TextStream
from submodel.errors import ConfigError, DataError

Streams = Sequence[TextStream]


@dataclass(frozen=True)
class TextPlan:
    """A text that is to be read.

    Args:
        files: all that it is made of; others are read anew.
        read: the streams of the text, and those for testing where these are others.
        keys: of the options, all that shape the result but for the tokeniser's own.
        where: what errors call it.
        identity: what else tells it from others, where files do not.
    """

    files: tuple[Path, ...]
    read: Callable[[], tuple[Streams, Streams | None]]
    keys: tuple[str, ...]
    where: str
    identity: str = ""


@dataclass(frozen=True)
class Passage:
    """A part of a stream, of an owner by number; -1 is nobody."""

    owner: int
    stream: TextStream
    start: int
    stop: int

    def pieces(self) -> Iterator[str]:
        """Its text."""
        return self.stream.part(self.start, self.stop)

    @property
    def most_bytes(self) -> int:
        """No more than this as UTF-8, which has four for a character at most."""
        return min(4 * (self.stop - self.start), self.stream.size)


@dataclass(frozen=True)
class Passages:
    """All of the text that is used.

    Args:
        names: of the owners; empty where the text is nobody's.
        train: what is learned from.
        test: what is not.
        left_out: how many owners had too little.
    """

    names: tuple[str, ...]
    train: tuple[Passage, ...]
    test: tuple[Passage, ...]
    left_out: int

    def windows_size(self, length: int) -> int:
        """Bytes in memory of inputs and targets, at most: a token has a byte or more."""
        rows = sum(count_windows(p.most_bytes, length) for p in (*self.train, *self.test))
        return rows * length * BYTES_PER_PLACE


def divide_text(
    streams: Streams, test_streams: Streams | None, options: TextOptions, where: str
) -> Passages:
    """The end of every stream for testing, or other streams; those too short left out.

    Args:
        streams: the text.
        test_streams: the text for testing; None: the last part of ``streams``.
        options: says how much, and what is too short.
        where: what errors call it.
    """
    if not any(stream.characters for stream in streams):
        raise DataError(f"{where}: there is no text in it")
    longest = max(streams, key=lambda stream: stream.size)
    if options.length > longest.size:
        raise ConfigError(
            [f"data.length: {options.length:,} tokens, but {longest.where} has {longest.size:,} "
             "bytes, and no other text is longer"]
        )  # fmt: skip
    enough = [s for s in streams if s.characters >= max(options.least, 1)]
    if not enough:
        most = max(stream.characters for stream in streams)
        raise ConfigError(
            [f"data.least: {options.least:,}, but no text has more than {most:,} characters"]
        )
    names = tuple(stream.owner for stream in enough if stream.owner)
    numbers = {name: number for number, name in enumerate(names)}
    train, test = [], []
    for stream in enough:
        owner, end = numbers.get(stream.owner, -1), stream.characters
        if test_streams is None:
            end -= round(end * options.test_share)
            test.append(Passage(owner, stream, end, stream.characters))
        train.append(Passage(owner, stream, 0, end))
    for stream in test_streams or ():
        owner = numbers.get(stream.owner, -1)
        test.append(Passage(owner, stream, 0, stream.characters))
    return Passages(names, tuple(train), tuple(test), len(streams) - len(enough))
