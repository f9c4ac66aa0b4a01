"""Outline of a run, read quickly from its folder, without PyTorch.

Nothing is written and no lock is taken. Files may be half written, damaged, or deleted meanwhile;
unreadable parts are left out.
"""

from __future__ import annotations

import fcntl
import math
import os
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic_core import from_json

from submodel.config.reading import MOST_BYTES, read_toml
from submodel.core.errors import SubmodelError, plain
from submodel.core.files import read_text
from submodel.runs.folder import RunFolder, read_failure
from submodel.runs.metrics import Metrics, is_number

RunState = Literal["running", "stopped", "finished", "failed"]
"""States: a process trains it; none does; all rounds are done; an error ended it."""

_MOST_METRICS = 2**28  # bytes that are read at once
_LONGEST_NAME = 80
_MOST_ROUNDS = 2**53


@dataclass(frozen=True)
class RunOutline:
    """Summary of a run's state.

    Args:
        path: folder of the run.
        phase: state of the run.
        reason: reason why it failed or stopped, if known.
        config: configuration in the file, unchecked.
        rounds: number of finished rounds.
        scores: scores of the last evaluated round, or of the result if it is finished.
        traffic: bytes down and up together.
        seconds: duration of its rounds.
        changed_at: time of the last change, in seconds since 1970.
    """

    path: Path
    phase: RunState
    reason: str
    config: Mapping[str, Any]
    rounds: int = 0
    scores: Mapping[str, float] = field(default_factory=dict)
    traffic: int = 0
    seconds: float = 0.0
    changed_at: float = 0.0

    @property
    def rounds_planned(self) -> int:
        """Planned number of rounds; 0 if the configuration cannot be read."""
        rounds = self.value("train.rounds")
        return rounds if isinstance(rounds, int) else 0

    def value(self, key: str) -> Any:
        """Return the configured value of a key, as ``local.lr``; None if there is none."""
        value: Any = self.config
        for name in key.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def text(self, key: str) -> str:
        """Return the configured value of a key, sanitised for display; empty if there is none."""
        value = self.value(key)
        return "" if value is None else plain(value, _LONGEST_NAME)


def read_outline(path: Path, locks: LockTable | None = None) -> RunOutline:
    """Read the outline of the run in a folder.

    Args:
        path: folder with a ``config.toml``.
        locks: current locks, to read many runs at once; None: read them now.
    """
    folder = RunFolder(path)
    is_running = (locks or LockTable.read()).holds(path / ".lock")
    config: dict[str, Any] = {}
    with suppress(SubmodelError):
        config = read_toml(read_text(folder.config_file, MOST_BYTES))
    summary: Metrics | None = None
    with suppress(SubmodelError):
        summary = folder.summary()
    state: RunState = "running" if is_running else "stopped"
    outline = RunOutline(path, state, "", config, changed_at=_changed_at(folder))
    if is_running:
        return replace(outline, **_numbers(read_lines(folder.metrics_file)))
    if summary is not None and summary["rounds"] == outline.value("train.rounds"):
        return replace(
            outline,
            phase="finished",
            rounds=summary["rounds"],
            scores=scores_in(summary),
            traffic=sum_of(summary, "bytes_down", "bytes_up"),
            seconds=summary["seconds"],
        )
    if folder.failed_file.is_file():
        outline = replace(outline, phase="failed")
    numbers = _numbers(read_lines(folder.metrics_file))
    return replace(outline, reason=read_failure(folder), **numbers)


def read_lines(file: Path) -> Iterable[Metrics]:
    """Yield the lines of a run's metrics, mostly unchecked for speed; skip other lines."""
    content = b""
    with suppress(OSError), file.open("rb") as opened_file:
        content = opened_file.read(_MOST_METRICS)
    for text in content.splitlines():
        with suppress(ValueError):
            line = from_json(text)
            if is_line(line):
                yield line


def is_line(value: object) -> bool:
    """Whether a value of a file may be the line of a round.

    >>> is_line({"round": 3}), is_line({"round": 10**400}), is_line([3])
    (True, False, False)
    """
    number = value.get("round") if isinstance(value, dict) else None
    return isinstance(number, int) and not isinstance(number, bool) and 0 < number < _MOST_ROUNDS


def scores_in(entries: Mapping[str, Any]) -> dict[str, float]:
    """Select the test scores of a line or a summary by name: accuracy, loss, others.

    >>> scores_in({"round": 3, "test_loss": 1.5, "test_accuracy": 0.5, "flops": 7})
    {'loss': 1.5, 'accuracy': 0.5}
    """
    return {
        key.removeprefix("test_"): value
        for key, value in entries.items()
        if key.startswith("test_") and is_number(value)
    }


def sum_of(line: Mapping[str, Any], *keys: str) -> Any:
    """Sum the entries of a line that are finite numbers."""
    values = [line[key] for key in keys if is_number(line.get(key))]
    return sum(value for value in values if math.isfinite(value))


def _numbers(lines: Iterable[Metrics]) -> dict[str, Any]:
    rounds, traffic, seconds = 0, 0, 0.0
    scores: dict[str, float] = {}
    for line in lines:
        rounds = max(rounds, line["round"])
        traffic += sum_of(line, "bytes_down", "bytes_up")
        phases = line.get("seconds")
        if isinstance(phases, Mapping):
            seconds += sum_of(phases, *phases)
        scores = scores_in(line) or scores
    return {"rounds": rounds, "scores": scores, "traffic": traffic, "seconds": seconds}


def _changed_at(folder: RunFolder) -> float:
    """Return the time when a round or the result was last written, else when the run began."""
    for files in ((folder.metrics_file, folder.summary_file, folder.failed_file), (folder.path,)):
        times = []
        for file in files:
            with suppress(OSError):
                times.append(file.stat().st_mtime)
        if times:
            return max(times)
    return 0.0


_TABLE, _PROCESSES = Path("/proc/locks"), Path("/proc")
_IS_LINUX = sys.platform == "linux"
# struct flock: on Linux type, whence, start, length, process; elsewhere start, length, process, ...
_REQUEST = "@hhqqi0q" if _IS_LINUX else "@qqihh"
_TYPE = 0 if _IS_LINUX else 3  # position of the type


@dataclass(frozen=True)
class LockTable:
    """Snapshot of the locks of whole files on this machine.

    Args:
        files: device and inode of each locked file.
        holders: processes that hold the locks.
    """

    files: frozenset[tuple[int, int]]
    holders: frozenset[int]

    @classmethod
    def read(cls) -> LockTable:
        """Read the current locks; empty if the kernel does not list them."""
        files, holders = set(), set()
        with suppress(OSError):
            for line in _TABLE.read_text("ascii", "replace").splitlines():
                with suppress(ValueError, IndexError):  # another kind of line
                    _, kind, _, access, process, file, *_ = line.split()
                    if (kind, access) == ("FLOCK", "WRITE"):
                        major, minor, number = file.split(":")
                        files.add((os.makedev(int(major, 16), int(minor, 16)), int(number)))
                        holders.add(int(process))
        return cls(frozenset(files), frozenset(holders))

    def holds(self, file: Path) -> bool:
        """Whether a process has locked a file, which may be missing."""
        try:
            status = file.stat()
        except OSError:
            return False
        if (status.st_dev, status.st_ino) in self.files:
            return True
        if _IS_LINUX and os.major(status.st_dev):
            return False
        # File systems without a device: btrfs and overlays number files differently, and on a
        # network another machine may hold the lock.
        return str(file.resolve()) in self._open_files or _is_range_locked(file)

    @cached_property
    def _open_files(self) -> frozenset[str]:
        return frozenset(path for process in self.holders for path in _open_files_of(process))


def _open_files_of(process: int) -> Iterator[str]:
    """Yield the open files of a process, as far as permissions allow."""
    with suppress(OSError):
        for handle in (_PROCESSES / str(process) / "fd").iterdir():
            with suppress(OSError):
                yield str(handle.readlink())


def _is_range_locked(file: Path) -> bool:
    """Whether a lock of the file's bytes would have to wait, according to the file system.

    On NFS and BSD systems this includes locks of whole files (flock(2)).
    """
    question = (fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    if not _IS_LINUX:
        question = (0, 0, 0, fcntl.F_RDLCK, os.SEEK_SET)
    try:
        with file.open("rb") as opened_file:
            answer = fcntl.fcntl(opened_file, fcntl.F_GETLK, struct.pack(_REQUEST, *question))
    except OSError:
        return False
    return bool(struct.unpack(_REQUEST, answer)[_TYPE] != fcntl.F_UNLCK)
