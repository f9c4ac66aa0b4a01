"""A tokeniser of vowels, consonants and everything else."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from submodel.data.text.tokens import TokensContext


class Sounds:
    vocabulary = 3
    byte_lengths = np.ones(3, dtype=np.int64)

    def __init__(self, context: TokensContext, vowels: str = "aeiou") -> None:
        self._vowels = vowels

    def encode(self, text: str) -> NDArray[np.int32]:
        kinds = [0 if c in self._vowels else 1 if c.isalpha() else 2 for c in text]
        return np.array(kinds, dtype=np.int32)

    def decode(self, numbers: Sequence[int] | NDArray[np.int32]) -> str:
        return "".join("ao."[number] for number in numbers)

    def to_json(self) -> str:
        return '{"tokens": "sounds"}'
