"""The zoo: small models of every common architecture, for tests of axes, cuts and builds."""

from __future__ import annotations

from tests.model.nets import Entry
from tests.model.zoo import (
    convolutional,
    hugging_face,
    images,
    mechanisms,
    sequences,
    transformer,
)

ZOO: tuple[Entry, ...] = (
    *convolutional.BUILT_IN,
    *convolutional.ENTRIES,
    *transformer.RECURRENT,
    *transformer.ENTRIES,
    *hugging_face.ENTRIES,
)
"""Common models; none is wider than 64 or slower than a few milliseconds."""

MORE: tuple[Entry, ...] = (
    *images.ENTRIES,
    *sequences.ENTRIES,
    *mechanisms.ENTRIES,
    *hugging_face.MORE,
)
"""Models with mechanisms of all kinds, for the battery."""

__all__ = ["MORE", "ZOO", "Entry"]
