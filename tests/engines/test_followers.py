"""Commands that are forked are processes like those that are started by themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from submodel.engines.processes.launch import Follower, Followers
from submodel.runs.folder import RunFolder


@pytest.fixture(scope="module")
def followers() -> Iterator[Followers]:
    with Followers() as followers:
        yield followers


def start(followers: Followers, file: Path, *words: str, **variables: str) -> Follower:
    with file.open("w") as out:
        return followers.start(words, {**os.environ, **variables}, out.fileno())


def test_signals_reach_them_also_before_they_run(tmp_path: Path, followers: Followers) -> None:
    local = "--set", "engine.name=local", "--set", "engine.kernels=torch"
    endless = ["train", "--set", "train.rounds=100000", *local, "--out"]
    first = start(followers, tmp_path / "one", *endless, str(tmp_path / "a"))
    first.send_signal(signal.SIGKILL)  # nothing is loaded yet
    assert first.wait() == -signal.SIGKILL
    second = start(followers, tmp_path / "two", *endless, str(tmp_path / "b"))
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(0.01)
    deadline = time.monotonic() + 120
    while len(RunFolder(tmp_path / "b").metrics()) < 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    second.send_signal(signal.SIGTERM)  # Ctrl-C is ignored by what a shell starts in the background
    assert second.wait() == 130
    assert "submodel resume" in (tmp_path / "two").read_text()


@pytest.mark.parametrize("width", [70, 110])
def test_each_has_its_own_environment_and_output(
    width: int, tmp_path: Path, followers: Followers
) -> None:
    help_text = tmp_path / "help"
    assert start(followers, help_text, "train", "--help", COLUMNS=str(width)).wait() == 0
    assert max(map(len, help_text.read_text().splitlines())) == width


def test_a_failure_is_told_by_the_status(tmp_path: Path, followers: Followers) -> None:
    file = tmp_path / "said"
    failed = start(followers, file, "train", str(tmp_path / "no.toml"))
    assert (failed.wait(), failed.poll(), failed.returncode) == (2, 2, 2)
    assert "no.toml" in file.read_text()


def test_the_next_commands_are_born_in_the_same_nursery_where_we_are_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second use pays nothing for loading, sees today's folder, and what was left is gone."""
    children = psutil.Process().children
    with Followers() as first:
        assert start(first, tmp_path / "one", "--version").wait() == 0
        before = {child.pid for child in children()}
        endless = start(first, tmp_path / "two", "train", "--set", "train.rounds=100000")
    assert endless.poll() == -signal.SIGKILL
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.toml").write_text("rounds = 1")
    with Followers() as second:
        assert start(second, tmp_path / "three", "train", "here.toml").wait() == 2
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
    said = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    begins, version, status = said.stdout.splitlines()
    assert (begins, version.split()[0], status) == ("begins", "submodel", "0")


def test_what_a_command_took_of_a_core_is_known_at_its_end(
    tmp_path: Path, followers: Followers
) -> None:
    command = start(followers, tmp_path / "said", "--version")
    assert command.wait() == 0
    assert command.core_seconds is not None
    assert 0 < command.core_seconds < 60
