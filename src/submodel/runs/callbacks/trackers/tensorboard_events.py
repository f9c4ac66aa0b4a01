"""The metrics as curves in TensorBoard: ``tensorboard --logdir RUN``."""

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
    """Event files in ``tensorboard/`` of the run's folder: a curve for every number of the lines.

    They follow from the lines of the rounds alone and are written anew where a run goes on, so no
    step is there twice; the time axis shows the seconds that rounds took, without the pauses.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None

    @classmethod
    def configured(cls, options: Section, context: TrackerContext) -> Self:
        """In the run's folder."""
        return cls(context.needed_folder("tensorboard") / "tensorboard")

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """The configuration, and the rounds that are done."""
        lines = to_toml(training.config).splitlines()
        self._text = "\n".join(f"    {line}" for line in lines)  # as Markdown has code
        self._write(history)

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """One more point of every curve."""
        self._add(line, time.time())
        self._open_writer().flush()

    def stop(self, state: State, history: Sequence[Metrics]) -> None:
        """All points anew: those of the last round may be missing."""
        self._write(history)

    def close(self) -> None:
        """Everything is on the disk."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, history: Sequence[Metrics]) -> None:
        """Only these rounds; a TensorBoard that watches the folder forgets all others."""
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
