"""States of experiments, read from their folders and from the saved progress of their commands.

An experiment is a folder of `compare` or `reproduce`, with ``runs/NAME/seed-0`` and so on. Runs
record their own state. The command records its plan: the runs, those that have ended, and the work
that follows them. PyTorch is not imported.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from submodel.core.files import UnreadableError, read_typed, write_text
from submodel.runs.folder import is_run
from submodel.runs.outline import LockTable, RunOutline, RunState, read_outline

PROGRESS_FILE = "progress.json"
_LOCK = ".lock"
_MOST_BYTES = 2**26
_DEEPEST = 6  # nesting of folders
_LEAST_SECONDS = 5.0  # of work, before a pace is estimated


@dataclass(frozen=True)
class PlannedRun:
    """A planned run of an experiment."""

    path: str  # its folder, relative to the experiment's
    rounds: int  # expected number of rounds
    seconds: float  # expected core-seconds per round; 1 if unknown
    has_ended: bool  # whether no work is left


@dataclass(frozen=True)
class ExperimentProgress:
    """Progress of a command over its runs; the fields are the keys of the file."""

    began: float  # start of these runs, in seconds since 1970
    parallel: int  # number of concurrent runs
    runs: tuple[PlannedRun, ...]  # current runs, including ended ones
    work_at_begin: float = 0.0  # work already done on them at the start, in rounds times seconds
    work_before: float = 0.0  # work of this command before these runs
    work_beyond: float = 0.0  # planned work after these runs
    has_estimates: bool = False  # whether seconds per round are known: work is in core-seconds

    def with_end(self, path: str) -> ExperimentProgress:
        """Mark one more run as ended."""
        runs = tuple(replace(r, has_ended=r.has_ended or r.path == path) for r in self.runs)
        return replace(self, runs=runs)

    def write(self, folder: Path) -> None:
        """Write the progress into the folder of an experiment."""
        write_text(folder / PROGRESS_FILE, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> ExperimentProgress | None:
        """Read the progress that `write` saved; None if there is none that can be read."""
        try:
            return read_typed(_PROGRESS, folder / PROGRESS_FILE, _MOST_BYTES)
        except UnreadableError:
            return None


_PROGRESS = TypeAdapter(ExperimentProgress)


def lock_file(folder: Path) -> Path:
    """Return the path of the lock that a command holds while it works on an experiment."""
    return folder / _LOCK


@contextmanager
def mark_active(folder: Path) -> Iterator[None]:
    """Hold the lock of an experiment to show that a command is active; it excludes no other."""
    lock = FileLock(lock_file(folder), timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except (Timeout, OSError):  # OSError: a file system without locks
        yield
        return
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True)
class ExperimentOutline:
    """Summary of an experiment."""

    scores: ClassVar[Mapping[str, float]] = {}  # only runs have scores
    path: Path  # its folder
    runs: Sequence[RunOutline]  # runs that have begun, by folder
    progress: ExperimentProgress | None  # plan of its command; None: from an earlier version
    is_at_work: bool  # whether a command works on it

    @property
    def phase(self) -> RunState:
        """State of the experiment."""
        if self.is_at_work or any(run.phase == "running" for run in self.runs):
            return "running"
        is_over = self.progress is None or self.progress.work_beyond <= 0
        if is_over and self.runs_ended == self.runs_planned:
            return "finished"
        has_failed = any(r.phase == "failed" and r.path not in self._ended_paths for r in self.runs)
        return "failed" if has_failed else "stopped"

    @property
    def reason(self) -> str:
        """First error that ended a run, if the experiment has failed; else empty."""
        if self.phase != "failed":
            return ""
        run = next(r for r in self.runs if r.phase == "failed" and r.path not in self._ended_paths)
        return f"{run.path.relative_to(self.path)}: {run.reason}"

    @cached_property
    def _ended_paths(self) -> frozenset[Path]:
        """Folders of ended runs: planned runs without work left, and other finished runs."""
        steps = self.progress.runs if self.progress else ()
        planned_paths = {self.path / run.path for run in steps}
        others = {r.path for r in self.runs if r.phase == "finished"} - planned_paths
        return frozenset(others | {self.path / run.path for run in steps if run.has_ended})

    @property
    def runs_planned(self) -> int:
        """Number of existing and planned runs."""
        steps = self.progress.runs if self.progress else ()
        return len({run.path for run in self.runs} | {self.path / run.path for run in steps})

    @property
    def runs_ended(self) -> int:
        """Number of runs without work left."""
        return len(self._ended_paths)

    @property
    def traffic(self) -> int:
        """Bytes of all runs, down and up together."""
        return sum(run.traffic for run in self.runs)

    @property
    def seconds(self) -> float:
        """Seconds of the rounds of all runs."""
        return sum(run.seconds for run in self.runs)

    @property
    def changed_at(self) -> float:
        """Time of the last change, in seconds since 1970."""
        return max((run.changed_at for run in self.runs), default=_time_of_change(self.path))

    @property
    def work(self) -> tuple[float, float]:
        """Done and total work of the plan, in rounds or in core-seconds as planned."""
        rounds = {run.path: (run.rounds, run.rounds_planned) for run in self.runs}
        if self.progress is None:
            return sum(n for n, _ in rounds.values()), sum(max(of) for of in rounds.values())
        all_done = whole = self.progress.work_before
        for step in self.progress.runs:
            rounds_done, rounds_now = rounds.get(self.path / step.path, (0, 0))
            all_done += rounds_done * step.seconds
            has_all = step.has_ended and rounds_done > 0
            rounds_at_end = rounds_done if has_all else max(rounds_now, step.rounds)
            whole += rounds_at_end * step.seconds
        return all_done, whole + self.progress.work_beyond

    def seconds_left(self, now: float | None = None) -> float | None:
        """Estimate the remaining seconds from the pace of these runs; None if unknown."""
        if self.progress is None or self.phase != "running":
            return None
        work_done, whole = self.work
        rest = max(0.0, whole - work_done)
        seconds_so_far = (time.time() if now is None else now) - self.progress.began
        since_begin = work_done - self.progress.work_before - self.progress.work_at_begin
        if since_begin > 0 and seconds_so_far >= _LEAST_SECONDS:
            return rest * seconds_so_far / since_begin
        return rest / self.progress.parallel if self.progress.has_estimates else None


def read_experiment(path: Path, locks: LockTable | None = None) -> ExperimentOutline:
    """Read the state of the experiment in a folder."""
    locks = locks or LockTable.read()
    runs = [read_outline(run, locks) for run in _runs_below(path / "runs")]
    is_at_work = locks.holds(lock_file(path))
    return ExperimentOutline(path, runs, ExperimentProgress.read(path), is_at_work)


def is_experiment(path: Path) -> bool:
    """Whether a folder contains an experiment."""
    if is_run(path):
        return False
    if (path / PROGRESS_FILE).is_file():
        return True
    patterns = ("*/seed-*/config.toml", "rates/*/seed-*/config.toml")
    return any(True for pattern in patterns for _ in (path / "runs").glob(pattern))


def find_outlines(
    folder: Path, locks: LockTable | None = None
) -> Iterator[RunOutline | ExperimentOutline]:
    """Yield the outlines of all runs and experiments below a folder, in the order of names."""
    locks = locks or LockTable.read()
    yield from _find(folder, locks, 0)


def _find(folder: Path, locks: LockTable, depth: int) -> Iterator[RunOutline | ExperimentOutline]:
    if is_run(folder):
        yield read_outline(folder, locks)
    elif is_experiment(folder):
        yield read_experiment(folder, locks)
    elif depth < _DEEPEST:
        for path in _folders_in(folder):
            yield from _find(path, locks, depth + 1)


def _runs_below(folder: Path, depth: int = 0) -> Iterator[Path]:
    if is_run(folder):
        yield folder
    elif depth < _DEEPEST:
        for path in _folders_in(folder):
            yield from _runs_below(path, depth + 1)


def _folders_in(folder: Path) -> list[Path]:
    """List the subfolders that are neither links nor hidden; none if the folder is unreadable."""
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if not name.startswith(".")]


def _time_of_change(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0
