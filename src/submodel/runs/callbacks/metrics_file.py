"""The metrics file: one line per round, written before the checkpoint that it leads to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from submodel.algorithm.types import State
from submodel.runs.callbacks.base import Callback
from submodel.runs.folder import RunFolder
from submodel.runs.metrics import Metrics

if TYPE_CHECKING:
    from submodel.runs.training import Training


class MetricsFile(Callback):
    """Appends the line of every round to ``metrics.jsonl``."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """Write what has been added to earlier lines."""
        if history != self._folder.metrics():
            self._folder.replace_metrics(history)

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """Write the line of a round."""
        self._folder.add_metrics(line)

    def stop(self, state: State, history: Sequence[Metrics]) -> None:
        """Write all lines anew: the last one may not have been written, or be one too many."""
        self._folder.replace_metrics([line for line in history if line["round"] <= state.round])
