"""Bytes as tokens: the 256 values of UTF-8."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from submodel.data.text.tokens.base import ByteLengths, TokenArray, TokensContext
from submodel.options import Section

_VALUES = 256


@dataclass(frozen=True)
class ByteTokens:
    """Every byte of the text as UTF-8 is a token: any text has tokens, and nothing is learned.

    >>> ByteTokens().encode("né").tolist()
    [110, 195, 169]
    >>> ByteTokens().decode([110, 195, 169])
    'né'
    """

    @classmethod
    def configured(cls, options: Section, context: TokensContext) -> Self:  # noqa: ARG003
        """Whatever the text."""
        return cls()

    @property
    def vocabulary(self) -> int:
        """The values of a byte."""
        return _VALUES

    @property
    def byte_lengths(self) -> ByteLengths:
        """One each."""
        return np.ones(_VALUES, dtype=np.int64)

    def encode(self, text: str) -> TokenArray:
        """The bytes of the text."""
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int32)

    def decode(self, numbers: Sequence[int] | TokenArray) -> str:
        """The text; bytes that are no UTF-8, as where a character was cut, become U+FFFD."""
        return np.asarray(numbers, dtype=np.uint8).tobytes().decode("utf-8", "replace")

    def to_json(self) -> str:
        """Its name, which says all."""
        return json.dumps({"tokens": "bytes"})

    @classmethod
    def from_json(cls, text: str) -> Self:  # noqa: ARG003
        """There is only one."""
        return cls()
