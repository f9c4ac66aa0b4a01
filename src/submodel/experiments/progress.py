"""How far an experiment of many runs is, kept in its folder for whoever looks on.

The runs tell of themselves; what only the command knows is which runs there will be, which of them
have ended, and what follows them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from submodel.files import UnreadableError, read_typed, write_text

PROGRESS_FILE = "progress.json"
_LOCK = ".lock"
_MOST_BYTES = 2**26


@dataclass(frozen=True)
class PlannedRun:
    """One of the runs.

    Args:
        path: its folder, from the experiment's.
        rounds: how many it will have, as far as can be told.
        seconds: what a round is expected to take on one core; 1 where nobody knows.
        has_ended: whether nothing is left to do for it.
    """

    path: str
    rounds: int
    seconds: float
    has_ended: bool


@dataclass(frozen=True)
class ExperimentProgress:
    """What a command knows of its runs; the names are those of the file.

    Args:
        began: when it turned to these runs, in seconds since 1970.
        parallel: how many run at a time.
        runs: those that it is at, ended ones too.
        work_at_begin: what had been done of them then, in rounds times seconds.
        work_before: what was done before these, since the command began.
        work_beyond: what follows these, as planned.
        has_estimates: whether somebody knows what a round takes: work is in core-seconds.
    """

    began: float
    parallel: int
    runs: tuple[PlannedRun, ...]
    work_at_begin: float = 0.0
    work_before: float = 0.0
    work_beyond: float = 0.0
    has_estimates: bool = False

    def with_end(self, path: str) -> ExperimentProgress:
        """The same, when one more run has ended.

        Args:
            path: its folder, from the experiment's.
        """
        runs = tuple(replace(r, has_ended=r.has_ended or r.path == path) for r in self.runs)
        return replace(self, runs=runs)

    def write(self, folder: Path) -> None:
        """Keep it.

        Args:
            folder: the experiment's.
        """
        write_text(folder / PROGRESS_FILE, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> ExperimentProgress | None:
        """What was kept last; None: nothing that can be read.

        Args:
            folder: the experiment's.
        """
        try:
            return read_typed(_PROGRESS, folder / PROGRESS_FILE, _MOST_BYTES)
        except UnreadableError:
            return None


_PROGRESS = TypeAdapter(ExperimentProgress)


def lock_file(folder: Path) -> Path:
    """What a command that is at an experiment holds.

    Args:
        folder: the experiment's.
    """
    return folder / _LOCK


@contextmanager
def work_shown(folder: Path) -> Iterator[None]:
    """Let others see that a command is at an experiment; it keeps nobody out.

    Args:
        folder: the experiment's. Two commands may share it: then the first is seen.
    """
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
