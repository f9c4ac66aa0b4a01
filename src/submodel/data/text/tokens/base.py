"""What a tokeniser is: text as whole numbers and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from submodel.errors import DataError

TokenArray = NDArray[np.int32]
ByteLengths = NDArray[np.int64]


class NoTokenError(DataError):
    """A piece of text that a tokeniser has no token for.

    Args:
        piece: the characters.
        position: where they are in the text that was to be encoded.
        reason: why there is none.
    """

    def __init__(self, piece: str, position: int, reason: str) -> None:
        self.piece, self.position, self.reason = piece, position, reason
        super().__init__(f"{piece!r} at character {position:,}: {reason}")


class Tokeniser(Protocol):
    """Text as tokens: whole numbers from 0 to ``vocabulary`` - 1."""

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are."""
        ...

    @property
    def byte_lengths(self) -> ByteLengths:
        """How many bytes of text (as UTF-8) each token stands for."""
        ...

    def encode(self, text: str) -> TokenArray:
        """The tokens of a text; raises `NoTokenError` where there is none."""
        ...

    def decode(self, numbers: Sequence[int] | TokenArray) -> str:
        """The text of tokens."""
        ...

    def to_json(self) -> str:
        """The whole tokeniser."""
        ...


@dataclass(frozen=True)
class TokensContext:
    """What a tokeniser is made from, beside its own keys.

    Args:
        pieces: gives the text of the training part, in pieces, whenever it is called.
        argument: what follows the colon in the name, as in file:PATH.
    """

    pieces: Callable[[], Iterable[str]]
    argument: str = ""
