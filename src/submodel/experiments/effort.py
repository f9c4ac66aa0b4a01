"""What a run took of a processor, command by command, and on which machine."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Effort:
    """What commands took together.

    Args:
        core_seconds: of a processor; None: not counted.
        machine: the last one that they ran on; None: not known.
    """

    core_seconds: float | None = None
    machine: str | None = None


@dataclass(frozen=True)
class EffortFile:
    """The efforts of a run's commands, a line each: a run that is stopped and goes on has several.

    Args:
        path: of the file.
    """

    path: Path

    def add(self, core_seconds: float | None) -> None:
        """Note that a command has ended.

        Args:
            core_seconds: what it took; None: not known, and nothing is noted.
        """
        if core_seconds is None:
            return
        entry = {"core_seconds": round(core_seconds, 2), "machine": describe_machine()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def read(self) -> Effort:
        """All of it; nothing where no command was counted, or the file is damaged."""
        if not self.path.is_file():
            return Effort()
        try:
            entries = [
                Effort(**json.loads(line)) for line in self.path.read_text("utf-8").splitlines()
            ]
        except (ValueError, TypeError):
            return Effort()
        seconds = sum(entry.core_seconds or 0.0 for entry in entries)
        return Effort(round(seconds, 2), entries[-1].machine) if entries else Effort()


def sum_known(files: Iterable[EffortFile]) -> float | None:
    """What several runs took together; None where one was not counted.

    Args:
        files: of the runs.
    """
    efforts = [file.read().core_seconds for file in files]
    known_efforts = [seconds for seconds in efforts if seconds is not None]
    return round(sum(known_efforts), 2) if len(known_efforts) == len(efforts) else None


def describe_machine() -> str:
    """The processor and how many cores there are."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_text("utf-8").splitlines()
        name = next(
            (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
            name,
        )
    return f"{name}, {os.cpu_count()} cores"
