"""The folder of a run: configuration, metrics, checkpoints, final model, summary, curves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NotRequired

from filelock import FileLock, Timeout
from pydantic import ConfigDict, TypeAdapter
from typing_extensions import TypedDict

from submodel.config import Config, keep_comments, read, to_toml
from submodel.config.meaning import PLACE_KEYS, differences, located, paths_in
from submodel.config.reading import MOST_BYTES
from submodel.core.errors import Interruption, SubmodelError, plain
from submodel.core.files import (
    JsonNumber,
    UnreadableError,
    flush,
    read_text,
    read_typed,
    write_text,
)
from submodel.runs.metrics import Lines, Metrics, describe_damage

_MOST_SUMMARY, _MOST_SCORES, _LONGEST_PATH = 2**20, 2**26, 2**16  # bytes
_MORE_FILES = ("fit", "export", "report.html", "metrics.csv", "tensorboard", "mlflow", "wandb",
               ".flower", "superlink.db")  # fmt: skip
"""Files that commands, trackers and a server add to a run's folder."""


class _Summary(TypedDict):
    """The entries of a summary that are read; there may be more."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    rounds: int
    model_sha256: str
    test_loss: JsonNumber
    seconds: JsonNumber
    test_accuracy: NotRequired[JsonNumber]


_SUMMARY: TypeAdapter[Any] = TypeAdapter(_Summary)


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.metrics_file = path / "metrics.jsonl"
        self.holdings_file = path / "coverage.jsonl"  # units held by each client
        self.outline_file = path / "layers.json"  # outline of the model
        self.damaged_metrics_file = path / "metrics.damaged.jsonl"  # copy of damaged metrics
        self.checkpoints = path / "checkpoints"
        self.begun_in_file = path / "begun-in.txt"  # working folder, the base of relative paths
        self.record_file = path / "data.json"  # record of the data, without examples
        self.norms_file = path / "norms.safetensors"  # statistics of static norms of the result
        self.model_file = path / "model.safetensors"
        self.memory_file = path / "memory.safetensors"  # memory of schemes and server steps
        self.summary_file = path / "summary.json"
        self.scores_file = path / "scores.json"  # of `submodel show --full`
        self.curves_file = path / "curves.png"
        self.devices_file = path / "devices.json"  # identities of devices
        self.log_file = path / "server.log"
        self.failed_file = path / "failed.txt"  # the error that ended it
        self.stopped_file = path / "stopped.txt"  # reason why the server's app stopped
        self.serving_file = path / "serving.json"  # address of the server
        self.link_log_file = path / "superlink.log"

    def create(self, config: Config, overwrite: bool = False) -> None:
        """Create the folder of a new run; refuse a folder that is not empty.

        Args:
            config: configuration of the run.
            overwrite: whether to replace the run in the folder; other files are kept.
        """
        try:
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                self._remove_run(overwrite)
            self.path.mkdir(parents=True, exist_ok=True)
            write_text(self.begun_in_file, f"{Path.cwd()}\n")
            write_text(self.config_file, to_toml(config))
        except OSError as error:
            raise SubmodelError(f"{self.path}: cannot be created: {error.strerror}") from None

    def _remove_run(self, overwrite: bool) -> None:
        """Remove the run in the folder, or raise `SubmodelError`."""
        if not self._is_run():
            refused = ": it is not a run, so nothing in it is replaced" if overwrite else ""
            raise SubmodelError(f"{self.path} already exists{refused}")
        if not overwrite:
            raise SubmodelError(
                f"{self.path} already exists: continue it with {self.how_to_resume()}, or replace "
                "it with --force (in Python: overwrite=True)"
            )
        files = [value for value in vars(self).values() if value != self.path]
        others = [self.path / name for name in _MORE_FILES]
        with self.lock():
            for file in (*files, *others):
                if file.is_dir() and not file.is_symlink():
                    shutil.rmtree(file)
                else:
                    file.unlink(missing_ok=True)

    def _is_run(self) -> bool:
        """Whether the folder contains a run; a config.toml alone does not suffice."""
        signs = (self.begun_in_file, self.metrics_file, self.summary_file, self.checkpoints)
        return self.config_file.is_file() and any(sign.exists() for sign in signs)

    def how_to_resume(self) -> str:
        """Return the command that resumes the run, or the call if it needs objects of Python."""
        try:
            config = self.config()
        except SubmodelError:
            return f"'submodel resume {self.path}'"
        needs = [
            f"{name}={name}" for name in ("model", "data") if getattr(config, name).name == "own"
        ]
        if not needs:
            return f"'submodel resume {self.path}'"
        return (
            f"submodel.open({str(self.path)!r}, {', '.join(needs)}).resume() in Python (with axes, "
            "loss, outputs, clients, if the run began with them)"
        )

    def locate(self, config: Config) -> Config:
        """Resolve the paths of the run's configuration from the current folder.

        Missing ``model.weights`` are dropped if the run has a checkpoint.
        """
        begun_in = None
        with suppress(UnreadableError):
            begun_in = Path(read_text(self.begun_in_file, _LONGEST_PATH).strip())
        config = located(config, begun_in)
        weights = paths_in(config).get("model.weights")
        if weights is not None and not weights.exists() and any(self.checkpoints.glob("round-*")):
            config = config.model_copy(update={"model": config.model.with_values(weights=None)})
        return config

    def config(self) -> Config:
        """Read the resolved configuration of the run."""
        if not self.config_file.is_file():
            raise SubmodelError(f"{self.path}: not a run (it has no config.toml)")
        return read(self.config_file, of_run=True)

    def update_config(self, config: Config) -> None:
        """Write the configuration of a resumed run; a finished run becomes unfinished.

        The user's comments in the file are kept.
        """
        try:
            changes = set(differences(self.config(), config))
        except SubmodelError:  # damaged, but the checkpoint belongs to this configuration
            changes = {"name"}
        if changes:  # in this order: a kill in between leaves an unfinished run
            if changes - set(PLACE_KEYS):
                self.summary_file.unlink(missing_ok=True)
            try:
                users_text = read_text(self.config_file, MOST_BYTES)
            except UnreadableError:
                users_text = ""
            write_text(self.config_file, keep_comments(to_toml(config), users_text))

    def metrics(self) -> list[Metrics]:
        """Read the lines of all completed rounds, in order, without damaged lines."""
        return list(Lines.read(self.metrics_file).entries)

    def rounds(self) -> int:
        """Return the number of completed rounds according to the metrics."""
        return Lines.read(self.metrics_file).rounds

    def describe_damage(self) -> str:
        """Describe the damage of the metrics; empty if there is none."""
        lines = Lines.read(self.metrics_file)
        return describe_damage(lines.damage, lines.gaps(lines.rounds))

    def summary(self) -> Metrics | None:
        """Read the summary, None before the end; raise `SubmodelError` if it is damaged."""
        if not self.summary_file.is_file():
            return None
        again = f"{self.how_to_resume()} writes it again"
        try:
            summary: Metrics = read_typed(_SUMMARY, self.summary_file, _MOST_SUMMARY)
        except UnreadableError as error:
            raise SubmodelError(f"{self.summary_file}: damaged: {error}; {again}") from None
        return summary

    def result(self) -> Metrics:
        """Read the summary; raise `SubmodelError` if the run is not finished."""
        if (summary := self.summary()) is None:
            raise SubmodelError(f"{self.path}: not finished; {self.how_to_resume()} first")
        return summary

    def finished(self) -> bool:
        """Whether all rounds of the configuration are done and the summary is written."""
        try:
            summary = self.summary()
        except SubmodelError:
            return False
        return summary is not None and summary["rounds"] == self.config().train.rounds

    def keep_metrics(self, rounds: int) -> str:
        """Drop the lines after ``rounds``, which will be written again; return the damage."""
        lines = Lines.read(self.metrics_file).until(rounds)
        damage = describe_damage(lines.damage, lines.gaps(rounds))
        if lines.damage:
            shutil.copyfile(self.metrics_file, self.damaged_metrics_file)
        write_text(self.metrics_file, lines.text())
        return damage

    def replace_metrics(self, history: Sequence[Metrics]) -> None:
        """Rewrite all lines."""
        write_text(self.metrics_file, Lines(history, []).text())

    def flush_metrics(self) -> None:
        """Flush the lines to disk, before the checkpoint of their last round."""
        for file in (self.metrics_file, self.holdings_file):
            if file.exists():
                flush(file)

    def add_metrics(self, line: Metrics) -> None:
        """Append the line of a round."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    @contextmanager
    def lock(self, patience: float = 0.0) -> Iterator[None]:
        """Lock the run for this process, waiting ``patience`` seconds; a kill releases the lock."""
        # without a soft lock as a fallback: a killed process would leave it behind
        lock = FileLock(self.path / ".lock", timeout=patience, fallback_to_soft=False)
        try:
            lock.acquire()
        except Timeout:
            raise SubmodelError(f"{self.path}: another process is training this run") from None
        except OSError as error:
            raise SubmodelError(f"{self.path}: cannot be locked: {error.strerror}") from None
        try:
            yield
        finally:
            lock.release()


@dataclass(frozen=True)
class FullScores:
    """The full scores of a trained model.

    Args:
        model_sha256: hash of the scored model.
        entries: scores, as in the line of an evaluated round.
        clients: capacity and headline score of every client that can be scored.
    """

    model_sha256: str
    entries: dict[str, Any]
    clients: Sequence[tuple[float, float]] = ()

    def write(self, folder: RunFolder) -> None:
        """Write the scores into the run's folder."""
        write_text(folder.scores_file, json.dumps(asdict(self), indent=1) + "\n")


_SCORES = TypeAdapter(FullScores)


def read_full_scores(folder: RunFolder) -> FullScores | None:
    """Read the full scores in a run's folder; None if there are none of its current model."""
    summary = folder.summary()
    if summary is None or not folder.scores_file.is_file():
        return None
    try:
        full_scores = read_typed(_SCORES, folder.scores_file, _MOST_SCORES)
    except UnreadableError:
        return None  # the model is scored again
    return full_scores if full_scores.model_sha256 == summary["model_sha256"] else None


def is_run(path: Path) -> bool:
    """Whether a folder contains a run."""
    return (path / "config.toml").is_file()


def new_folder(name: str, base: Path = Path("runs")) -> RunFolder:
    """Return the first of the folders NAME, NAME-2, NAME-3, ... that does not exist."""
    number, path = 1, base / name
    while path.exists():
        number += 1
        path = base / f"{name}-{number}"
    return RunFolder(path)


_LONGEST = 2**16  # bytes


@contextmanager
def record_failure(folder: RunFolder | None) -> Iterator[None]:
    """Record the error that ends a run in its folder; remove an earlier record."""
    if folder is None:
        yield
        return
    folder.failed_file.unlink(missing_ok=True)
    try:
        yield
    except Interruption:
        raise
    except Exception as error:
        kind = "" if isinstance(error, SubmodelError) else f"{type(error).__name__}: "
        with suppress(OSError):  # a full disk may be the reason
            write_text(folder.failed_file, f"{kind}{error}".removesuffix(": ").strip() + "\n")
        raise


def read_failure(folder: RunFolder) -> str:
    """Read the first line of the error that ended a run or its server; empty if unknown."""
    for file in (folder.failed_file, folder.stopped_file):
        with suppress(UnreadableError):
            lines = read_text(file, _LONGEST).strip().splitlines()
            return plain(lines[0]) if lines else "without a message"
    return ""
