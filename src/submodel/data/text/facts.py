"""What is known of data that is text: its tokens, and how many bytes they stand for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TextFacts:
    """Of the sequences of a dataset.

    Args:
        vocabulary: how many different tokens there are.
        bytes_per_token: of the text that the test part's targets stand for, on average.
        tokens: the tokeniser, as `submodel.data.text.tokens.read_tokens` reads it.
    """

    vocabulary: int
    bytes_per_token: float
    tokens: str
