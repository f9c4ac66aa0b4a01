"""The metrics as a run of Weights & Biases, offline unless the user says otherwise."""

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

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it would tell its makers of errors
with needs_extra("wandb", "train.trackers: 'wandb'"):
    import wandb


MODES = ("offline", "online", "disabled")


class WandbRun(Callback):
    """A run in ``wandb/`` of the run's folder, for ``wandb sync``; ``WANDB_MODE=online``: sent.

    A run that goes on is the same one there. Offline, its file is written anew from the lines of
    the rounds; online, rounds that are there already are not sent again.
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
        """In the run's folder, in the mode of the environment."""
        return cls(context.needed_folder("wandb"), os.environ.get("WANDB_MODE", "offline"))

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """The configuration, and the rounds that are done."""
        name, config = training.config.name, training.config.model_dump(mode="json")
        self._run = self._start(name, config)
        for line in history:
            self._log(line)

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """One more step."""
        self._log(line)

    def stop(self, state: State, history: Sequence[Metrics]) -> None:
        """Log the last round, if it is missing, and mark the run as not finished."""
        for line in history[-1:]:
            self._log(line)
        self._finish(exit_code=1)

    def close(self) -> None:
        """Everything is written, or sent."""
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
        """The identity of the run there, which a resumed run keeps."""
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
            if self._mode == "offline" and wandb.run is None:  # no run of the user's own
                wandb.teardown()  # waits until the file is written, which finish does not
