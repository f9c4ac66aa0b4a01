"""Starting commands of ours as processes of this machine: runs at once, or the ranks of one run.

They end when this process does, even if it is killed. On Linux Python's fork server starts them,
so that all but the first start in a moment; elsewhere each loads PyTorch by itself.
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

_GRACE = 20.0  # seconds that a process has to end by itself
_FOLLOWER_THREAD = "launcher"  # of a command that waits for the end of the process that started it
_LOOPBACK = "127.0.0.1"
_FIRST_PORT, _PORTS, _TRIES = 12_000, 20_000, 100
_MOST_PER_CORE = 16


class Follower:
    """A command that runs, with the methods of `subprocess.Popen`."""

    def __init__(self, process: BaseProcess, seconds: Connection) -> None:
        self._process, self._seconds = process, seconds
        self._core_seconds: float | None = None

    @property
    def returncode(self) -> int | None:
        """The exit status if it has ended; minus the signal's number if that ended it."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The same."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, when it has ended; `subprocess.TimeoutExpired` if it has not by then."""
        self._process.join(timeout)
        if (status := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired("submodel", timeout or 0.0)
        return status

    def send_signal(self, sig: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None and self._process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, sig)

    @property
    def core_seconds(self) -> float | None:
        """Seconds of a core that it took, with all that it started; None if it was killed."""
        with contextlib.suppress(EOFError, OSError):
            if self._core_seconds is None and self.poll() is not None and self._seconds.poll():
                self._core_seconds = float(self._seconds.recv_bytes())
        return self._core_seconds


class Followers:
    """Starts commands of ours; those that still run when it is closed are killed.

    >>> with Followers() as followers:
    ...     followers.start(["--version"], os.environ, subprocess.DEVNULL).wait()
    0
    """

    core_seconds = 0.0
    """Of all commands that this process has started and closed."""

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

        ``output`` is a file, or `subprocess.DEVNULL`; None is where we write to.
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
    """Without the caller's script, which processes of `multiprocessing` would run once more."""
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
    """A process like one that a shell has started, but that it ends with the one that did."""
    os.setpgid(0, 0)  # Ctrl-C reaches it through its launcher alone, once
    gc.freeze()  # memory that it does not touch stays shared
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
        atexit._run_exitfuncs()  # multiprocessing leaves them out
        took = sum(os.times()[:4]) + Followers.core_seconds
        with contextlib.suppress(OSError):
            seconds.send_bytes(str(took).encode())


def _end_with_launcher() -> None:
    """End as by a kill, so that the last round is saved; and then if that takes too long.

    Somebody may wait for another process that will never answer.
    """
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    wait([launcher.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os._exit(128 + signal.SIGTERM)


def free_port() -> int:
    """A port on loopback that nobody listens on, for a process that will.

    Ports that the system hands out by itself are not among them: an outgoing connection could take
    one before the process listens.
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


def endings() -> list[signal.Signals]:
    """The signals that end a command: Ctrl-C, kill, a closed terminal unless `nohup` is used."""
    ignores_hangup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignores_hangup else [signal.SIGHUP])]


@contextmanager
def saying_it_once() -> Iterator[None]:
    """Without warnings, if `launch` started this process: who called it has given them."""
    log = logging.getLogger("submodel")
    level = log.level
    if "RANK" in os.environ and any(t.name == _FOLLOWER_THREAD for t in threading.enumerate()):
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def launch(arguments: Sequence[str], processes: int) -> int:
    """Run this command in so many processes; returns the exit status of the first.

    They talk over loopback only. The first one prints; a process that dies ends the run, and the
    first says how to go on. When this process is told to end, they save their last round; when it
    is killed, they notice that themselves.
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

    before = {n: signal.signal(n, pass_on) for n in endings()}
    try:
        with Followers() as followers:
            for rank in range(processes):
                environment = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                output = None if rank == 0 else subprocess.DEVNULL
                child = followers.start(arguments, environment, output)
                children.append(child)
                for number in received:  # while it was not there yet
                    child.send_signal(number)
            return _wait(children)
    except OSError as error:
        raise SubmodelError(f"cannot start {processes} processes: {error}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(children: Sequence[Follower]) -> int:
    """Until the first process ends; if another one fails, it is told after a while, then made to.

    It may wait for the lost one in a place where no signal reaches it.
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
                text = "another process of the run was lost: 'submodel resume' goes on"
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
