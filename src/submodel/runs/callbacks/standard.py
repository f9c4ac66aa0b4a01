"""The callbacks of every run: scores, the files of its folder, trackers."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from submodel.algorithm.execution import ALONE
from submodel.algorithm.round_statistics import RoundReport
from submodel.algorithm.types import State
from submodel.core.extras import MissingExtraError
from submodel.engines.processes.group import ProcessGroup
from submodel.model.inspect import describe_layers
from submodel.model.norm import needs_calibration
from submodel.runs import checkpoint
from submodel.runs.callbacks.callback import Callback, CallbackList
from submodel.runs.callbacks.curves import draw_curves
from submodel.runs.callbacks.trackers import trackers_of
from submodel.runs.checkpoint import write_tensors
from submodel.runs.data_record import Fingerprints
from submodel.runs.folder import RunFolder
from submodel.runs.holdings_file import ModelOutline, holdings_line, write_model_outline
from submodel.runs.metrics import Metrics, score_names
from submodel.runs.scoring import scores
from submodel.runs.training import Training

_log = logging.getLogger(__name__)


@runtime_checkable
class MeasuresDevices(Protocol):
    """An engine whose tasks run on devices, and that measures them."""

    def measurements(self) -> Mapping[str, Any]:
        """Measurements of every device since the last call."""
        ...


class DeviceMeasurements(Callback):
    """Adds measurements of devices to a line; before `Evaluate`, which may use devices too."""

    def __init__(self, engine: MeasuresDevices) -> None:
        self._engine = engine

    def measure(self, before: State, after: State) -> Mapping[str, Any]:
        """Measurements since the last round."""
        return self._engine.measurements()


class Evaluate(Callback):
    """Scores rounds at the configured interval; the processes of a group share the work."""

    def __init__(self, group: ProcessGroup | None = None, folder: RunFolder | None = None) -> None:
        self._group, self._folder = group, folder
        self._norms: dict[str, Tensor] = {}  # statistics used to score the result

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """Score the last round if it has no scores.

        Its line may be lost, or it was not planned as the last round when it was trained.
        """
        self._training = training
        if self._folder is not None:
            self._folder.norms_file.unlink(missing_ok=True)  # it belongs to another result
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
        """Return the scores of a round and the time they took, if scores are due."""
        every = self._training.config.train.evaluate_every
        if after.round % every and after.round != self._training.rounds:
            return {}
        start = time.perf_counter()
        self._scores = self._measure(after)
        return {**self._scores, "seconds": {"evaluate": round(time.perf_counter() - start, 6)}}

    def finish(self, last: State, final: State, history: Sequence[Metrics]) -> Mapping[str, Any]:
        """Return the scores of the result."""
        if final is not last:
            self._scores = self._measure(final)
        setup = self._training.setup
        by_clients = setup.statistics.source == "clients" and needs_calibration(setup.module)
        if by_clients and not self._norms and self._folder is not None and self._group is None:
            self._measure(final)  # after a stop, scores are known but statistics are not
        if self._folder is not None and self._norms:
            write_tensors(self._folder.norms_file, {k: t.cpu() for k, t in self._norms.items()})
        return {**self._scores, "capacity_accuracy": self._scores.get("capacity_accuracy")}

    def _measure(self, state: State) -> Metrics:
        self._norms.clear()
        return scores(self._training, state, self._group or ALONE, self._norms)


class RunFiles(Callback):
    """Writes the files of a run's folder, in an order that keeps the run resumable.

    The lines of a round are written before its checkpoint.
    """

    def __init__(self, training: Training, folder: RunFolder, fingerprints: Fingerprints) -> None:
        self._config, self._rounds = training.config, training.rounds
        self._every = training.checkpoint_every or training.config.train.checkpoint_every
        self._folder, self._fingerprints = folder, fingerprints
        self._holdings: tuple[int, str] | None = None  # the round and its line

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """Write the lines that earlier callbacks completed, and the outline of the model."""
        if history != self._folder.metrics():
            self._folder.replace_metrics(history)
        setup = training.setup
        layers = describe_layers(setup.module, setup.axes, setup.clients.dataset.example)
        outline = ModelOutline(setup.axes.cut_by_capacity, layers)
        write_model_outline(self._folder.outline_file, outline)

    def after_merge(self, round_: int, report: RoundReport) -> None:
        """Keep the round's holdings until it counts."""
        self._holdings = round_, holdings_line(round_, report.holdings)

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """Write the round's lines, and a checkpoint at the configured interval."""
        self._folder.add_metrics(line)
        self._add_holdings(after.round)
        if after.round % self._every == 0 or after.round == self._rounds:
            self._save(after)

    def stop(self, state: State, history: Sequence[Metrics]) -> None:
        """Rewrite all lines (the last may be missing or superfluous), and save the last state."""
        self._folder.replace_metrics(history)
        self._add_holdings(state.round)
        self._save(state)

    def finish(self, last: State, final: State, history: Sequence[Metrics]) -> Mapping[str, Any]:
        """Draw the curves, if matplotlib is installed."""
        try:
            draw_curves(history, self._folder.curves_file, self._config.name)
        except MissingExtraError as error:
            _log.warning("no curves: %s", error)
        return {}

    def _add_holdings(self, round_: int) -> None:
        if self._holdings is not None and self._holdings[0] == round_:
            with self._folder.holdings_file.open("a", encoding="utf-8") as file:
                file.write(self._holdings[1])
            self._holdings = None

    def _save(self, state: State) -> None:
        self._folder.flush_metrics()
        checkpoint.save(self._folder.checkpoints, state, self._config, self._fingerprints)


def callbacks_of(
    training: Training,
    folder: RunFolder | None,
    fingerprints: Fingerprints,
    group: ProcessGroup | None = None,
    more: Sequence[Callback] = (),
) -> CallbackList:
    """Collect all callbacks of a run in this process, in an order that keeps the run resumable.

    Measurements precede the writing of the line. Trackers and other callbacks (``more``) come last,
    and only in the first process of a group.
    """
    members: list[Callback] = []
    if isinstance(training.engine, MeasuresDevices):
        members.append(DeviceMeasurements(training.engine))
    members.append(Evaluate(group, folder))
    if folder is not None:
        members.append(RunFiles(training, folder, fingerprints))
    if group is None or group.rank == 0:
        members.extend(trackers_of(training.config, None if folder is None else folder.path))
        members.extend(more)
    return CallbackList(members)
