"""Telling a function of every round."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from submodel.algorithm.types import State
from submodel.runs.callbacks.base import Callback
from submodel.runs.metrics import Metrics

if TYPE_CHECKING:
    from submodel.runs.training import Training

OnRound = Callable[[Metrics], object]


class Tell(Callback):
    """Calls a function with the line of every round, those before a resumed run included."""

    def __init__(self, on_round: OnRound) -> None:
        self._on_round = on_round

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """The rounds that are done."""
        for line in history:
            self._on_round(line)

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """One more."""
        self._on_round(line)
