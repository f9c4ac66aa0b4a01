"""From passages of text to windows of tokens: encoded piece by piece, and counter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from submodel.data.registry import TOKENS
from submodel.data.text.plan import Passage
from submodel.data.text.sequences import cut_windows
from submodel.data.text.store import Sink
from submodel.data.text.tokens import (
    ByteLengths,
    NoTokenError,
    TokenArray,
    Tokeniser,
    TokensContext,
    read_tokens,
)
from submodel.errors import ConfigError, DataError


def make_tokeniser(options: Any, train: Sequence[Passage]) -> Tokeniser:
    """The tokeniser that the options name, made from the training part."""
    component = TOKENS.find(options.tokens)

    def pieces() -> Iterator[str]:
        return chain.from_iterable(passage.pieces() for passage in train)

    return component.make(options, TokensContext(pieces, component.argument))


def run_tokeniser(options: Any, train: Sequence[Passage], tokens: str) -> Tokeniser:
    """The tokeniser of a run, for a device's own text.

    Args:
        options: name it.
        train: the device's text.
        tokens: what the server's is.
    """
    if TOKENS.is_ours(options.tokens):
        return read_tokens(tokens)
    tokeniser = make_tokeniser(options, train)  # of somebody's code, which is here as well
    if tokeniser.to_json() != tokens:
        raise ConfigError(
            [f"--data: {options.tokens!r} makes another tokeniser here than on the server"]
        )
    return tokeniser


@dataclass(frozen=True)
class EncodedPart:
    """What was written of a part.

    Args:
        rows: the owner's number and the windows of every passage, in order.
        targets: how many tokens are targets.
        target_bytes: how many bytes of text they stand for.
    """

    rows: tuple[tuple[int, int], ...]
    targets: int
    target_bytes: int

    @property
    def total(self) -> int:
        """All windows."""
        return sum(rows for _, rows in self.rows)


class _TokenCounter:
    """Tokens on their way: all but the first of a passage are targets."""

    def __init__(self, tokeniser: Tokeniser, lengths: ByteLengths) -> None:
        self._tokeniser, self._lengths = tokeniser, lengths
        self.targets = self.target_bytes = 0

    def encode(self, passage: Passage) -> Iterator[TokenArray]:
        place, has_first = passage.start, False
        for piece in passage.pieces():
            tokens = self._encode_piece(piece, place, passage.stream.where)
            place += len(piece)
            targets = tokens if has_first else tokens[1:]
            has_first = has_first or len(tokens) > 0
            self.targets += len(targets)
            self.target_bytes += int(self._lengths[targets].sum())
            yield tokens

    def _encode_piece(self, piece: str, place: int, where: str) -> TokenArray:
        try:
            tokens = self._tokeniser.encode(piece)
        except NoTokenError as error:
            at = place + error.position
            raise DataError(
                f"{where}: {error.piece!r} at character {at:,}: {error.reason}"
            ) from None
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < len(self._lengths):
            wrong = int(tokens.max()) if tokens.min() >= 0 else int(tokens.min())
            raise DataError(
                f"{where}: the tokeniser gave token {wrong:,}; its vocabulary has "
                f"{len(self._lengths):,}, from 0"
            )
        return tokens


def encode_passages(
    passages: Sequence[Passage], tokeniser: Tokeniser, length: int, sink: Sink
) -> EncodedPart:
    """Write the windows of all passages into the sink."""
    counter = _TokenCounter(tokeniser, tokeniser.byte_lengths)
    rows = []
    for passage in passages:
        count = 0
        for windows in cut_windows(counter.encode(passage), length):
            sink.add(windows)
            count += len(windows.x)
        rows.append((passage.owner, count))
    return EncodedPart(tuple(rows), counter.targets, counter.target_bytes)
