"""Tracker for Weights & Biases, offline by default."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from submodel.algorithm.types import State
from submodel.core.errors import ConfigError
from submodel.core.extras import needs_extra
from submodel.core.files import write_text
from submodel.core.options import Section
from submodel.runs.callbacks.callback import Callback
from submodel.runs.callbacks.trackers import TrackerContext, scalars
from submodel.runs.metrics import Metrics
from submodel.runs.training import Training

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
with needs_extra("wandb", "train.trackers: 'wandb'"):
    import wandb


MODES = ("offline", "online", "disabled")


class WandbRun(Callback):
    """Tracker that writes to ``wandb/`` of the run's folder, for ``wandb sync``.

    With ``WANDB_MODE=online`` metrics are sent at once. A resumed run continues the same run there.
    Offline, its file is rewritten from the lines of the rounds; online, only missing rounds are
    sent.
    """

    def __init__(self, folder: Path, mode: str = "offline") -> None:
        if mode not in MODES:
            raise ConfigError(
                f"train.trackers: 'wandb': WANDB_MODE={mode} is not one of {', '.join(MODES)}"
            )
        self._folder = folder
        self._mode = mode
        self._run: wandb.Run | None = None

    @classmethod
    def configured(cls, options: Section, context: TrackerContext) -> Self:
        """Make the tracker for a run's folder, in the mode of the environment."""
        return cls(context.needed_folder("wandb"), os.environ.get("WANDB_MODE", "offline"))

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """Log the configuration and the finished rounds."""
        name, config = training.config.name, training.config.model_dump(mode="json")
        self._run = self._start(name, config)
        for line in history:
            self._log(line)

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """Log one more step."""
        self._log(line)

    def stop(self, state: State, history: Sequence[Metrics]) -> None:
        """Log the last round, if it is missing, and mark the run as not finished."""
        for line in history[-1:]:
            self._log(line)
        self._finish(exit_code=1)

    def close(self) -> None:
        """Write or send everything that is left."""
        self._finish(exit_code=0)

    def _start(self, name: str, config: dict[str, Any]) -> wandb.Run:
        home = self._folder / "wandb"
        home.mkdir(exist_ok=True)
        identity = self._identity(home / "run-id.txt")
        if self._mode == "offline":
            for earlier in home.glob(f"offline-run-*-{identity}*"):
                shutil.rmtree(earlier)
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT", "submodel"),
            name=name,
            id=identity,
            dir=str(self._folder),
            mode=self._mode,  # type: ignore[arg-type]
            resume="allow",
            config=config,
            settings=wandb.Settings(
                console="off", silent=True, disable_code=True, disable_git=True,
                x_disable_machine_info=True, x_disable_stats=True,
            ),
        )  # fmt: skip

    def _identity(self, file: Path) -> str:
        """Return the identity of the run, which a resumed run keeps."""
        if not file.is_file():
            write_text(file, secrets.token_hex(4))
        return file.read_text("utf-8").strip()

    def _log(self, line: Metrics) -> None:
        if self._run is not None and line["round"] >= self._run.step:
            self._run.log(scalars(line), step=line["round"])

    def _finish(self, exit_code: int) -> None:
        if self._run is not None:
            self._run.finish(exit_code=exit_code)
            self._run = None
            if self._mode == "offline" and wandb.run is None:  # the user has no run
                wandb.teardown()  # waits until the file is written; finish does not
