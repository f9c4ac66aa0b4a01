"""Real processes for tests: `submodel serve` and `submodel join` on loopback, in one folder.

Every process and its children have the test's folder in their environment. So all of
them are found, even without their parents, and no other processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from submodel.engines.processes.launch import free_port
from submodel.federation.flower.credentials import create
from submodel.federation.flower.process import descendants, is_running, kill

PATIENCE = 240.0  # seconds, on a busy machine
_MARK = "SUBMODEL_TEST_HOUSE"


class Processes:
    """Processes of one test, which end when it is closed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.run = folder / "run"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self, name: str, *arguments: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start `submodel` with these arguments and its output in a file of this name."""
        (self.folder / "tmp").mkdir(exist_ok=True)
        environment = {
            **os.environ,
            "SUBMODEL_DATA": str(self.folder / "data"),
            "TMPDIR": str(self.folder / "tmp"),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            _MARK: str(self.folder),
            **(variables or {}),
        }
        with (self.folder / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "submodel", *arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.folder,
                # background processes of a shell ignore Ctrl-C
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        self.processes[name] = process
        return process

    def serve(self, config: str, devices: list[str]) -> subprocess.Popen[bytes]:
        """Serve a run for devices of these names, with TLS and keys."""
        create(self.folder / "federation", ["127.0.0.1"], devices)
        file = self.folder / "config.toml"
        file.write_text(config)
        return self.start(
            "serve", "serve", str(file), "--out", str(self.run), "--host", "127.0.0.1",
            "--port", str(self.port),
        )  # fmt: skip

    def join(
        self, name: str, *what: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start the device of that name, with its data and its capacity."""
        own = self.folder / name / "device"
        if not own.exists():
            shutil.copytree(self.folder / "federation" / "devices" / name, own)
        return self.start(
            name, "join", f"127.0.0.1:{self.port}", "--credentials", str(own), "--name", name,
            *what, variables=variables,
        )  # fmt: skip

    def printed(self, name: str) -> str:
        """Return all output of a process in one line, as consoles may break lines anywhere."""
        return " ".join((self.folder / f"{name}.out").read_text("utf-8").split())

    def metrics(self) -> list[dict[str, Any]]:
        """Return the rounds so far."""
        file = self.run / "metrics.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait(self, what: str, condition: Callable[[], object], patience: float = PATIENCE) -> None:
        """Wait until a condition holds; on failure, show all output."""
        end = time.monotonic() + patience
        while not condition():
            if time.monotonic() > end:
                pytest.fail(f"not within {patience:g} s: {what}\n{self.everything()}")
            time.sleep(0.2)

    def everything(self) -> str:
        """Return the end of the output of all processes."""
        files = [*self.folder.glob("*.out"), *self.run.glob("*.log"), self.run / "metrics.jsonl"]
        return "\n".join(
            f"--- {f.name}\n{f.read_text(errors='replace')[-3000:]}" for f in files if f.exists()
        )

    def finish(self, name: str, patience: float = PATIENCE) -> int:
        """Return the exit status of a process after its own end."""
        process = self.processes[name]
        self.wait(f"the end of {name}", lambda: process.poll() is not None, patience)
        return process.returncode

    def below(self, name: str, program: str = "") -> set[psutil.Process]:
        """Return the descendants of a process, optionally with a program in their command."""
        found = descendants(self.processes[name].pid)
        return {one for one in found if program in command_line(one)}

    def kill(self, name: str) -> set[psutil.Process]:
        """Kill (-9) a process and its descendants at once; return them."""
        process = self.processes[name]
        psutil.Process(process.pid).suspend()  # so that it starts no other process meanwhile
        family = self.below(name)
        process.kill()
        process.wait()
        _kill(family)
        return family

    def left(self) -> set[psutil.Process]:
        """Return the processes that still run."""
        every = psutil.process_iter()
        return {one for one in every if _folder_of(one) == str(self.folder) and is_running(one)}

    def close(self) -> None:
        """End all processes, first by a gentle signal."""
        for one in self.left():
            with contextlib.suppress(psutil.NoSuchProcess):
                one.resume()
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        end = time.monotonic() + 10
        while self.left() and time.monotonic() < end:
            time.sleep(0.2)
        _kill(self.left())


def command_line(one: psutil.Process) -> str:
    """Return the command line of a process, or its name after a fork; empty if it is gone."""
    try:
        name = one.name()
        return name if name.startswith(("flwr-", "superexec")) else " ".join(one.cmdline())
    except psutil.Error:
        return ""


def _folder_of(one: psutil.Process) -> str | None:
    try:
        found: str | None = one.environ().get(_MARK)
    except (psutil.Error, OSError):  # another user's
        return None
    return found


def _kill(family: set[psutil.Process]) -> None:
    for one in family:
        kill(one)
