"""The plain installation, which is a device's: what it does without, and what it says then."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

HEAVY = ("scipy", "sklearn", "matplotlib")
COMMANDS = f"""
import json, sys
for name in {HEAVY!r}:
    sys.modules[name] = None  # as if it was not installed: importing it fails
from submodel.cli import main
import submodel.federation.device, submodel.federation.own_data, submodel.local.training
import submodel.federation.flower.client_app
for words in json.loads(sys.argv[1]):
    sys.argv = ["submodel", *words]
    try:
        main()
    except SystemExit as end:
        print(f"\\nexit {{end.code or 0}}", flush=True)
"""
SETTINGS = (
    *("model.name=mlp", "model.width=4", "data.size=8", "data.partition=iid", "train.rounds=1"),
    *("clients.count=2", "clients.per_round=1", "engine.name=local"),
)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for part, count in (("train", 6), ("test", 2)):
        for label in ("cat", "dog"):
            folder = tmp_path / "pictures" / part / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "pictures"


def test_a_device_needs_none_of_what_only_servers_have(tmp_path: Path, pictures: Path) -> None:
    """What a device runs is there, a run does without curves, and the rest names the extra."""
    given = [f"--set={text}" for text in (*SETTINGS, f"data.name=folder:{pictures}")]
    out = {name: str(tmp_path / name) for name in ("digits", "run", "compared", "study")}
    commands = [
        ["join", "--help"],
        ["train", *given, "--out", out["run"]],
        ["train", "--out", out["digits"]],
        ["compare", "static,full", *given, "--out", out["compared"]],
        ["study", "convergence", "--out", out["study"]],
    ]
    run = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    ends = [line for line in done.stdout.splitlines() if line.startswith("exit ")]
    assert ends == ["exit 0", "exit 0", "exit 2", "exit 2", "exit 2"]
    assert "--credentials" in done.stdout
    install = "pip install 'submodel[server]'"
    for sentence in (
        "no curves: a figure needs the package 'matplotlib': ",
        "error: the data 'digits' needs the package 'sklearn': ",
        "error: a report needs the package 'matplotlib': ",
        "error: the lab needs the package 'scipy': ",
    ):
        assert sentence + install in done.stderr.splitlines()
    assert (tmp_path / "run/summary.json").is_file()
    assert not (tmp_path / "run/curves.png").exists()
    assert "curves:" not in done.stdout
    assert not (tmp_path / "compared/runs").exists()  # told before anything runs
