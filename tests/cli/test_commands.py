"""The commands for users: output, refused options and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.test_json import DRY_RUN
from tests.support.commands import Command, process
from tests.support.forked import start_command

pytestmark = pytest.mark.slow

FAST = ["--set", "train.rounds=2", "--set", "model.name=mlp", "--set", "model.width=16"]


def test_train_show_and_resume(tmp_path: Path, submodel: Command) -> None:
    result = process("train", *FAST, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "round 2/2: train loss" in result.stdout
    assert "cost of one client by capacity" in result.stdout
    assert "curves: runs/digits/curves.png" in result.stdout
    assert (tmp_path / "runs/digits/curves.png").is_file()
    shown = submodel("show", tmp_path / "runs/digits")
    assert "test accuracy" in shown.stdout
    assert "model sha256" in shown.stdout
    assert "is finished" in submodel("resume", tmp_path / "runs/digits").stdout
    again = submodel("train", *FAST, cwd=tmp_path)
    assert "runs/digits-2" in again.stdout


LIGHT = {
    "version": (["--version"], 0, "submodel "),
    "help": (["--help"], 0, "reproduce"),
    "help of a command": (["train", "--help"], 0, "--processes"),
    "a federation": (["federation", "init", "--host", "fl.example.org"], 0, "made federation"),
    "a device": (["join", "fl.example.org", "--data", "."], 2, "device: no such folder"),
}


@pytest.mark.parametrize("case", LIGHT)
def test_what_needs_no_pytorch_does_not_load_it(case: str, tmp_path: Path) -> None:
    """Loading PyTorch takes seconds, and on a device hundreds of megabytes of memory."""
    arguments, status, printed = LIGHT[case]
    code = "import sys; sys.modules['torch'] = None; from submodel.cli import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == status, result.stderr
    assert printed in result.stdout + result.stderr


def test_commands_of_other_packages_are_loaded_when_they_are_asked_for() -> None:
    code = (
        "import atexit, sys; from submodel.cli import main; "
        "atexit.register(lambda: print('submodel_lab' in sys.modules)); main()"
    )
    for words, is_loaded in ((["train", "--help"], "False"), (["study", "--help"], "True")):
        command = [sys.executable, "-c", code, *words]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        assert result.stdout.split()[-1] == is_loaded


def test_names_are_found_when_they_are_used() -> None:
    code = (
        "import sys, submodel; assert 'torch' not in sys.modules; "
        "assert set(submodel.__all__) <= set(dir(submodel)); "
        "assert all(hasattr(submodel, name) for name in submodel.__all__); "
        "assert callable(submodel.compare);"
        "assert not hasattr(submodel, 'nothing') and not hasattr(submodel, '_nothing')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert result.returncode == 0, result.stderr


def test_a_dry_run_tells_what_a_run_takes_and_makes_nothing(
    tmp_path: Path, submodel: Command
) -> None:
    result = submodel("train", *FAST, "--dry-run", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    content = json.loads(result.stdout)
    assert content.keys() == set(DRY_RUN.split())
    assert content["rounds"] == 2
    assert content["seconds"] == pytest.approx(sum(p["seconds"] for p in content["phases"]))
    assert [row["capacity"] for row in content["capacities"]] == [1, 0.5, 0.25, 0.125]
    assert list(tmp_path.iterdir()) == []


def test_cost_says_by_how_much_things_shrink(submodel: Command) -> None:
    result = submodel(
        "cost", "--set", "model.name=preresnet18", "--set", 'clients.capacities=["1/4", "1/16"]'
    )
    assert result.returncode == 0, result.stderr
    rows = [line.split("│") for line in result.stdout.splitlines() if line.startswith("│")]
    table = {row[1].strip(): [cell.strip() for cell in row[2:-1]] for row in rows}
    assert table["1"][1] == "100.0%"
    assert table["0.25"][1] == "6.3%"
    assert table["0.0625"][1] == "0.4%"


BAD = {
    "missing file": (["train", "nowhere.toml"], "nowhere.toml: No such file"),
    "a folder": (["train", "."], "Is a directory"),
    "broken TOML": (["train", "broken.toml"], "broken.toml: not valid TOML"),
    "wrong type": (["train", "--set", "train.rounds=many"], "train.rounds: 'many' is not a whole"),
    "capacity 0": (["train", "--set", "clients.capacities=[0]"], "0 is not in (0, 1]"),
    "capacity 1.5": (["cost", "--set", "clients.capacities=[1.5]"], "1.5 is not in (0, 1]"),
    "labels": (["train", "--set", "data.labels_per_client=12"], "more than the 10 classes"),
    "windows": (["train", "--set", "scheme.windows=999"], "scheme.windows: 999 windows are more"),
    "empty client": (["train", "--set", "clients.count=9999"], "set data.examples_per_client"),
    "unknown key": (["train", "--set", "clients.cuont=5"], "clients.cuont: no such key"),
    "not a run": (["resume", "."], "not a run"),
    "show nothing": (["show", "nowhere"], "not a run"),
    "score nothing": (["score", "nowhere"], "not a run"),
    "export nothing": (["export", "nowhere"], "not a run"),
    "fit nothing": (["fit", "nowhere", "--capacity", "1/2"], "not a run"),
    "generate nothing": (["generate", "nowhere"], "not a run"),
    "a file as run": (["show", "broken.toml"], "not a run"),
    "a model that is none": (["inspect", "resnet"], "'resnet' is not one of mlp, cnn"),
    "a shape that is none": (["inspect", "cnn", "--input", "3,x"], "is not a shape such as"),
    "a capacity that is none": (["inspect", "cnn", "--capacities", "1,half"], "half"),
    "an amount that is none": (["plan", "--memory", "much"], "much"),
    "no budget": (["plan"], "give a budget"),
    "data that is none": (["data", "mnits"], "'mnits' is not one of digits"),
    "ways that are none": (["compare", "rollin"], "'rollin' is not one of"),
    "an experiment that is none": (["reproduce", "figure0"], "'figure0' is not one of"),
    "a study's setting": (["study", "residual", "--set", "x=1"], "settings are"),
    "no federation": (["federation", "add", "phone"], "federation"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_clear_error_with_exit_status_2(
    case: str, tmp_path: Path, submodel: Command
) -> None:
    (tmp_path / "broken.toml").write_text("[model\nname = 3")
    arguments, message = BAD[case]
    result = submodel(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr + result.stdout
    assert not (tmp_path / "runs").exists()


def test_every_mistake_in_a_file_is_reported_with_its_place(
    tmp_path: Path, submodel: Command
) -> None:
    (tmp_path / "config.toml").write_text('seed = -1\n[local]\nlr = "x"\n[scheme]\nnam = "full"\n')
    result = submodel("train", "config.toml", cwd=tmp_path)
    assert result.returncode == 2
    lines = result.stderr.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("error: config.toml: ") for line in lines)


@pytest.mark.parametrize(("number", "words"), [(signal.SIGINT, []), (signal.SIGTERM, ["--json"])])
def test_ctrl_c_leaves_a_resumable_run(
    tmp_path: Path, number: signal.Signals, words: list[str]
) -> None:
    options = ["--engine", "local", "--set", "train.rounds=100000", "--set",
               "train.evaluate_every=1"]  # fmt: skip
    out, errors = tmp_path / "out", tmp_path / "errors"
    printed = errors if words else out  # with --json, the output is for the result
    process = start_command(
        "train", "--out", tmp_path / "run", *options, *words, stdout=out, stderr=errors
    )
    while process.is_alive() and not (printed.exists() and "\nround 2/" in printed.read_text()):
        time.sleep(0.02)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join()
    assert process.exitcode == 130
    assert f"continue with: submodel resume {tmp_path / 'run'}" in printed.read_text()
    assert list((tmp_path / "run/checkpoints").glob("round-*"))
    assert not words or out.read_text() == ""
