"""Characters as tokens: those of the training part."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, TypeAdapter

from submodel.data.text.tokens.base import ByteLengths, NoTokenError, TokenArray, TokensContext
from submodel.errors import DataError
from submodel.files import parse_typed
from submodel.options import Section

_CODE_POINTS = 0x110000
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class CharacterTokens:
    """Every character of the alphabet is a token, numbered in the order of Unicode.

    Args:
        alphabet: the characters, ascending.
        unknown: whether there is one more token, the last, for all other characters; it counts
            as one byte.

    >>> CharacterTokens("abc").encode("cab").tolist()
    [2, 0, 1]
    >>> CharacterTokens("ab", unknown=True).encode("a?").tolist()
    [0, 2]
    """

    alphabet: str
    unknown: bool = False

    @classmethod
    def configured(cls, options: Section, context: TokensContext) -> Self:  # noqa: ARG003
        """The characters of the training part.

        Characters that it has only once share the unknown token, which is so trained, and which
        characters of the test part alone become as well. Where there are none, there is no
        unknown token either, and such a character is an error.
        """
        counts = np.zeros(_CODE_POINTS, dtype=np.int64)
        for piece in context.pieces():
            points, numbers = np.unique(_code_points(piece), return_counts=True)
            counts[points] += numbers
        common = np.flatnonzero(counts > 1)
        if not len(common):
            raise DataError(
                "data.tokens: 'characters' are learned, but the training part has none twice"
            )
        return cls("".join(map(chr, common)), bool((counts == 1).any()))

    @cached_property
    def _points(self) -> NDArray[np.uint32]:
        return _code_points(self.alphabet)

    @property
    def vocabulary(self) -> int:
        """The characters, and the unknown token if there is one."""
        return len(self.alphabet) + self.unknown

    @property
    def byte_lengths(self) -> ByteLengths:
        """Of each character as UTF-8."""
        lengths = [len(character.encode("utf-8")) for character in self.alphabet]
        return np.array(lengths + [1] * self.unknown, dtype=np.int64)

    def encode(self, text: str) -> TokenArray:
        """The numbers of the characters."""
        points = _code_points(text)
        numbers = np.searchsorted(self._points, points).astype(np.int32)
        near = self._points[np.minimum(numbers, len(self._points) - 1)]
        if len(strange := np.flatnonzero(near != points)):
            if not self.unknown:
                first = int(strange[0])
                reason = "not in the training part, so 'characters' has no token for it; 'bytes' do"
                raise NoTokenError(text[first], first, reason)
            numbers[strange] = len(self._points)
        return numbers

    def decode(self, numbers: Sequence[int] | TokenArray) -> str:
        """The text; the unknown token becomes U+FFFD."""
        characters = self.alphabet + _REPLACEMENT * self.unknown
        return "".join(characters[number] for number in np.asarray(numbers).tolist())

    def to_json(self) -> str:
        """The alphabet."""
        content = {"tokens": "characters", "alphabet": self.alphabet, "unknown": self.unknown}
        return json.dumps(content)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote."""
        content = parse_typed(_JSON, text)
        points = sorted(set(content.alphabet))
        if not points or "".join(points) != content.alphabet or _has_surrogate(content.alphabet):
            raise DataError("alphabet: want different characters, ascending")
        return cls(content.alphabet, content.unknown)


class _SavedAlphabet(BaseModel):
    model_config = ConfigDict(extra="forbid")
    tokens: Literal["characters"]
    alphabet: str
    unknown: bool


_JSON = TypeAdapter(_SavedAlphabet)


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(np.uint32, copy=False)


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
