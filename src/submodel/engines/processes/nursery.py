"""A process with everything loaded that forks commands of ours, for those who start several.

An interpreter takes seconds to load PyTorch, which a comparison of fifty runs pays fifty times and
a fork never. The process that forks computes nothing itself: it has no threads that a fork
would lose, and no accelerator.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Sequence

_MODULES = (
    *("submodel.prepare.setup", "submodel.runs.loop", "submodel.runs.export"),
    *("submodel.engines.batched.engine", "submodel.engines.processes.group"),
    *("submodel.model.axes.measure", "submodel.report.tables", "typer", "rich.progress"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg"),
)
MESSAGE = 1 << 17
"""Bytes of a message, at most."""


class _Nursery:
    """Forks what is asked for on a socket, and tells there how it ended."""

    def __init__(self, link: socket.socket) -> None:
        self._link, self._numbers = link, dict[int, int]()
        self._end, wakener = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakener, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> list[str] | None:
        """Returns in every child, with its arguments; in this process when nobody asks any more."""
        while True:
            ready, _, _ = select.select([self._link.fileno(), self._end], [], [])
            if self._end in ready:
                os.read(self._end, 1024)
                self._tell_endings()
            if self._link.fileno() not in ready:
                continue
            message, files, _, _ = socket.recv_fds(self._link, MESSAGE, 3)
            if not message:
                return None  # what still runs has seen the same end
            request = json.loads(message)
            if "signal" in request:
                self._send(request["number"], request["signal"])
            elif (pid := os.fork()) == 0:
                self._become(request["variables"], files, request["folder"])
                return list(request["arguments"])
            else:
                self._numbers[pid] = request["number"]
                for file in files:
                    os.close(file)

    def _send(self, number: int, what: int) -> None:
        """Nobody is meant by it who has ended: until it is waited for, a number stays taken."""
        for pid in [pid for pid, its_number in self._numbers.items() if its_number == number]:
            os.kill(pid, what)

    def _tell_endings(self) -> None:
        while self._numbers:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            ending = {
                "number": self._numbers.pop(pid),
                "status": os.waitstatus_to_exitcode(status),
                "core_seconds": usage.ru_utime + usage.ru_stime,
            }
            with contextlib.suppress(OSError):
                self._link.send(json.dumps(ending).encode())

    def _become(self, variables: dict[str, str | None], files: Sequence[int], folder: str) -> None:
        """A process like one that was started by itself."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._link.close()
        os.setpgid(0, 0)
        for stream, file in enumerate(files):
            os.dup2(file, stream)
            os.close(file)
        for name, value in variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        os.chdir(folder)


def _load() -> None:
    for module in _MODULES:
        with contextlib.suppress(ImportError):  # whoever needs it says so
            importlib.import_module(module)
    gc.freeze()  # memory that nobody touches stays shared


if __name__ == "__main__":
    _load()
    if (words := _Nursery(socket.socket(fileno=int(sys.argv[1]))).serve()) is not None:
        sys.argv = ["submodel", *words]
        runpy.run_module("submodel", run_name="__main__", alter_sys=True)
