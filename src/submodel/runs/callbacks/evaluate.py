"""Evaluation: the scores of every so-many-th round, of the last one and of the result."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from submodel.algorithm.execution import ALONE
from submodel.algorithm.types import State
from submodel.engines.processes.group import ProcessGroup
from submodel.model.norm import needs_calibration
from submodel.runs.callbacks.base import Callback
from submodel.runs.folder import RunFolder
from submodel.runs.metrics import Metrics, score_names
from submodel.runs.scoring import scores
from submodel.runs.tensor_file import write_tensors

if TYPE_CHECKING:
    from submodel.runs.training import Training


class Evaluate(Callback):
    """Adds scores to the lines of the rounds where they are due; all processes of a group do."""

    def __init__(self, group: ProcessGroup | None = None, folder: RunFolder | None = None) -> None:
        """Scores, and the statistics of norms that the result is scored with.

        Args:
            group: the processes that share the work.
            folder: of the run; without it nothing is kept.
        """
        self._group, self._folder = group, folder
        self._norms: dict[str, Tensor] = {}

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """Score a last round that has no scores.

        Its line may be lost, or it was not to be the last round when it was trained.
        """
        self._training = training
        if self._folder is not None:
            self._folder.norms_file.unlink(missing_ok=True)  # of another result
        last = history[-1] if history and history[-1]["round"] == state.round else {}
        names = score_names(training.setup.metrics) | set(training.metrics)
        self._scores = {key: value for key, value in last.items() if key in names}
        if state.round < training.rounds:
            return
        needs_scores = "test_loss" not in last
        if needs_scores if self._group is None else self._group.first(needs_scores):
            self._scores = self._measure(state)
            if last:
                history[-1] = last | self._scores

    def measure(self, before: State, after: State) -> Mapping[str, Any]:
        """The scores of a round, and how long they took; nothing where they are not due."""
        every = self._training.config.train.evaluate_every
        if after.round % every and after.round != self._training.rounds:
            return {}
        start = time.perf_counter()
        self._scores = self._measure(after)
        return {**self._scores, "seconds": {"evaluate": round(time.perf_counter() - start, 6)}}

    def finish(self, last: State, final: State, history: Sequence[Metrics]) -> Mapping[str, Any]:
        """The scores of the result."""
        if final is not last:
            self._scores = self._measure(final)
        setup = self._training.setup
        by_clients = setup.statistics.source == "clients" and needs_calibration(setup.module)
        if by_clients and not self._norms and self._folder is not None and self._group is None:
            self._measure(final)  # scores are known from before a stop, statistics are not
        if self._folder is not None and self._norms:
            write_tensors(self._folder.norms_file, {k: t.cpu() for k, t in self._norms.items()})
        return {**self._scores, "capacity_accuracy": self._scores.get("capacity_accuracy")}

    def _measure(self, state: State) -> Metrics:
        self._norms.clear()
        return scores(self._training, state, self._group or ALONE, self._norms)
