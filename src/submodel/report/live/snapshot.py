"""How a run or an experiment stands in one moment, as plain values for programs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from submodel.experiments.outline import ExperimentOutline
from submodel.report.listing import rows_of
from submodel.report.live.following import RunView
from submodel.report.live.run_screen import run_seconds_left
from submodel.report.live.terminal import look_once


def snapshot(path: Path) -> dict[str, Any]:
    """What `submodel watch --json` prints: how it stands now, and what a screen shows beside that.

    Args:
        path: the folder of a run or an experiment.
    """
    sight = look_once(path)
    return _of_run(sight) if isinstance(sight, RunView) else _of_experiment(sight)


def _of_run(view: RunView) -> dict[str, Any]:
    (row,) = rows_of(view.outline)
    is_running = view.outline.phase == "running"
    return {
        **row.as_json(),
        "seconds_left": run_seconds_left(view) if is_running else None,
        "last_round": view.lines[-1] if view.lines else None,
        "devices": [asdict(device) for device in view.devices],
        "warnings": list(view.warnings),
    }


def _of_experiment(outline: ExperimentOutline) -> dict[str, Any]:
    row, *runs = rows_of(outline, with_runs=True)
    return {
        **row.as_json(),
        "seconds_left": outline.seconds_left(),
        "begun_runs": [run.as_json() for run in runs],
    }
