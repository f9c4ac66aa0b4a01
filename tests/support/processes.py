"""Real processes for tests: `submodel serve` and `submodel join` on loopback, in one folder.

Every process of a house, and whatever those start, carries the house's folder in its environment.
So all of them are found, also when their parents are gone, and nobody else's is.
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

PATIENCE = 240.0  # seconds, on a machine with other things to do
_MARK = "SUBMODEL_TEST_HOUSE"


class House:
    """Processes of one test; all are gone when it is closed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.run = folder / "run"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self, name: str, *arguments: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """`submodel` with these arguments, its output in a file of this name."""
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
                # a shell makes what it starts in the background deaf to Ctrl-C
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
        """The device of that name, with its data and its share."""
        own = self.folder / name / "device"
        if not own.exists():
            shutil.copytree(self.folder / "federation" / "devices" / name, own)
        return self.start(
            name, "join", f"127.0.0.1:{self.port}", "--credentials", str(own), "--name", name,
            *what, variables=variables,
        )  # fmt: skip

    def said(self, name: str) -> str:
        """All that a process printed, in one line: where a console breaks lines is its affair."""
        return " ".join((self.folder / f"{name}.out").read_text("utf-8").split())

    def metrics(self) -> list[dict[str, Any]]:
        """The rounds so far."""
        file = self.run / "metrics.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait(self, what: str, condition: Callable[[], object], patience: float = PATIENCE) -> None:
        """Until it holds; else the test fails and shows what everyone said."""
        end = time.monotonic() + patience
        while not condition():
            if time.monotonic() > end:
                pytest.fail(f"not within {patience:g} s: {what}\n{self.everything()}")
            time.sleep(0.2)

    def everything(self) -> str:
        """The end of what everyone said."""
        files = [*self.folder.glob("*.out"), *self.run.glob("*.log"), self.run / "metrics.jsonl"]
        return "\n".join(
            f"--- {f.name}\n{f.read_text(errors='replace')[-3000:]}" for f in files if f.exists()
        )

    def finish(self, name: str, patience: float = PATIENCE) -> int:
        """The exit status of a process, when it ends by itself."""
        process = self.processes[name]
        self.wait(f"the end of {name}", lambda: process.poll() is not None, patience)
        return process.returncode

    def below(self, name: str, program: str = "") -> set[psutil.Process]:
        """What runs below a process; with a program in its command, if one is named."""
        found = descendants(self.processes[name].pid)
        return {one for one in found if program in command_line(one)}

    def kill(self, name: str) -> set[psutil.Process]:
        """kill -9 a process and everything below it, at once; returns who that was."""
        process = self.processes[name]
        psutil.Process(process.pid).suspend()  # so that it starts nothing meanwhile
        family = self.below(name)
        process.kill()
        process.wait()
        _kill(family)
        return family

    def left(self) -> set[psutil.Process]:
        """What still runs of all that was ever started here."""
        every = psutil.process_iter()
        return {one for one in every if _house_of(one) == str(self.folder) and is_running(one)}

    def close(self) -> None:
        """End everything, first in a friendly way."""
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
    """What it was started as, or is called since it was forked; empty if it is gone."""
    try:
        name = one.name()
        return name if name.startswith(("flwr-", "superexec")) else " ".join(one.cmdline())
    except psutil.Error:
        return ""


def _house_of(one: psutil.Process) -> str | None:
    try:
        found: str | None = one.environ().get(_MARK)
    except (psutil.Error, OSError):  # another user's
        return None
    return found


def _kill(family: set[psutil.Process]) -> None:
    for one in family:
        kill(one)
