"""Tracker for TensorBoard: ``tensorboard --logdir RUN``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from submodel.algorithm.types import State
from submodel.config import to_toml
from submodel.core.extras import needs_extra
from submodel.core.options import Section
from submodel.runs.callbacks.callback import Callback
from submodel.runs.callbacks.trackers import TrackerContext, scalars, times
from submodel.runs.metrics import Metrics
from submodel.runs.training import Training

with needs_extra("tensorboard", "train.trackers: 'tensorboard'"):
    from torch.utils.tensorboard import SummaryWriter


class TensorboardEvents(Callback):
    """Tracker that writes event files to ``tensorboard/`` of the run's folder, a curve per metric.

    The files follow from the lines of the rounds alone and are rewritten when a run is resumed, so
    there are no duplicate steps. The time axis shows the duration of rounds, without pauses.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None

    @classmethod
    def configured(cls, options: Section, context: TrackerContext) -> Self:
        """Make the tracker for a run's folder."""
        return cls(context.needed_folder("tensorboard") / "tensorboard")

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """Write the configuration and the finished rounds."""
        lines = to_toml(training.config).splitlines()
        self._text = "\n".join(f"    {line}" for line in lines)  # a code block in Markdown
        self._write(history)

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """Add a point to every curve."""
        self._add(line, time.time())
        self._open_writer().flush()

    def stop(self, state: State, history: Sequence[Metrics]) -> None:
        """Rewrite all points: those of the last round may be missing."""
        self._write(history)

    def close(self) -> None:
        """Write everything to disk."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, history: Sequence[Metrics]) -> None:
        """Write exactly these rounds; a running TensorBoard drops all others."""
        self.close()
        for file in self._folder.glob("events.out.tfevents.*"):
            file.unlink()
        self._open_writer().add_text("config", self._text, 0)
        for line, moment in zip(history, times(history, time.time()), strict=True):
            self._add(line, moment)

    def _add(self, line: Metrics, moment: float) -> None:
        writer = self._open_writer()
        for name, value in scalars(line).items():
            writer.add_scalar(name, value, line["round"], moment)

    def _open_writer(self) -> SummaryWriter:
        if self._writer is None:
            path = str(self._folder)
            self._writer = SummaryWriter(path, purge_step=0)
        return self._writer
