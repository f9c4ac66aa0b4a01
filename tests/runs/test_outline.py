"""The state of a run, read from its folder: running, stopped, finished, failed."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

import pytest
from torch import nn

import submodel as package
from submodel.core.errors import CallbackError, Interruption
from submodel.data import digits
from submodel.runs.folder import RunFolder, record_failure
from submodel.runs.outline import LockTable, read_outline
from tests.support.forked import forking, start_command
from tests.support.run_folders import evaluated, round_entries, write_run


def test_a_run_in_all_its_states(tmp_path: Path) -> None:
    path = tmp_path / "run"
    folder = write_run(path, [evaluated(1, 0.25), round_entries(2)])
    stopped = read_outline(path)
    assert (stopped.phase, stopped.rounds, stopped.rounds_planned) == ("stopped", 2, 4)
    assert (stopped.scores, stopped.traffic) == ({"accuracy": 0.25, "loss": 0.75}, 3000)
    assert stopped.seconds == 4.0
    with folder.lock():
        assert read_outline(path).phase == "running"
    folder.failed_file.write_text("it diverged\nand more", "utf-8")
    failed = read_outline(path)
    assert (failed.phase, failed.reason) == ("failed", "it diverged")
    folder.failed_file.unlink()
    folder.path.joinpath("config.toml").unlink()
    folder.metrics_file.unlink()
    folder.begun_in_file.unlink()
    folder.path.joinpath(".lock").unlink()
    write_run(path, [evaluated(4, 0.5)], is_finished=True)
    assert (read_outline(path).phase, read_outline(path).traffic) == ("finished", 6000)


def test_a_run_that_is_extended_is_not_finished_until_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run"
    folder = write_run(path, [evaluated(4, 0.5)], is_finished=True)
    text = folder.config_file.read_text("utf-8")
    folder.config_file.write_text(text.replace("rounds = 4", "rounds = 9"), "utf-8")
    assert (read_outline(path).phase, read_outline(path).rounds) == ("stopped", 4)


def test_damaged_files_are_no_hindrance(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [evaluated(1, 0.25)])
    with folder.metrics_file.open("ab") as file:
        file.write(b'{"round": 2, "seconds": 3, "bytes_up": "many", "test_loss": null}\n')
        file.write(b'\xff\n[1]\n{"round": "x"}\n{"round": 3, "test_lo')
    folder.summary_file.write_text("{", "utf-8")
    folder.failed_file.write_bytes(b"\x1b[31mred\x07\n")
    outline = read_outline(folder.path)
    assert (outline.phase, outline.rounds, outline.scores["accuracy"]) == ("failed", 2, 0.25)
    assert outline.reason == "[31mred"
    folder.config_file.write_text("= = =", "utf-8")
    assert read_outline(folder.path).rounds_planned == 0


@pytest.mark.slow
def test_a_killed_run_reads_stopped(tmp_path: Path) -> None:
    path = tmp_path / "run"
    settings = ("model.name=mlp", "model.width=8", "train.rounds=100000")
    words = [word for text in settings for word in ("--set", text)]
    process = start_command("train", *words, "--out", path)
    folder = RunFolder(path)
    deadline = time.monotonic() + 60
    while not (folder.metrics_file.is_file() and folder.rounds()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert read_outline(path).phase == "running"
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    deadline = time.monotonic() + 10  # the kernel may still be closing its files
    while (outline := read_outline(path)).phase == "running" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert outline.phase == "stopped"
    assert outline.rounds >= 1


@pytest.mark.slow
def test_an_error_is_kept_until_the_run_goes_on(tmp_path: Path) -> None:
    class Broken(package.Callback):
        def after_round(self, before: object, after: object, line: object) -> None:
            raise ValueError("no\nmore")

    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 10))
    config = {"train": {"rounds": 2}}
    with pytest.raises(CallbackError):
        package.train(net, digits(), config, out=tmp_path / "run", callbacks=[Broken()])
    outline = read_outline(tmp_path / "run")
    assert outline.phase == "failed"
    assert "Broken" in outline.reason
    run = package.open(tmp_path / "run", model=net, data=digits())
    run.resume(progress=False)
    assert read_outline(tmp_path / "run").phase == "finished"


def test_who_stops_a_run_does_not_make_it_fail(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [round_entries(1)])
    for error in (Interruption("stopped after round 1"), KeyboardInterrupt()):
        with pytest.raises(type(error)), record_failure(folder):
            raise error
        assert read_outline(folder.path).phase == "stopped"
    with pytest.raises(MemoryError), record_failure(folder):
        raise MemoryError
    assert read_outline(folder.path).reason == "MemoryError"


def _hold(path: str, ready: str) -> None:
    with Path(path).open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        Path(ready).touch()
        time.sleep(60)


def test_locks_of_file_systems_that_are_not_of_this_machine_alone_are_seen(tmp_path: Path) -> None:
    """Over a network a file's lock is a byte range; both kinds work in memory."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        pytest.skip("no /dev/shm")
    file, ready = memory / f"submodel-{os.getpid()}.lock", tmp_path / "ready"
    file.touch()
    try:
        assert not LockTable.read().holds(file)
        process = forking().Process(target=_hold, args=(str(file), str(ready)))
        process.start()
        while not ready.exists():
            time.sleep(0.01)
        assert LockTable.read().holds(file)
        process.kill()
        process.join()
        assert not LockTable.read().holds(file)
    finally:
        file.unlink()
