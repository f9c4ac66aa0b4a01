"""Contracts 6 and 7: any number of processes gives the same bytes, with one shared model.

Forked commands are processes like those that are started by themselves.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from torch import Tensor

from submodel.algorithm.execution import Bundle
from submodel.algorithm.types import Assignment, State
from submodel.config import parse, read
from submodel.config.setup import prepare
from submodel.core.errors import SubmodelError
from submodel.engines.processes import group as group_module
from submodel.engines.processes.group import ProcessGroup, deal
from submodel.engines.processes.launch import Follower, Followers, free_port, launch
from submodel.federation.flower.process import descendants, is_running
from submodel.runs import loop
from submodel.runs.checkpoint import model_sha256, saved_round
from submodel.runs.folder import RunFolder
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training
from tests.support.commands import Command, process
from tests.support.forked import start_command
from tests.support.ranks import run_group
from tests.support.schemes import VARIANTS, Sections, joined
from tests.support.text import folder_of

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "model": {"name": "mlp", "width": 8},
    "data": {"examples": 240, "test_examples": 60},
    "clients": {"count": 12, "per_round": 5},
    "train": {"rounds": 2, "evaluate_every": 2},
    "engine": {"batching": "never"},
}
ENDLESS = 20_000  # minutes; it ends even if nothing stops it
CASES: dict[str, Sections] = {
    **VARIANTS,
    "coordinates": {
        "scheme": {"name": "random", "granularity": "coordinate"},
        "merge": {"rule": "fill_in"},
    },
    "partition of all": {"scheme": {"name": "partition"}, "clients": {"capacities": ["1/5"]}},
    "unbiased, fill in": {"scheme": {"name": "unbiased"}, "merge": {"rule": "fill_in"}},
    "weighted, output step": {
        "merge": {"weights": "examples"},
        "train": {"output_step": 50.0},
    },
    **{
        f"server {name}": {"server": {"name": name}, "merge": {"rule": "fill_in"}}
        for name in ("momentum", "adam", "yogi")
    },
    "cells of three rounds": {
        "scheme": {"name": "hierarchical", "cells": 2, "every": 3},
        "clients": {"capacities": [0.5]},
        "train": {"rounds": 3, "evaluate_every": 3},
    },
    "stacked": {"engine": {"batching": "always"}},
    "convolutions": {"model": {"name": "cnn", "width": 8}},
}


Lines = list[dict[str, Any]]
Result = tuple[dict[str, Any], dict[str, Any], Lines]
"""Model and memory as arrays, and the lines of the rounds."""


def result_of(state: State, history: Lines) -> Result:
    """Return the result without times; sums of losses are added in another order."""
    lines = [
        {k: round(v, 10) if k == "train_loss" else v for k, v in line.items() if k != "seconds"}
        for line in history
    ]
    return arrays(state.tensors), arrays(state.memory), lines


def arrays(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def together(group: ProcessGroup, cases: dict[str, dict[str, Any]]) -> dict[str, Result]:
    """Train every case with a group."""
    configs = {name: parse(case) for name, case in cases.items()}
    return {
        n: result_of(*run_rounds(Training(c, prepare(c)), group=group)) for n, c in configs.items()
    }


@pytest.fixture(scope="module")
def alone() -> dict[str, Result]:
    """Train every case in this process."""
    configs = {name: parse(joined(SMALL, case)) for name, case in CASES.items()}
    return {name: result_of(*run_rounds(Training(c, prepare(c)))) for name, c in configs.items()}


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_any_number_of_processes_gives_the_bytes_of_one(
    processes: int, alone: dict[str, Result]
) -> None:
    found = run_group(together, {n: joined(SMALL, case) for n, case in CASES.items()}, processes)
    assert found.keys() == CASES.keys()
    for case, (model, memory, lines) in found.items():
        expected_model, expected_memory, expected_lines = alone[case]
        if case == "stacked":  # the members of a stack change the order of float32 sums
            for name, values in expected_model.items():
                assert np.abs(model[name] - values).max() < 1e-5, case
            continue
        assert lines == expected_lines, case
        for one, other in ((model, expected_model), (memory, expected_memory)):
            assert {n: v.tobytes() for n, v in one.items()} == {
                n: v.tobytes() for n, v in other.items()
            }, case


def settings(rounds: int, batching: str = "never") -> list[str]:
    return [
        *(
            "model.width=4",
            "clients.count=12",
            "clients.per_round=5",
            f"engine.batching={batching}",
            "engine.kernels=torch",  # as in runs in Python
        ),
        *("data.examples=120", "data.test_examples=40", f"train.rounds={rounds}"),
        *("train.evaluate_every=10", "train.checkpoint_every=7"),
    ]


def arguments(out: Path, rounds: int, *options: str, batching: str = "never") -> list[str]:
    sets = [part for setting in settings(rounds, batching) for part in ("--set", setting)]
    return ["train", *sets, *options, "--out", str(out)]


def start(out: Path, *options: str, batching: str = "never") -> tuple[ForkServerProcess, Path]:
    """Start an endless run with processes, and return it with its output file."""
    output = out.with_suffix(".txt")
    words = arguments(out, ENDLESS, *options, batching=batching)
    return start_command(*words, stdout=output), output


def send(process: ForkServerProcess, number: signal.Signals) -> None:
    assert process.pid is not None
    os.kill(process.pid, number)


def workers_of(launcher: ForkServerProcess) -> list[psutil.Process]:
    """Return the workers by rank: the processes without children, in the order of their start."""
    assert launcher.pid is not None
    leaves = [one for one in descendants(launcher.pid) if not one.children()]
    return sorted(leaves, key=lambda one: one.pid)


def hash_of(out: Path) -> str:
    text: str = json.loads((out / "summary.json").read_text())["model_sha256"]
    return text


def wait_for_rounds(out: Path, rounds: int = 3) -> None:
    deadline = time.monotonic() + 240
    while len(RunFolder(out).metrics()) < rounds and time.monotonic() < deadline:
        time.sleep(0.02)


def test_a_process_that_dies_ends_the_run_and_leaves_it_resumable(
    tmp_path: Path, submodel: Command
) -> None:
    broken = tmp_path / "broken"
    launcher, output = start(broken, "--processes", "2")
    wait_for_rounds(broken)
    _, second = workers_of(launcher)
    second.kill()
    launcher.join()
    assert launcher.exitcode == 130
    printed = output.read_text()
    assert "another process of the run was lost" in printed
    assert f"continue with: submodel resume {broken}" in printed
    rounds = saved_round(broken / "checkpoints") + 2
    assert submodel(*arguments(tmp_path / "whole", rounds)).returncode == 0
    assert submodel("resume", broken, "--set", f"train.rounds={rounds}").returncode == 0
    assert hash_of(broken) == hash_of(tmp_path / "whole")


def stacked(group: ProcessGroup, rounds: int) -> str:
    config = read(None, settings(rounds, "auto"))
    state, _ = run_rounds(Training(config, prepare(config)), group=group)
    return model_sha256(state.tensors)


def test_a_stopped_run_of_two_processes_with_stacks_ends_as_an_undisturbed_one(
    tmp_path: Path, submodel: Command
) -> None:
    stopped = tmp_path / "stopped"
    launcher, _ = start(stopped, "--processes", "2", batching="auto")
    wait_for_rounds(stopped)
    send(launcher, signal.SIGINT)
    launcher.join()
    assert launcher.exitcode == 130
    rounds = saved_round(stopped / "checkpoints") + 2
    assert submodel("resume", stopped, "--set", f"train.rounds={rounds}").returncode == 0
    assert hash_of(stopped) == run_group(stacked, rounds, 2)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_processes_end_with_their_launcher_and_leave_a_resumable_run(
    number: signal.Signals, tmp_path: Path, submodel: Command
) -> None:
    run = tmp_path / "run"
    launcher, _ = start(run, "--processes", "2")
    wait_for_rounds(run)
    workers = workers_of(launcher)
    assert len(workers) == 2
    send(launcher, number)
    launcher.join()
    deadline = time.monotonic() + 240
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_running, workers))
    saved = saved_round(run / "checkpoints")
    assert saved >= 3  # not only every seventh round, as they had time to save the last one
    local = "--set", f"train.rounds={saved + 1}", "--set", "engine.name=local"
    result = submodel("resume", run, *local)
    assert result.returncode == 0, result.stderr
    assert [line["round"] for line in RunFolder(run).metrics()] == list(range(1, saved + 2))


def test_no_more_processes_are_started_than_the_machine_can_bear() -> None:
    with pytest.raises(SubmodelError, match=r"1,?000,?000 .*too many"):
        launch(["train"], 10**6)


def bundle(clients: int, overhead: float, work: float) -> Bundle:
    return Bundle([Assignment(0, c, 1.0) for c in range(clients)], overhead, lambda: work)


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


def test_torchrun_itself_starts_it_too(tmp_path: Path, submodel: Command) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2",
                "--master-addr=127.0.0.1", f"--master-port={free_port()}"]  # fmt: skip
    done = subprocess.run(
        [*torchrun, "-m", "submodel", *arguments(tmp_path / "two", 2)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert submodel(*arguments(tmp_path / "one", 2)).returncode == 0
    assert hash_of(tmp_path / "two") == hash_of(tmp_path / "one")


def test_what_preparing_warns_of_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes of a run prepare it as well, but only the first prints warnings."""
    monkeypatch.setenv("SUBMODEL_DATA", str(tmp_path / "cache"))
    path = folder_of(tmp_path / "texts", {"a": "text " * 99, "b": "text " * 99, "c": "short"})
    settings = [f"data.name=text:{path}", "data.least=100", "data.length=8",
                "model.name=gpt", "train.rounds=1", "clients.per_round=2"]  # fmt: skip
    sets = [word for text in settings for word in ("--set", text)]
    run = process("train", *sets, "--processes", "2", "--out", tmp_path / "run")
    assert run.returncode == 0, run.stderr
    assert (run.stdout + run.stderr).count("are left out") == 1


LITTLE: dict[str, Any] = {
    "model": {"name": "mlp", "width": 8},
    "data": {"examples": 240, "test_examples": 60},
    "clients": {"count": 12, "per_round": 5, "capacities": ["1/2"]},
    "train": {"rounds": 2, "evaluate_every": 2},
    "engine": {"batching": "never"},
}
LITTLE_CASES: dict[str, dict[str, Any]] = {
    "rolling": {"scheme": {"name": "rolling"}},
    "random": {"scheme": {"name": "random"}},
    "norms": {"model": {"name": "cnn", "width": 8}, "scheme": {"name": "static"}},
    "momentum": {"server": {"name": "momentum"}},
    "ball": {"merge": {"projection": "ball", "radius": 3.0}},
    "cells": {"scheme": {"name": "hierarchical", "cells": 2, "every": 2}},
}


def train(group: ProcessGroup, machines: str) -> dict[str, tuple[dict[str, bytes], bool]]:
    """Train every case; ``machines`` has one entry per rank."""
    loop._LARGE = 0
    if len(set(machines)) > 1:
        vars(group_module)["machine_name"] = lambda: machines[group.rank]
    results = {}
    for name, case in LITTLE_CASES.items():
        config = parse(joined(LITTLE, case))
        state, _ = loop.run_rounds(Training(config, prepare(config)), group=group)
        values = {n: t.numpy() for n, t in state.tensors.items()}
        addresses = group.gather_json({"inodes": sorted(_mapped())})
        mappings = [set(note["inodes"]) for note in addresses]
        in_one_memory = bool(set.intersection(*mappings))
        assert all(v.flags.writeable for v in values.values()) or group.rank
        results[name] = {n: v.tobytes() for n, v in values.items()}, in_one_memory
    return results


def _mapped() -> set[str]:
    """Return the files of shared memory that this process maps."""
    lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
    return {line.split()[4] for line in lines if "memfd:submodel " in line}


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux has such memory")
@pytest.mark.parametrize("machines", ["aa", "aab"])
def test_the_bytes_are_those_of_one_process(machines: str) -> None:
    results = run_group(train, machines, len(machines))
    for name, case in LITTLE_CASES.items():
        config = parse(joined(LITTLE, case))
        state, _ = loop.run_rounds(Training(config, prepare(config)))
        tensors, in_one_memory = results[name]
        assert tensors == {n: np.asarray(t).tobytes() for n, t in state.tensors.items()}, name
        assert in_one_memory == (machines == "aa"), name


@pytest.fixture(scope="module")
def followers() -> Iterator[Followers]:
    with Followers() as followers:
        yield followers


def start_follower(followers: Followers, file: Path, *words: str, **variables: str) -> Follower:
    with file.open("w") as out:
        return followers.start(words, {**os.environ, **variables}, out.fileno())


def test_signals_reach_them_also_before_they_run(tmp_path: Path, followers: Followers) -> None:
    local = "--set", "engine.name=local", "--set", "engine.kernels=torch"
    endless = ["train", "--set", "train.rounds=100000", *local, "--out"]
    first = start_follower(followers, tmp_path / "one", *endless, str(tmp_path / "a"))
    first.send_signal(signal.SIGKILL)  # nothing is loaded yet
    assert first.wait() == -signal.SIGKILL
    second = start_follower(followers, tmp_path / "two", *endless, str(tmp_path / "b"))
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(0.01)
    deadline = time.monotonic() + 120
    while len(RunFolder(tmp_path / "b").metrics()) < 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    second.send_signal(signal.SIGTERM)  # background processes of a shell ignore Ctrl-C
    assert second.wait() == 130
    assert "submodel resume" in (tmp_path / "two").read_text()


@pytest.mark.parametrize("width", [70, 110])
def test_each_has_its_own_environment_and_output(
    width: int, tmp_path: Path, followers: Followers
) -> None:
    help_text = tmp_path / "help"
    assert start_follower(followers, help_text, "train", "--help", COLUMNS=str(width)).wait() == 0
    assert max(map(len, help_text.read_text().splitlines())) == width


def test_a_failure_is_told_by_the_status(tmp_path: Path, followers: Followers) -> None:
    file = tmp_path / "said"
    failed = start_follower(followers, file, "train", str(tmp_path / "no.toml"))
    assert (failed.wait(), failed.poll(), failed.returncode) == (2, 2, 2)
    assert "no.toml" in file.read_text()


def test_the_next_commands_use_the_same_forkserver_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second command loads nothing and sees today's folder, and no files remain."""
    children = psutil.Process().children
    with Followers() as first:
        assert start_follower(first, tmp_path / "one", "--version").wait() == 0
        before = {child.pid for child in children()}
        endless = start_follower(first, tmp_path / "two", "train", "--set", "train.rounds=100000")
    assert endless.poll() == -signal.SIGKILL
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.toml").write_text("rounds = 1")
    with Followers() as second:
        assert start_follower(second, tmp_path / "three", "train", "here.toml").wait() == 2
        assert {child.pid for child in children()} == before
    assert "here.toml" in (tmp_path / "three").read_text()
    assert "No such file" not in (tmp_path / "three").read_text()


def test_a_script_without_a_guard_starts_commands_and_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "from submodel.engines.processes.launch import Followers\n"
        "print('begins', flush=True)\n"
        "with Followers() as followers:\n"
        "    print(followers.start(['--version'], os.environ, None).wait())\n"
    )
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    begins, version, status = printed.stdout.splitlines()
    assert (begins, version.split()[0], status) == ("begins", "submodel", "0")


def test_what_a_command_took_of_a_core_is_known_at_its_end(
    tmp_path: Path, followers: Followers
) -> None:
    command = start_follower(followers, tmp_path / "said", "--version")
    assert command.wait() == 0
    assert command.core_seconds is not None
    assert 0 < command.core_seconds < 60
