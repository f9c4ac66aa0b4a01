"""Watching a run or an experiment, on a terminal and through a pipe."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from submodel.comparison.outline import ExperimentProgress, PlannedRun, mark_active, read_experiment
from submodel.report.live.following import rounds_of, view_run
from submodel.report.live.screens import experiment_screen, run_screen
from submodel.report.live.terminal import watch
from tests.support.commands import Command
from tests.support.run_folders import evaluated, round_entries, write_run, write_summary

ESCAPES = "\x1b[2J\x1b]0;title\x07[bold red]x"


def rendered_lines(screen: RenderableType, width: int) -> list[str]:
    console = Console(width=width, markup=False, file=io.StringIO(), force_terminal=False)
    with console.capture() as capture:
        console.print(screen)
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [40, 80, 160])
def test_a_screen_says_all_of_a_run_in_the_width_there_is(tmp_path: Path, width: int) -> None:
    capacities = {"capacity_accuracy": {"1.0": 0.5, "0.25": 0.125}}
    lines = [
        evaluated(1, 0.25, **capacities),
        round_entries(2, refused={"7": "too large"}, missing={"3": "no answer"}),
        evaluated(3, 0.5, **capacities),
    ]
    folder = write_run(tmp_path / "run", lines, rounds=6)
    with folder.lock():
        view = view_run(folder.path)
    shown = rendered_lines(run_screen(view, time.time(), width, 24), width)
    assert all(len(line) <= width for line in shown)
    assert view.seconds_left() == 6.0  # three rounds of two seconds
    text = " ".join(" ".join(shown).split())
    for words in ("running", "round 3/6", "50%", "6 s left", "train 75%, merge 25%"):
        assert words in text
    if width > 40:  # otherwise they are folded
        for words in ("50.0%", "0.25 12.5%", "client 7 in round 2: too large", "no answer"):
            assert words in text


def test_strangers_cannot_steer_the_terminal(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [evaluated(1, 0.5, refused={"1": ESCAPES})])
    device = {"client": 0, "report": {"name": ESCAPES}, "present": False, "last_problem": ESCAPES}
    folder.devices_file.write_text(json.dumps([device, {"report": 3}, 7]), "utf-8")
    folder.log_file.write_text(f"2026 WARNING {ESCAPES}\n2026 INFO nothing\n", "utf-8")
    folder.failed_file.write_text(ESCAPES, "utf-8")
    with folder.lock():
        view = view_run(folder.path)
    text = "\n".join(rendered_lines(run_screen(view, 0.0, 120, 30), 120))
    assert not any(ord(character) < 32 for character in text.replace("\n", ""))
    assert "[bold red]x" in text  # literally, not as markup
    assert "0 of 2 are connected; absent: [2J]0;title[bold red]x" in " ".join(text.split())
    assert "INFO" not in text


def test_a_server_that_waits_for_its_first_device_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [], sections={"engine": {"name": "flower"}})
    with folder.lock():
        view = view_run(folder.path)
    assert "none has reported yet" in " ".join(rendered_lines(run_screen(view, 0.0, 120, 30), 120))


def test_whole_lines_are_read_also_of_a_run_that_was_resumed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [round_entries(1), round_entries(2)])
    assert [line["round"] for line in rounds_of(folder.path)] == [1, 2]
    with folder.metrics_file.open("a", encoding="utf-8") as file:
        file.write('{"round": 3, ')
        file.flush()
        assert len(rounds_of(folder.path)) == 2  # half a line is none
        file.write('"clients": 4}\n')
    assert rounds_of(folder.path)[2]["clients"] == 4
    folder.replace_metrics([round_entries(1)])
    assert [line["round"] for line in rounds_of(folder.path)] == [1]
    folder.metrics_file.unlink()
    assert rounds_of(folder.path) == []


def test_a_pipe_gets_a_line_for_every_evaluated_round_through_stop_and_end(tmp_path: Path) -> None:
    path = tmp_path / "run"
    output = io.StringIO()
    console = Console(file=output, markup=False, width=140)
    watcher = threading.Thread(target=watch, args=(path, console, 0.01), daemon=True)
    watcher.start()  # before there is a run

    def wait_for(words: str) -> None:
        deadline = time.monotonic() + 20
        while words not in output.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert words in output.getvalue()

    folder = write_run(path, [evaluated(1, 0.25), round_entries(2)])
    wait_for("round 1/4: train loss 2.0000, test accuracy 25.0%, test loss 0.7500")
    wait_for("stopped")
    with folder.lock():
        wait_for("running")
        folder.add_metrics(evaluated(4, 0.5))
        wait_for("round 4/4")
        write_summary(folder, 4, evaluated(4, 0.5))
    watcher.join(timeout=20)
    assert not watcher.is_alive()  # it ends with the run
    assert output.getvalue().splitlines()[-1].endswith("finished")
    assert output.getvalue().count("round 1/4") == 1


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Make an experiment with two of four runs active and rounds of ten seconds."""
    write_run(tmp_path / "runs/way/seed-0", [evaluated(4, 0.5)], is_finished=True)
    write_run(tmp_path / "runs/way/seed-1", [evaluated(1, 0.25), evaluated(2, 0.5)])
    names = [("way/seed-0", True), ("way/seed-1", False), ("other/seed-0", False)]
    planned = tuple(PlannedRun(f"runs/{name}", 4, 10.0, has_ended=ended) for name, ended in names)
    progress = ExperimentProgress(1000.0, 2, planned, 40.0, 100.0, 500.0, has_estimates=True)
    progress.write(tmp_path)
    return tmp_path


def test_the_whole_plan_of_an_experiment_has_a_time_left(experiment: Path) -> None:
    with mark_active(experiment):
        outline = read_experiment(experiment)
    assert outline.work == (100 + 40 + 20, 100 + 120 + 500)
    # 20 core-seconds as planned took 60 seconds; 560 are left
    assert outline.seconds_left(now=1060.0) == 560 * 60 / 20
    assert outline.seconds_left(now=1001.0) == 560 / 2  # no pace yet: planned times, two at a time
    for width in (60, 160):
        screen = experiment_screen(outline, 1060.0, width, 24)
        shown = rendered_lines(screen, width)
        assert all(len(line) <= width for line in shown)
        text = " ".join(" ".join(shown).split())
        assert "1/3 runs" in text
        assert "28 min left" in text
        assert "0.04 of at least 0.20 core-hours" in text
    assert read_experiment(experiment).seconds_left(now=1060.0) is None  # no process runs it


def test_the_command_shows_a_snapshot(experiment: Path, submodel: Command) -> None:
    def shown(*words: str | Path) -> Sequence[str]:
        result = submodel("watch", *words)
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()

    assert "1/3 runs" in " ".join(shown(experiment, "--once"))
    assert "round 2/4" in " ".join(shown(experiment / "runs/way/seed-1", "--once"))
    finished = shown(experiment / "runs/way/seed-0")  # ends at once
    assert finished[0] == "round 4/4: train loss 0.5000, test accuracy 50.0%, test loss 0.5000"
    assert f"{experiment / 'no'}" in submodel("watch", experiment / "no", "--once").stderr
    assert "progress.json" in submodel("watch", experiment / "progress.json").stderr


def test_programs_get_one_object(experiment: Path, submodel: Command) -> None:
    run = json.loads(submodel("watch", experiment / "runs/way/seed-1", "--json").stdout)
    assert (run["kind"], run["state"], run["rounds"], run["rounds_planned"]) == (
        "run",
        "stopped",
        2,
        4,
    )
    assert (run["test_accuracy"], run["last_round"]["round"], run["seconds_left"]) == (0.5, 2, None)
    with mark_active(experiment):
        whole = json.loads(submodel("watch", experiment, "--json").stdout)
    assert (whole["kind"], whole["state"], whole["runs"]) == ("experiment", "running", 1)
    assert [row["state"] for row in whole["begun_runs"]] == ["finished", "stopped"]
    assert whole["seconds_left"] > 0
    assert "--web" in submodel("watch", experiment, "--json", "--web").stderr
