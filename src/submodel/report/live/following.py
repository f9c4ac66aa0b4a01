"""A run as it grows: its lines, read on from where one stopped, and who takes part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from submodel.errors import plain
from submodel.runs.folder import RunFolder
from submodel.runs.metrics import Metrics
from submodel.runs.outline import RunOutline, is_line, read_outline

_MOST_AT_ONCE, _MOST_ROSTER, _MOST_LOG = 2**26, 2**26, 2**16  # bytes
_MOST_WARNINGS = 3


class GrowingLines:
    """The lines of a metrics file, kept up to date by what has been added since.

    Args:
        file: there need not be one yet. One that is written anew, as when a run is resumed, is
            read anew.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._forget()

    def _forget(self) -> None:
        self._inode = self._position = 0
        self._rest = b""
        self._by_round: dict[int, Metrics] = {}

    def read(self) -> list[Metrics]:
        """All that are complete, by their rounds."""
        try:
            with self._file.open("rb") as file:
                status = self._file.stat()
                if status.st_ino != self._inode or status.st_size < self._position:
                    self._forget()
                    self._inode = status.st_ino
                file.seek(self._position)
                while chunk := file.read(_MOST_AT_ONCE):
                    self._position += len(chunk)
                    self._add(chunk)
        except OSError:
            self._forget()
        return [self._by_round[round_] for round_ in sorted(self._by_round)]

    def _add(self, chunk: bytes) -> None:
        *texts, self._rest = (self._rest + chunk).split(b"\n")
        for text in texts:
            with suppress(ValueError):
                line = from_json(text)
                if is_line(line):
                    self._by_round[line["round"]] = line


@dataclass(frozen=True)
class KnownDevice:
    """A device of a run over Flower, as its file has it."""

    name: str
    is_present: bool
    problem: str


@dataclass(frozen=True)
class RunView:
    """All that is shown of a run.

    Args:
        outline: in a few numbers.
        lines: its rounds.
        devices: over Flower, those that are known.
        warnings: the last ones of its server.
    """

    outline: RunOutline
    lines: Sequence[Metrics]
    devices: Sequence[KnownDevice]
    warnings: Sequence[str]

    @property
    def evaluated_lines(self) -> list[Metrics]:
        """The rounds that have scores."""
        return [line for line in self.lines if "test_loss" in line]


class RunFollower:
    """A run that is looked at again and again.

    Args:
        path: its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = GrowingLines(RunFolder(path).metrics_file)

    def view(self) -> RunView:
        """How it stands now."""
        folder = RunFolder(self.path)
        outline = read_outline(self.path)
        return RunView(outline, self._lines.read(), _devices(folder), _warnings(folder))


def _devices(folder: RunFolder) -> list[KnownDevice]:
    """Who is known of a run's devices; strangers chose their names."""
    entries: Any = []
    with suppress(OSError, ValueError), folder.devices_file.open("rb") as file:
        entries = from_json(file.read(_MOST_ROSTER))
    rows = entries if isinstance(entries, list) else []
    return [_device(row) for row in rows if isinstance(row, Mapping)]


def _device(entry: Mapping[str, Any]) -> KnownDevice:
    report = entry.get("report")
    name = report.get("name") if isinstance(report, Mapping) else None
    return KnownDevice(
        plain(name or f"client {entry.get('client')}", 30),
        entry.get("present") is True,
        plain(entry.get("last_problem") or "", 80),
    )


def _warnings(folder: RunFolder) -> list[str]:
    """The last warnings in the server's log."""
    content = b""
    with suppress(OSError), folder.log_file.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - _MOST_LOG))
        content = file.read(_MOST_LOG)
    lines = content.decode("utf-8", "replace").splitlines()
    return [plain(line, 200) for line in lines if " WARNING " in line][-_MOST_WARNINGS:]
