"""Contract 6: any number of processes gives the same bytes; contract 7 holds for them too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from submodel.run import RunFolder
from tests.common import SCHEMES

SETTINGS = ["model.name=cnn", "model.width=8", "clients.count=12", "clients.per_round=5",
            "train.rounds=2", "train.evaluate_every=2",
            "engine.batching=never"]  # fmt: skip


def command(out: Path, *settings: str, processes: int | None = None) -> list[str]:
    sets = [part for setting in (*SETTINGS, *settings) for part in ("--set", setting)]
    several = [] if processes is None else ["--processes", str(processes)]
    return [sys.executable, "-m", "submodel", "train", *sets, *several, "--out", str(out)]


def hash_of(out: Path) -> str:
    text: str = json.loads((out / "summary.json").read_text())["model_sha256"]
    return text


def lines(out: Path) -> list[dict[str, Any]]:
    history = RunFolder(out).metrics()
    for line in history:
        # sums of losses are added in another order: equal to the last digits, not to the bit
        line["train_loss"] = round(line["train_loss"], 10)
        del line["seconds"]
    return history


CASES = {
    **{name: [f"scheme.{k}={v}" for k, v in scheme.items()] for name, scheme in SCHEMES.items()},
    "coordinates": ["scheme.name=random", "scheme.granularity=coordinate", "merge.rule=fill_in"],
    "weighted": ["merge.weights=examples", "train.output_step=50.0"],
}


@pytest.mark.parametrize("case", CASES)
def test_two_and_three_processes_give_the_bytes_of_one(case: str, tmp_path: Path) -> None:
    for name, processes in {"one": None, "two": 2, "three": 3}.items():
        if processes == 3 and case not in ("rolling", "coordinates"):
            continue
        done = subprocess.run(
            command(tmp_path / name, *CASES[case], processes=processes),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert hash_of(tmp_path / name) == hash_of(tmp_path / "one")
        assert lines(tmp_path / name) == lines(tmp_path / "one")


def test_stacks_differ_between_processes_only_by_the_order_of_sums(tmp_path: Path) -> None:
    for name, processes in {"one": None, "two": 2}.items():
        subprocess.run(
            command(tmp_path / name, "engine.batching=always", processes=processes),
            check=True,
            capture_output=True,
            timeout=120,
        )
    models = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "two")]
    for name, tensor in models[0].items():
        torch.testing.assert_close(models[1][name], tensor, rtol=1e-4, atol=1e-5)


def test_torchrun_itself_starts_it_too(tmp_path: Path) -> None:
    subprocess.run(command(tmp_path / "one"), check=True, capture_output=True)
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2",
             "--master-addr=127.0.0.1", "--master-port=29531"]  # fmt: skip
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run(
        [*start, *command(tmp_path / "two")[1:]],
        check=True,
        capture_output=True,
        env=environment,
        timeout=120,
    )
    assert hash_of(tmp_path / "two") == hash_of(tmp_path / "one")


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(task) for task in tasks]


def test_a_process_that_dies_ends_the_run_and_leaves_it_resumable(tmp_path: Path) -> None:
    longer = ["train.rounds=30", "train.checkpoint_every=7", "train.evaluate_every=10"]
    subprocess.run(command(tmp_path / "whole", *longer), check=True, capture_output=True)
    broken = tmp_path / "broken"
    with subprocess.Popen(
        command(broken, *longer, processes=2), stdout=subprocess.PIPE, text=True
    ) as run:
        deadline = time.monotonic() + 60
        while len(RunFolder(broken).metrics()) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(children(run.pid)[1], signal.SIGKILL)
        assert run.stdout is not None
        said = run.stdout.read()
    assert run.returncode == 130
    assert "another process of the run was lost" in said
    assert f"continue with: submodel resume {broken}" in said
    subprocess.run(
        [sys.executable, "-m", "submodel", "resume", str(broken)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert hash_of(broken) == hash_of(tmp_path / "whole")
    assert lines(broken) == lines(tmp_path / "whole")
