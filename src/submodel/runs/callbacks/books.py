"""The books of devices: what was measured of each of them in a round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from submodel.algorithm.types import State
from submodel.runs.callbacks.base import Callback


@runtime_checkable
class KeepsBooks(Protocol):
    """An engine whose tasks run on devices, and that notes what it measures of them."""

    def books(self) -> Mapping[str, Any]:
        """What was measured of every device since the last time."""
        ...


class DeviceBooks(Callback):
    """Adds the books to a round's line; before `Evaluate`, which may ask devices too."""

    def __init__(self, engine: KeepsBooks) -> None:
        self._engine = engine

    def measure(self, before: State, after: State) -> Mapping[str, Any]:
        """What was measured since the last round."""
        return self._engine.books()
