"""Commands of this program as child processes: several runs at once, or the ranks of one run.

They end when this process ends, even if it is killed. On Linux Python's forkserver starts them, so
that all except the first start at once; on other systems each process imports PyTorch.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import multiprocessing
import os
import runpy
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from submodel.core.errors import SubmodelError

_GRACE = 20.0  # seconds for a process to end by itself
_FOLLOWER_THREAD = "launcher"  # name of the thread that waits for the end of the parent process
_LOOPBACK = "127.0.0.1"
_FIRST_PORT, _PORTS, _TRIES = 12_000, 20_000, 100
_MOST_PER_CORE = 16


class Follower:
    """A running command, with methods of `subprocess.Popen`."""

    def __init__(self, process: BaseProcess, seconds: Connection) -> None:
        self._process, self._seconds = process, seconds
        self._core_seconds: float | None = None

    @property
    def returncode(self) -> int | None:
        """The exit status, or minus the number of the signal that ended it; None if it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return `returncode`."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit status; raise `subprocess.TimeoutExpired` after the timeout."""
        self._process.join(timeout)
        if (status := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired("submodel", timeout or 0.0)
        return status

    def send_signal(self, sig: int) -> None:
        """Send a signal to the command if it runs."""
        if self.poll() is None and self._process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, sig)

    @property
    def core_seconds(self) -> float | None:
        """CPU seconds of the command and its children; None if it was killed."""
        with contextlib.suppress(EOFError, OSError):
            if self._core_seconds is None and self.poll() is not None and self._seconds.poll():
                self._core_seconds = float(self._seconds.recv_bytes())
        return self._core_seconds


class Followers:
    """Starts commands of this program, and kills those that still run when it is closed.

    >>> with Followers() as followers:
    ...     followers.start(["--version"], os.environ, subprocess.DEVNULL).wait()
    0
    """

    core_seconds = 0.0
    """CPU seconds of all commands that this process has started and closed."""

    def __init__(self) -> None:
        self._followers: list[Follower] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for follower in self._followers:
            if follower.poll() is None:
                follower.send_signal(signal.SIGKILL)
                follower.wait()
            Followers.core_seconds += follower.core_seconds or 0.0

    def start(
        self, arguments: Sequence[str], variables: Mapping[str, str], output: int | None
    ) -> Follower:
        """Start a command.

        ``output`` is a file descriptor or `subprocess.DEVNULL`; None: the output of this process.
        """
        context: Any = multiprocessing.get_context(
            "forkserver" if sys.platform == "linux" else "spawn"
        )
        multiprocessing.set_forkserver_preload([f"{__package__}.server"])
        ours, theirs = context.Pipe(duplex=False)
        with _null_file() as nowhere, theirs, _without_main():
            streams = [1, 2] if output is None else [nowhere if output < 0 else output] * 2
            files = [Connection(os.dup(stream), readable=False) for stream in streams]
            place = list(arguments), dict(variables), str(Path.cwd())
            process = context.Process(target=_run_command, args=(*place, files, theirs))
            process.start()
        self._followers.append(Follower(process, ours))
        return self._followers[-1]


@contextmanager
def _null_file() -> Iterator[int]:
    with Path(os.devnull).open("w", encoding="utf-8") as file:
        yield file.fileno()


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the caller's script, which child processes of `multiprocessing` would run again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _run_command(
    arguments: Sequence[str],
    variables: Mapping[str, str],
    folder: str,
    files: Sequence[Connection],
    seconds: Connection,
) -> None:
    """Run a command as if started by a shell, but end it with the parent process."""
    os.setpgid(0, 0)  # Ctrl-C reaches it once, through its launcher
    gc.freeze()  # memory that is not written to stays shared
    threading.Thread(target=_end_with_launcher, name=_FOLLOWER_THREAD, daemon=True).start()
    for stream, file in enumerate(files, start=1):
        os.dup2(file.fileno(), stream)
        file.close()
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    sys.argv = ["submodel", *arguments]
    try:
        runpy.run_module("submodel", run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # multiprocessing omits them
        took = sum(os.times()[:4]) + Followers.core_seconds
        with contextlib.suppress(OSError):
            seconds.send_bytes(str(took).encode())


def _end_with_launcher() -> None:
    """Terminate when the launcher ends, so that the last round is saved; exit after a grace period.

    The process may wait for another one that never answers.
    """
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    wait([launcher.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os._exit(128 + signal.SIGTERM)


def free_port() -> int:
    """A free port on loopback for a process that will listen on it.

    Ephemeral ports are excluded: an outgoing connection could take one before the process listens.
    """
    for _ in range(_TRIES):
        port = _FIRST_PORT + secrets.randbelow(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((_LOOPBACK, port))
            except OSError:
                continue
            return port
    raise SubmodelError(f"no free port on {_LOOPBACK} in {_TRIES} tries")


def ending_signals() -> list[signal.Signals]:
    """The signals that end a command: Ctrl-C, kill, a closed terminal unless `nohup` is used."""
    ignores_hangup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignores_hangup else [signal.SIGHUP])]


@contextmanager
def warn_once() -> Iterator[None]:
    """Suppress warnings if `launch` started this process, as the parent has already logged them."""
    log = logging.getLogger("submodel")
    level = log.level
    if "RANK" in os.environ and any(t.name == _FOLLOWER_THREAD for t in threading.enumerate()):
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def launch(arguments: Sequence[str], processes: int) -> int:
    """Run this command in several processes; return the exit status of the first.

    They communicate over loopback only, and only the first one prints. If a process dies, the run
    ends and the first process prints how to resume. If this process gets a signal to end, they save
    their last round; if it is killed, they end by themselves.
    """
    if processes > (most := _MOST_PER_CORE * (os.cpu_count() or 1)):
        raise SubmodelError(f"{processes} processes are too many for this machine; at most {most}")
    shared = os.environ | {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": _LOOPBACK,
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    children: list[Follower] = []
    received: list[int] = []

    def pass_on(number: int, _: object) -> None:
        received.append(signal.SIGTERM if number == signal.SIGHUP else number)
        for child in children:
            child.send_signal(received[-1])

    before = {n: signal.signal(n, pass_on) for n in ending_signals()}
    try:
        with Followers() as followers:
            for rank in range(processes):
                environment = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                output = None if rank == 0 else subprocess.DEVNULL
                child = followers.start(arguments, environment, output)
                children.append(child)
                for number in received:  # before it was started
                    child.send_signal(number)
            return _wait(children)
    except OSError as error:
        raise SubmodelError(f"cannot start {processes} processes: {error}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(children: Sequence[Follower]) -> int:
    """Wait until the first process ends; if another one fails, terminate the first, then kill it.

    The first process may wait for the lost one in code that no signal interrupts.
    """
    first, lost_at, has_signalled = children[0], 0.0, False
    while first.poll() is None:
        time.sleep(0.05)
        if any(child.poll() for child in children[1:]):
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at > _GRACE and not has_signalled:
                first.send_signal(signal.SIGTERM)
                has_signalled = True
            elif time.monotonic() - lost_at > 2 * _GRACE:
                text = "another process of the run was lost: continue with 'submodel resume'"
                print(text, file=sys.stderr, flush=True)
                first.send_signal(signal.SIGKILL)
                first.wait()
    for child in children[1:]:
        try:
            child.wait(_GRACE)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
    status = first.wait()
    return status if status >= 0 else 128 - status
