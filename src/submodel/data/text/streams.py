"""Streams of text: one for every owner, read in pieces whenever they are wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

PIECE = 1 << 16
"""Characters that are read and encoded at a time, about; tokenisers slow down on longer texts."""


@dataclass(frozen=True)
class TextStream:
    """The text of one owner.

    Args:
        owner: the name of the owner; "" where text is nobody's.
        where: what errors call it, as the file.
        pieces: gives the text from its beginning, in pieces, whenever it is called.
        characters: how many it has.
        size: how many bytes they are, as UTF-8.
    """

    owner: str
    where: str
    pieces: Callable[[], Iterator[str]]
    characters: int
    size: int

    def part(self, start: int, stop: int) -> Iterator[str]:
        """The characters from ``start`` up to ``stop``, in pieces."""
        place = 0
        for piece in self.pieces():
            text = piece[max(start - place, 0) : max(stop - place, 0)]
            if text:
                yield text
            place += len(piece)
            if place >= stop:
                return


def measured_stream(owner: str, where: str, pieces: Callable[[], Iterator[str]]) -> TextStream:
    """A stream, read once to know how long it is.

    >>> measured_stream("a", "here", lambda: iter(["né", "e"])).size
    4
    """
    characters = size = 0
    for piece in pieces():
        characters += len(piece)
        size += len(piece.encode("utf-8"))
    return TextStream(owner, where, pieces, characters, size)


def text_stream(owner: str, where: str, text: str) -> TextStream:
    """A stream of a text that is in memory.

    >>> stream = text_stream("a", "here", "some text")
    >>> stream.characters, "".join(stream.part(5, 9))
    (9, 'text')
    """
    return measured_stream(owner, where, lambda: split_pieces([text]))


def split_pieces(texts: Iterable[str]) -> Iterator[str]:
    r"""The same text in pieces of at most `PIECE` characters, cut at line ends where it can be.

    >>> [len(piece) for piece in split_pieces(["a" * 10 + "\n", "b" * PIECE])]
    [11, 65536]
    """
    rest = ""
    for text in texts:
        rest += text
        while len(rest) > PIECE:
            end = rest.rfind("\n", 0, PIECE) + 1 or PIECE
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest
