"""How experiments stand: what their commands keep of their plans, and what folders hold.

An experiment is what `compare` and `reproduce` make: a folder with ``runs/NAME/seed-0`` and so on.
The runs tell of themselves; what only the command knows is which runs there will be, which of them
have ended, and what follows them. No PyTorch is imported.
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
_DEEPEST = 6  # folders within each other
_LEAST_SECONDS = 5.0  # of work, before anybody speaks of a pace


@dataclass(frozen=True)
class PlannedRun:
    """One of the runs."""

    path: str  # its folder, from the experiment's
    rounds: int  # how many it will have, as far as can be told
    seconds: float  # what a round is expected to take on one core; 1 where nobody knows
    has_ended: bool  # whether nothing is left to do for it


@dataclass(frozen=True)
class ExperimentProgress:
    """What a command knows of its runs; the names are those of the file."""

    began: float  # when it turned to these runs, in seconds since 1970
    parallel: int  # how many run at a time
    runs: tuple[PlannedRun, ...]  # those that it is at, ended ones too
    work_at_begin: float = 0.0  # what had been done of them then, in rounds times seconds
    work_before: float = 0.0  # what was done before these, since the command began
    work_beyond: float = 0.0  # what follows these, as planned
    # whether somebody knows what a round takes: work is in core-seconds
    has_estimates: bool = False

    def with_end(self, path: str) -> ExperimentProgress:
        """The same, when one more run has ended."""
        runs = tuple(replace(r, has_ended=r.has_ended or r.path == path) for r in self.runs)
        return replace(self, runs=runs)

    def write(self, folder: Path) -> None:
        """Keep it."""
        write_text(folder / PROGRESS_FILE, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> ExperimentProgress | None:
        """What was kept last; None: nothing that can be read."""
        try:
            return read_typed(_PROGRESS, folder / PROGRESS_FILE, _MOST_BYTES)
        except UnreadableError:
            return None


_PROGRESS = TypeAdapter(ExperimentProgress)


def lock_file(folder: Path) -> Path:
    """What a command that is at an experiment holds."""
    return folder / _LOCK


@contextmanager
def work_shown(folder: Path) -> Iterator[None]:
    """Let others see that a command is at an experiment; it keeps nobody out."""
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
    """An experiment in a few numbers."""

    scores: ClassVar[Mapping[str, float]] = {}  # only runs have scores
    path: Path  # its folder
    runs: Sequence[RunOutline]  # those that have begun, by their folders
    # what its command says of its plan; None: an earlier version ran it
    progress: ExperimentProgress | None
    is_at_work: bool  # whether a command is at it

    @property
    def phase(self) -> RunState:
        """How it stands."""
        if self.is_at_work or any(run.phase == "running" for run in self.runs):
            return "running"
        is_over = self.progress is None or self.progress.work_beyond <= 0
        if is_over and self.runs_ended == self.runs_planned:
            return "finished"
        has_failed = any(r.phase == "failed" and r.path not in self._ended_paths for r in self.runs)
        return "failed" if has_failed else "stopped"

    @property
    def reason(self) -> str:
        """The first of the errors that ended runs, and so this."""
        if self.phase != "failed":
            return ""
        run = next(r for r in self.runs if r.phase == "failed" and r.path not in self._ended_paths)
        return f"{run.path.relative_to(self.path)}: {run.reason}"

    @cached_property
    def _ended_paths(self) -> frozenset[Path]:
        """Runs that nothing is left to do for; of those that nobody plans, the finished ones."""
        steps = self.progress.runs if self.progress else ()
        planned_paths = {self.path / run.path for run in steps}
        others = {r.path for r in self.runs if r.phase == "finished"} - planned_paths
        return frozenset(others | {self.path / run.path for run in steps if run.has_ended})

    @property
    def runs_planned(self) -> int:
        """How many there are or will be, as far as anybody has said."""
        steps = self.progress.runs if self.progress else ()
        return len({run.path for run in self.runs} | {self.path / run.path for run in steps})

    @property
    def runs_ended(self) -> int:
        """For how many nothing is left to do."""
        return len(self._ended_paths)

    @property
    def traffic(self) -> int:
        """Bytes of all runs, down and up."""
        return sum(run.traffic for run in self.runs)

    @property
    def seconds(self) -> float:
        """Time of the rounds of all runs."""
        return sum(run.seconds for run in self.runs)

    @property
    def changed_at(self) -> float:
        """When something last happened, in seconds since 1970."""
        return max((run.changed_at for run in self.runs), default=_time_of_change(self.path))

    @property
    def work(self) -> tuple[float, float]:
        """What is done of the whole plan, and all of it: rounds, or core-seconds as planned."""
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
        """How long the rest takes at the pace of these runs; None: nobody can tell."""
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
    """How the experiment of a folder stands."""
    locks = locks or LockTable.read()
    runs = [read_outline(run, locks) for run in _runs_below(path / "runs")]
    is_at_work = locks.holds(lock_file(path))
    return ExperimentOutline(path, runs, ExperimentProgress.read(path), is_at_work)


def is_experiment(path: Path) -> bool:
    """Whether a folder is that of an experiment."""
    if is_run(path):
        return False
    if (path / PROGRESS_FILE).is_file():
        return True
    patterns = ("*/seed-*/config.toml", "rates/*/seed-*/config.toml")
    return any(True for pattern in patterns for _ in (path / "runs").glob(pattern))


def find_outlines(
    folder: Path, locks: LockTable | None = None
) -> Iterator[RunOutline | ExperimentOutline]:
    """How all runs and experiments below a folder stand, by their names."""
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
    """Those that are no links, and not hidden; none, where one may not look."""
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
