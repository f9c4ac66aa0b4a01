"""How a run or an experiment stands while it goes on: its lines are read on from the last ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from submodel.errors import SubmodelError, plain
from submodel.experiments.outline import ExperimentOutline, is_experiment, is_run, read_experiment
from submodel.report.listing import rows_of
from submodel.runs.folder import RunFolder
from submodel.runs.metrics import Metrics, is_number
from submodel.runs.outline import RunOutline, is_line, read_outline, sum_of

_MOST_AT_ONCE, _MOST_ROSTER, _MOST_LOG = 2**26, 2**26, 2**16  # bytes
_MOST_WARNINGS = 3
_RECENT = 20  # rounds that tell how long the next ones take


class GrowingLines:
    """The lines of a metrics file, kept up to date.

    There need not be a file yet. One that is written anew, as when a run is resumed, is read anew.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._forget()

    def _forget(self) -> None:
        self._inode = self._position = 0
        self._rest = b""
        self._by_round: dict[int, Metrics] = {}

    def read(self) -> list[Metrics]:
        """All complete lines, by their rounds."""
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
    """A device of a run over Flower, as the file of its server has it."""

    name: str
    is_present: bool
    problem: str


@dataclass(frozen=True)
class RunView:
    """A run at one moment: its outline and rounds; over Flower, known devices and last warnings."""

    outline: RunOutline
    lines: Sequence[Metrics]
    devices: Sequence[KnownDevice]
    warnings: Sequence[str]

    @property
    def evaluated_lines(self) -> list[Metrics]:
        """The rounds that have scores."""
        return [line for line in self.lines if "test_loss" in line]

    def seconds_left(self) -> float | None:
        """The time of the remaining rounds at the pace of the last ones; None where unknown."""
        recent_lines = self.lines[-_RECENT:]
        if not recent_lines or not self.outline.rounds_planned:
            return None
        seconds = sum(map(seconds_of, recent_lines)) / len(recent_lines)
        return max(0, self.outline.rounds_planned - self.outline.rounds) * seconds


def seconds_of(line: Metrics) -> float:
    """The time of a round."""
    phases = line.get("seconds")
    return float(sum_of(phases, *phases)) if isinstance(phases, Mapping) else 0.0


class Follower:
    """Looks at the folder of a run or an experiment again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[Path, GrowingLines] = {}

    def look(self) -> RunView | ExperimentOutline | None:
        """How it stands now; None while there is nothing."""
        if is_run(self.path):
            return self.view()
        return read_experiment(self.path) if is_experiment(self.path) else None

    def view(self) -> RunView:
        """How the run stands now."""
        folder = RunFolder(self.path)
        outline = read_outline(self.path)
        return RunView(outline, self._lines_of(self.path), _devices(folder), _warnings(folder))

    def scores(self, run: RunOutline) -> list[float]:
        """The accuracy of a run of the experiment, round by round; else its loss."""
        key = "test_accuracy" if "accuracy" in run.scores else "test_loss"
        return [line[key] for line in self._lines_of(run.path) if is_number(line.get(key))]

    def _lines_of(self, run: Path) -> list[Metrics]:
        if run not in self._lines:
            self._lines[run] = GrowingLines(RunFolder(run).metrics_file)
        return self._lines[run].read()


def look_once(path: Path) -> RunView | ExperimentOutline:
    """How a run or an experiment stands; raises `SubmodelError` where there is neither."""
    sight = Follower(path).look()
    if sight is None:
        raise SubmodelError(f"{plain(path, 200)}: neither a run nor an experiment")
    return sight


def snapshot(path: Path) -> dict[str, Any]:
    """How a run or an experiment stands, as plain values: `submodel watch --json`."""
    sight = look_once(path)
    if isinstance(sight, RunView):
        (row,) = rows_of(sight.outline)
        return {
            **row.as_json(),
            "seconds_left": sight.seconds_left() if sight.outline.phase == "running" else None,
            "last_round": sight.lines[-1] if sight.lines else None,
            "devices": [asdict(device) for device in sight.devices],
            "warnings": list(sight.warnings),
        }
    row, *runs = rows_of(sight, with_runs=True)
    return {
        **row.as_json(),
        "seconds_left": sight.seconds_left(),
        "begun_runs": [run.as_json() for run in runs],
    }


def _devices(folder: RunFolder) -> list[KnownDevice]:
    """The devices that the server knows; their names are untrusted text."""
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
