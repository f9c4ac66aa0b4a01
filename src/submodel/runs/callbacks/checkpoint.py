"""Checkpoints of every so-many-th round, of the last one and wherever a run stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from submodel.algorithm.types import State
from submodel.runs import checkpoint
from submodel.runs.callbacks.base import Callback
from submodel.runs.folder import RunFolder
from submodel.runs.metrics import Metrics
from submodel.runs.subject import Fingerprints

if TYPE_CHECKING:
    from submodel.runs.training import Training


class Checkpoint(Callback):
    """Saves states, once the lines that lead to them are safe: after `MetricsFile`."""

    def __init__(self, training: Training, folder: RunFolder, subject: Fingerprints) -> None:
        self._config, self._rounds = training.config, training.rounds
        self._every = training.checkpoint_every or training.config.train.checkpoint_every
        self._folder, self._subject = folder, subject

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """Save the state where that is due."""
        if after.round % self._every == 0 or after.round == self._rounds:
            self._save(after)

    def stop(self, state: State, history: Sequence[Metrics]) -> None:
        """Save the last state."""
        self._save(state)

    def _save(self, state: State) -> None:
        self._folder.flush_metrics()
        checkpoint.save(self._folder.checkpoints, state, self._config, self._subject)
