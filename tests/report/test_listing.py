"""The list of runs: selection, order and width."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from submodel.comparison.outline import (
    ExperimentOutline,
    ExperimentProgress,
    PlannedRun,
    find_outlines,
    mark_active,
)
from submodel.report.listing import Outline, list_table, rows_of, select_rows, sort_rows
from tests.support.commands import Command
from tests.support.run_folders import evaluated, round_entries, write_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Make three runs and an experiment of four, two of which have started."""
    base = tmp_path / "runs"
    static = {"scheme": {"name": "static"}, "local": {"lr": 0.5}}
    write_run(base / "a", [evaluated(4, 0.5)], is_finished=True)
    write_run(base / "b", [evaluated(2, 0.75)], sections=static)
    failed = write_run(base / "deep" / "c", [round_entries(1)])
    failed.failed_file.write_text("client 3: too large", "utf-8")
    out = base / "compare-x"
    write_run(out / "runs/rolling/seed-0", [evaluated(4, 0.5)], is_finished=True)
    write_run(out / "runs/static/seed-0", [round_entries(1), round_entries(2)])
    planned = [
        PlannedRun(f"runs/{arm}/seed-{seed}", 4, 1.0, has_ended=(arm, seed) == ("rolling", 0))
        for seed in range(2)
        for arm in ("rolling", "static")
    ]
    ExperimentProgress(1000.0, 2, tuple(planned), work_at_begin=2.0).write(out)
    return base


def rows_in(folder: Path, with_runs: bool = False) -> list[Outline]:
    return [row for outline in find_outlines(folder) for row in rows_of(outline, with_runs)]


def names(rows: list[Outline]) -> list[str]:
    return [row.path.name for row in rows]


def test_an_experiment_is_one_row_that_tells_how_far_its_plan_is(runs: Path) -> None:
    rows = {row.path.name: row for row in rows_in(runs)}
    assert rows.keys() == {"a", "b", "c", "compare-x"}
    experiment = rows["compare-x"]
    assert isinstance(experiment, ExperimentOutline)
    assert (experiment.runs_ended, experiment.runs_planned, experiment.phase) == (1, 4, "stopped")
    assert experiment.traffic == 6000 + 3000
    assert len(rows_in(runs, with_runs=True)) == 6
    with mark_active(runs / "compare-x"):  # also between two of its runs
        assert rows_in(runs / "compare-x")[0].phase == "running"
    (outline,) = find_outlines(runs / "compare-x")
    assert outline.work == (6.0, 16.0)  # type: ignore[union-attr]


def test_rows_are_sorted_by_what_matters_most(runs: Path) -> None:
    rows = rows_in(runs)
    assert names(sort_rows(rows, "accuracy")) == ["b", "a", "compare-x", "c"]
    assert names(sort_rows(rows, "loss"))[:2] == ["b", "a"]
    assert names(sort_rows(rows, "state"))[0] == "c"
    assert names(sort_rows(rows, "name", reverse=True))[-1] == "a"


@pytest.mark.parametrize(
    ("conditions", "wanted"),
    [
        (["state=stopped"], ["b", "compare-x"]),
        (["scheme=s*"], ["b"]),
        (["local.lr=5e-1"], ["b"]),
        (["kind=run", "train.rounds=4"], ["a", "b", "c"]),
        (["DEEP"], ["c"]),
        (["static", "state=finished"], []),
    ],
)
def test_conditions_select_rows(runs: Path, conditions: list[str], wanted: list[str]) -> None:
    assert sorted(names(select_rows(rows_in(runs), conditions))) == wanted


@pytest.mark.parametrize("width", [40, 80, 160])
def test_the_table_has_the_columns_there_is_room_for(runs: Path, width: int) -> None:
    console = Console(width=width, record=True, file=None, markup=False, force_terminal=False)
    with console.capture() as capture:
        console.print(list_table(sort_rows(rows_in(runs), "name"), runs, 2000.0, console))
    lines = capture.get().splitlines()
    assert all(len(line) <= width for line in lines)
    assert len(lines) == 5
    assert "traffic" in lines[0] if width == 160 else "state" in lines[0]
    assert "1/4 runs" in capture.get()


def test_the_command_lists_and_says_why_a_run_failed(runs: Path, submodel: Command) -> None:
    result = submodel("runs", cwd=runs.parent)
    assert result.returncode == 0
    assert "runs/deep/c failed: client 3: too large" in result.stdout
    listed = json.loads(submodel("runs", runs, "--all", "--json").stdout)["runs"]
    assert {row["state"] for row in listed} == {"finished", "stopped", "failed"}
    assert next(r for r in listed if r["path"].endswith("/a"))["test_accuracy"] == 0.5
    only = submodel("runs", runs, "--where", "nothing=7")
    assert (only.returncode, "'nothing'" in only.stderr) == (2, True)
    assert "beauty" in submodel("runs", runs, "--sort", "beauty").stderr
    assert "nowhere: " in submodel("runs", runs / "nowhere").stderr


def test_names_of_folders_cannot_steer_the_terminal(tmp_path: Path, submodel: Command) -> None:
    write_run(tmp_path / "[red]\x1b[2Jx", [round_entries(1)], sections={"name": "x"})
    shown = submodel("runs", tmp_path).stdout
    assert "\x1b" not in shown
    assert "[red][2Jx" in shown
