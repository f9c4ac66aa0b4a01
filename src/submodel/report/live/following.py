"""State of a run or an experiment: rounds, devices, time left."""

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
_RECENT = 20  # rounds to estimate the time of the next ones from


@dataclass(frozen=True)
class KnownDevice:
    """Device of a run over Flower, as in the file of its server."""

    name: str
    is_present: bool
    problem: str


@dataclass(frozen=True)
class RunView:
    """State of a run: outline and rounds; over Flower also devices and last warnings."""

    outline: RunOutline
    lines: Sequence[Metrics]
    devices: Sequence[KnownDevice]
    warnings: Sequence[str]

    @property
    def evaluated_lines(self) -> list[Metrics]:
        """Rounds with scores."""
        return [line for line in self.lines if "test_loss" in line]

    def seconds_left(self) -> float | None:
        """Estimate the time of the remaining rounds from the last ones; None if unknown."""
        recent_lines = self.lines[-_RECENT:]
        if not recent_lines or not self.outline.rounds_planned:
            return None
        seconds = sum(map(seconds_of, recent_lines)) / len(recent_lines)
        return max(0, self.outline.rounds_planned - self.outline.rounds) * seconds


def seconds_of(line: Metrics) -> float:
    """Return the time of a round."""
    phases = line.get("seconds")
    return float(sum_of(phases, *phases)) if isinstance(phases, Mapping) else 0.0


def rounds_of(path: Path) -> list[Metrics]:
    """Return the complete lines of a run in the order of rounds."""
    by_round = {line["round"]: line for line in read_lines(RunFolder(path).metrics_file)}
    return [by_round[round_] for round_ in sorted(by_round)]


def view_run(path: Path) -> RunView:
    """Read the present state of a run."""
    folder = RunFolder(path)
    return RunView(read_outline(path), rounds_of(path), _devices(folder), _warnings(folder))


def read_view(path: Path) -> RunView | ExperimentOutline | None:
    """Read the present state of a run or an experiment; None if there is neither."""
    if is_run(path):
        return view_run(path)
    return read_experiment(path) if is_experiment(path) else None


def require_view(path: Path) -> RunView | ExperimentOutline:
    """Read the present state; raise `SubmodelError` if there is no run or experiment."""
    view = read_view(path)
    if view is None:
        raise SubmodelError(f"{plain(path, 200)}: neither a run nor an experiment")
    return view


def snapshot(path: Path) -> dict[str, Any]:
    """Return the present state as plain values, for `submodel watch --json`."""
    view = require_view(path)
    if isinstance(view, ExperimentOutline):
        return {
            **plain_row(view),
            "seconds_left": view.seconds_left(),
            "begun_runs": [plain_row(run) for run in view.runs],
        }
    return {
        **plain_row(view.outline),
        "seconds_left": view.seconds_left() if view.outline.phase == "running" else None,
        "last_round": view.lines[-1] if view.lines else None,
        "devices": [asdict(device) for device in view.devices],
        "warnings": list(view.warnings),
    }


def _devices(folder: RunFolder) -> list[KnownDevice]:
    """Read the devices of the server; their names are untrusted text."""
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
    """Return the last warnings of the server's log."""
    content = b""
    with suppress(OSError), folder.log_file.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - _MOST_LOG))
        content = file.read(_MOST_LOG)
    lines = content.decode("utf-8", "replace").splitlines()
    return [plain(line, 200) for line in lines if " WARNING " in line][-_MOST_WARNINGS:]
