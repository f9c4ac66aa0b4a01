"""The folder of a run: config, metrics, checkpoints, final model, summary, picture."""

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
"""What commands, trackers and a server add to a run's folder."""


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
        self.holdings_file = path / "coverage.jsonl"  # who held what
        self.outline_file = path / "layers.json"  # the shape of the model
        self.damaged_metrics_file = path / "metrics.damaged.jsonl"  # as they were found
        self.checkpoints = path / "checkpoints"
        self.begun_in_file = path / "begun-in.txt"  # the working folder: relative paths are from it
        self.record_file = path / "data.json"  # what is known of the data, but for the examples
        self.norms_file = path / "norms.safetensors"  # statistics of static norms of the result
        self.model_file = path / "model.safetensors"
        self.memory_file = path / "memory.safetensors"  # of schemes and server steps that have one
        self.summary_file = path / "summary.json"
        self.scores_file = path / "scores.json"  # of `submodel show --full`
        self.curves_file = path / "curves.png"
        self.devices_file = path / "devices.json"  # over devices: who is who
        self.log_file = path / "server.log"
        self.failed_file = path / "failed.txt"  # the error that ended it
        self.stopped_file = path / "stopped.txt"  # why the server's app gave up
        self.serving_file = path / "serving.json"  # where it is served
        self.link_log_file = path / "superlink.log"

    def create(self, config: Config, overwrite: bool = False) -> None:
        """Begin a run: refuses a folder that holds anything.

        Args:
            config: of the run.
            overwrite: replace the run that the folder holds; files of other kinds stay there.
        """
        try:
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                self._make_way(overwrite)
            self.path.mkdir(parents=True, exist_ok=True)
            write_text(self.begun_in_file, f"{Path.cwd()}\n")
            write_text(self.config_file, to_toml(config))
        except OSError as error:
            raise SubmodelError(f"{self.path}: cannot be made: {error.strerror}") from None

    def _make_way(self, overwrite: bool) -> None:
        """Remove the run that the folder holds, or raise `SubmodelError`."""
        if not self._is_run():
            refused = ": it is not a run, so nothing in it is replaced" if overwrite else ""
            raise SubmodelError(f"{self.path} exists already{refused}")
        if not overwrite:
            raise SubmodelError(
                f"{self.path} exists already: continue it with {self.how_to_resume()}, or replace "
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
        """Whether the folder holds a run; a config.toml alone is no sign of one."""
        signs = (self.begun_in_file, self.metrics_file, self.summary_file, self.checkpoints)
        return self.config_file.is_file() and any(sign.exists() for sign in signs)

    def how_to_resume(self) -> str:
        """The command that resumes the run, or the call if model or data came from Python."""
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
            f"submodel.open({str(self.path)!r}, {', '.join(needs)}).resume() in Python (and axes, "
            "loss, outputs, clients, if they were given then)"
        )

    def locate(self, config: Config) -> Config:
        """The run's configuration with its paths as they are found from the present folder.

        Where ``model.weights`` are gone, a run that has a checkpoint does without them.
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
        """The resolved configuration that the run began with."""
        if not self.config_file.is_file():
            raise SubmodelError(f"{self.path}: not a run (it has no config.toml)")
        return read(self.config_file, of_run=True)

    def go_on_as(self, config: Config) -> None:
        """Keep the configuration that the run goes on with; one that was finished is so no more.

        Comments that a user wrote into the file stay there.
        """
        try:
            changes = set(differences(self.config(), config))
        except SubmodelError:  # damaged, but a checkpoint says that it belongs to this one
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
        """One entry per completed round, ascending; damaged lines are left out."""
        return list(Lines.read(self.metrics_file).entries)

    def rounds(self) -> int:
        """The number of completed rounds, by the metrics."""
        return Lines.read(self.metrics_file).rounds

    def describe_damage(self) -> str:
        """What is damaged of the metrics, in words; empty if nothing is."""
        lines = Lines.read(self.metrics_file)
        return describe_damage(lines.damage, lines.gaps(lines.rounds))

    def summary(self) -> Metrics | None:
        """The summary of a finished run; raises `SubmodelError` where it is damaged."""
        if not self.summary_file.is_file():
            return None
        again = f"{self.how_to_resume()} writes it again"
        try:
            summary: Metrics = read_typed(_SUMMARY, self.summary_file, _MOST_SUMMARY)
        except UnreadableError as error:
            raise SubmodelError(f"{self.summary_file}: damaged: {error}; {again}") from None
        return summary

    def result(self) -> Metrics:
        """The same; raises `SubmodelError` where the run is not finished."""
        if (summary := self.summary()) is None:
            raise SubmodelError(f"{self.path}: not finished; {self.how_to_resume()} first")
        return summary

    def finished(self) -> bool:
        """Whether all rounds of the configuration are done, and summed up."""
        try:
            summary = self.summary()
        except SubmodelError:
            return False
        return summary is not None and summary["rounds"] == self.config().train.rounds

    def keep_metrics(self, rounds: int) -> str:
        """Drop the lines after ``rounds``, which will be written again; returns the damage."""
        lines = Lines.read(self.metrics_file).until(rounds)
        what = describe_damage(lines.damage, lines.gaps(rounds))
        if lines.damage:
            shutil.copyfile(self.metrics_file, self.damaged_metrics_file)
        write_text(self.metrics_file, lines.text())
        return what

    def replace_metrics(self, history: Sequence[Metrics]) -> None:
        """Write all lines anew."""
        write_text(self.metrics_file, Lines(history, []).text())

    def flush_metrics(self) -> None:
        """Have the lines on the disk before the checkpoint that they lead to."""
        for file in (self.metrics_file, self.holdings_file):
            if file.exists():
                flush(file)

    def add_metrics(self, line: Metrics) -> None:
        """Append one round's line."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    @contextmanager
    def lock(self, patience: float = 0.0) -> Iterator[None]:
        """Keep a second process out, after ``patience`` seconds; a killed one leaves no lock."""
        # no soft lock where the file system has none: a killed process would leave it behind
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
    """The scores of a trained model, and its hash.

    Args:
        model_sha256: of the model that was scored.
        entries: as an evaluated round's line has them.
        clients: the capacity and the headline score of every client that can be scored.
    """

    model_sha256: str
    entries: dict[str, Any]
    clients: Sequence[tuple[float, float]] = ()

    def write(self, folder: RunFolder) -> None:
        """Write them into the run's folder."""
        write_text(folder.scores_file, json.dumps(asdict(self), indent=1) + "\n")


_SCORES = TypeAdapter(FullScores)


def read_full_scores(folder: RunFolder) -> FullScores | None:
    """The scores in a run's folder; None where there are none of its present model."""
    summary = folder.summary()
    if summary is None or not folder.scores_file.is_file():
        return None
    try:
        full_scores = read_typed(_SCORES, folder.scores_file, _MOST_SCORES)
    except UnreadableError:
        return None  # it is made again
    return full_scores if full_scores.model_sha256 == summary["model_sha256"] else None


def is_run(path: Path) -> bool:
    """Whether a folder is that of a run."""
    return (path / "config.toml").is_file()


def new_folder(name: str, base: Path = Path("runs")) -> RunFolder:
    """The first of NAME, NAME-2, NAME-3, ... that is free."""
    number, path = 1, base / name
    while path.exists():
        number += 1
        path = base / f"{name}-{number}"
    return RunFolder(path)


_LONGEST = 2**16  # bytes


@contextmanager
def failure_noted(folder: RunFolder | None) -> Iterator[None]:
    """Write down the error that ends a run; a run that goes on has not failed."""
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
    """The first line of why a run failed, or why its server gave up; empty: unknown."""
    for file in (folder.failed_file, folder.stopped_file):
        with suppress(UnreadableError):
            lines = read_text(file, _LONGEST).strip().splitlines()
            return plain(lines[0]) if lines else "it said nothing"
    return ""
