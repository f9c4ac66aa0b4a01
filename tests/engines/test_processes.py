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

from submodel.algorithm.types import Assignment, Bundle
from submodel.engines.processes.group import deal
from submodel.engines.processes.launch import free_port, launch
from submodel.errors import SubmodelError
from submodel.federation.flower.family import relatives, runs
from submodel.runs.checkpoint import saved_round
from submodel.runs.loop import RunFolder
from tests.support.commands import Command
from tests.support.common import SCHEMES

SMALL: dict[str, Any] = {
    "model": {"name": "cnn", "width": 8},
    "clients": {"count": 12, "per_round": 5},
    "train": {"rounds": 2, "evaluate_every": 2},
    "engine": {"batching": "never"},
}
TINY = {"name": "mlp", "width": 8}
CASES: dict[str, dict[str, Any]] = {
    **{name: {"scheme": scheme} for name, scheme in SCHEMES.items()},
    "coordinates": {
        "scheme": {"name": "random", "granularity": "coordinate"},
        "merge": {"rule": "fill_in"},
    },
    "partition": {
        "scheme": {"name": "partition"},
        "clients": {**SMALL["clients"], "capacities": ["1/5"]},
    },
    "importance": {"scheme": {"name": "importance", "scope": "global"}},
    "weighted, output step": {
        "merge": {"weights": "examples"},
        "train": {**SMALL["train"], "output_step": 50.0},
    },
    **{
        f"server {name}": {"server": {"name": name}, "merge": {"rule": "fill_in"}}
        for name in ("momentum", "adam", "yogi")
    },
    "hierarchical": {
        "scheme": {"name": "hierarchical", "cells": 2, "every": 3},
        "clients": {**SMALL["clients"], "capacities": [0.5]},
        "train": {"rounds": 3, "evaluate_every": 3},
    },
    "pruned": {
        "scheme": {"name": "pruned", "granularity": "coordinate", "every": 1},
        "clients": {**SMALL["clients"], "capacities": [0.5]},
    },
    "stacked": {"engine": {"batching": "always"}},
    "ordered": {"scheme": {"name": "ordered", "distill": 0.5}, "model": TINY},
    "unbiased": {
        "scheme": {"name": "unbiased"},
        "merge": {"rule": "fill_in"},
        "model": TINY,
    },
    "masked-sgd": {
        "model": TINY,
        "scheme": {"name": "masked-sgd", "sequence": "rolling"},
        "clients": {"count": 1, "per_round": 1, "capacities": [0.5]},
        "local": {"steps": 3},
    },
}


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_any_number_of_processes_gives_the_bytes_of_one(processes: int) -> None:
    cases = json.dumps({name: {**SMALL, **case} for name, case in CASES.items()})
    shared = {**os.environ, "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.ranks", cases],
            env={**shared, "RANK": str(rank)},
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * processes
    results = {line["case"]: line for line in map(json.loads, said[0].splitlines())}
    assert results.keys() == CASES.keys()
    for case, result in results.items():
        assert result["same_lines"] or case == "stacked", result
        if case == "stacked":  # who shares a stack changes the order of float32 sums
            assert result["largest_difference"] < 1e-5
        else:
            assert result["same_bytes"], result
            assert result["same_memory"], result


def command(out: Path, rounds: int, *options: str, batching: str = "never") -> list[str]:
    settings = [
        *("model.width=8", "clients.count=12", "clients.per_round=5"),
        f"engine.batching={batching}",
        *("train.evaluate_every=10", "train.checkpoint_every=7", f"train.rounds={rounds}"),
    ]
    sets = [part for setting in settings for part in ("--set", setting)]
    return [sys.executable, "-m", "submodel", "train", *sets, *options, "--out", str(out)]


def hash_of(out: Path) -> str:
    text: str = json.loads((out / "summary.json").read_text())["model_sha256"]
    return text


def test_a_process_that_dies_ends_the_run_and_leaves_it_resumable(tmp_path: Path) -> None:
    rounds = 40
    subprocess.run(command(tmp_path / "whole", rounds), check=True, capture_output=True)
    broken = tmp_path / "broken"
    start = command(broken, rounds, "--processes", "2")
    with subprocess.Popen(start, stdout=subprocess.PIPE, text=True) as run:
        deadline = time.monotonic() + 240
        while len(RunFolder(broken).metrics()) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        (second,) = [one for one in relatives(run.pid) if one.environ()["RANK"] == "1"]
        second.kill()
        assert run.stdout is not None
        said = run.stdout.read()
    assert run.returncode == 130
    assert "another process of the run was lost" in said
    assert f"continue with: submodel resume {broken}" in said
    resume = [sys.executable, "-m", "submodel", "resume", str(broken)]
    subprocess.run(resume, check=True, capture_output=True, timeout=120)
    assert hash_of(broken) == hash_of(tmp_path / "whole")


def test_a_stopped_run_of_two_processes_with_stacks_ends_as_an_undisturbed_one(
    tmp_path: Path,
) -> None:
    rounds = 40
    whole, stopped = (
        command(tmp_path / name, rounds, "--processes", "2", batching="auto")
        for name in ("whole", "stopped")
    )
    subprocess.run(whole, check=True, capture_output=True)
    with subprocess.Popen(stopped, stdout=subprocess.PIPE, text=True) as run:
        deadline = time.monotonic() + 240
        while len(RunFolder(tmp_path / "stopped").metrics()) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        run.send_signal(signal.SIGINT)
        assert run.stdout is not None
        run.stdout.read()
    assert run.returncode == 130
    resume = [sys.executable, "-m", "submodel", "resume", str(tmp_path / "stopped")]
    subprocess.run(resume, check=True, capture_output=True, timeout=120)
    assert hash_of(tmp_path / "stopped") == hash_of(tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_processes_end_with_their_launcher_and_leave_a_resumable_run(
    number: signal.Signals, tmp_path: Path, submodel: Command
) -> None:
    run = tmp_path / "run"
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        launcher = subprocess.Popen(
            command(run, 10**6, "--processes", "2"), stdout=subprocess.DEVNULL
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    with launcher:
        deadline = time.monotonic() + 240
        while len(RunFolder(run).metrics()) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        workers = relatives(launcher.pid)
        assert len(workers) == 2
        launcher.send_signal(number)
    deadline = time.monotonic() + 240
    while any(map(runs, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(runs, workers))
    saved = saved_round(run / "checkpoints")
    assert saved >= 3  # not only every seventh round: they had time to save their last one
    settings = "--set", f"train.rounds={saved + 1}", "--set", "engine.name=local"
    result = submodel("resume", run, *settings)
    assert result.returncode == 0, result.stderr
    assert [line["round"] for line in RunFolder(run).metrics()] == list(range(1, saved + 2))


def test_no_more_processes_are_started_than_the_machine_can_bear() -> None:
    with pytest.raises(SubmodelError, match="are too many for this machine"):
        launch(["train"], 10**6)


def bundle(clients: int, overhead: float, work: float) -> Bundle:
    return Bundle([Assignment(0, c, 1.0) for c in range(clients)], overhead, work)


def longest(hands: list[list[Bundle]]) -> float:
    return max(sum(b.cost for b in hand) for hand in hands)


def test_everything_is_dealt_once_and_evenly() -> None:
    bundles = [bundle(n, 1.0, 2.0 * n) for n in (1, 2, 3, 4, 5, 6)]
    for processes in (1, 2, 3, 7):
        hands = deal(bundles, processes)
        assert len(hands) == processes
        assert sum(len(b.assignments) for hand in hands for b in hand) == 21
        if processes < 4:
            total = sum(b.cost for hand in hands for b in hand)
            assert longest(hands) <= 1.1 * total / processes
    assert deal(bundles, 1) == [sorted(bundles, key=lambda b: -b.cost)]  # nothing is split


def test_a_stack_is_split_only_if_that_is_sooner() -> None:
    assert [len(hand) for hand in deal([bundle(8, 1.0, 8.0)], 2)] == [1, 1]
    assert sorted(len(hand) for hand in deal([bundle(8, 8.0, 0.1)], 2)) == [1, 1]  # 8.05 < 8.1
    one = bundle(1, 1.0, 8.0)
    assert sorted(map(len, deal([one], 2))) == [0, 1]  # one client cannot be


def test_torchrun_itself_starts_it_too(tmp_path: Path) -> None:
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2",
             "--master-addr=127.0.0.1", f"--master-port={free_port()}"]  # fmt: skip
    for arguments in (command(tmp_path / "one", 2), [*start, *command(tmp_path / "two", 2)[1:]]):
        done = subprocess.run(
            arguments,
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert hash_of(tmp_path / "two") == hash_of(tmp_path / "one")
