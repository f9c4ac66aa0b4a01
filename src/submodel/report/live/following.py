"""How a run or an experiment stands: its rounds, its devices, the time left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from submodel.comparison.outline import ExperimentOutline, is_experiment, read_experiment
from submodel.core.errors import SubmodelError, plain
from submodel.report.listing import plain_row
from submodel.runs.folder import RunFolder, is_run
from submodel.runs.metrics import Metrics
from submodel.runs.outline import RunOutline, read_lines, read_outline, sum_of

_MOST_ROSTER, _MOST_LOG = 2**26, 2**16  # bytes
_MOST_WARNINGS = 3
_RECENT = 20  # rounds that tell how long the next ones take


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


def rounds_of(path: Path) -> list[Metrics]:
    """The lines of a run that are complete, by their rounds."""
    by_round = {line["round"]: line for line in read_lines(RunFolder(path).metrics_file)}
    return [by_round[round_] for round_ in sorted(by_round)]


def view_run(path: Path) -> RunView:
    """How a run stands now."""
    folder = RunFolder(path)
    return RunView(read_outline(path), rounds_of(path), _devices(folder), _warnings(folder))


def look(path: Path) -> RunView | ExperimentOutline | None:
    """How a run or an experiment stands now; None while there is neither."""
    if is_run(path):
        return view_run(path)
    return read_experiment(path) if is_experiment(path) else None


def look_once(path: Path) -> RunView | ExperimentOutline:
    """How a run or an experiment stands; raises `SubmodelError` where there is neither."""
    sight = look(path)
    if sight is None:
        raise SubmodelError(f"{plain(path, 200)}: neither a run nor an experiment")
    return sight


def snapshot(path: Path) -> dict[str, Any]:
    """How a run or an experiment stands, as plain values: `submodel watch --json`."""
    sight = look_once(path)
    if isinstance(sight, ExperimentOutline):
        return {
            **plain_row(sight),
            "seconds_left": sight.seconds_left(),
            "begun_runs": [plain_row(run) for run in sight.runs],
        }
    return {
        **plain_row(sight.outline),
        "seconds_left": sight.seconds_left() if sight.outline.phase == "running" else None,
        "last_round": sight.lines[-1] if sight.lines else None,
        "devices": [asdict(device) for device in sight.devices],
        "warnings": list(sight.warnings),
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
