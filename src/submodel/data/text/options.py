"""The keys that all sources of text share."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from submodel.data.registry import TOKENS
from submodel.options import LARGEST, Count, Section


class TextOptions(Section):
    """How text becomes sequences of tokens."""

    choices = {"tokens": TOKENS}  # noqa: RUF012

    tokens: str = Field("bytes", description=TOKENS.describe())
    length: Count = Field(64, description="tokens in a sequence")
    test_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="the end of every client's text that is for testing"
    )
    least: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        0, description="clients with fewer characters are left out"
    )
