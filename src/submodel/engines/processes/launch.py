"""Starting the processes of a run on this machine, when torchrun has not done so."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

from submodel.errors import SubmodelError

_LOOPBACK = "127.0.0.1"
_FIRST_PORT, _PORTS, _TRIES = 12_000, 20_000, 100
_GRACE = 20.0  # seconds that the others have to notice that one is gone
_MOST_PER_CORE = 16
_FOLLOWS = "SUBMODEL_FOLLOWS"  # set for those whose standard input is held open by their launcher
_THREAD = "launcher"  # that waits for its end
_THREAD = "launcher"


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


def follow_launcher() -> None:
    """If `start_follower` started this process, end with who called it, however that ends.

    The system closes its end of our standard input then, on every system and whichever of its
    threads started us. We are told as by a kill, so that the last round is saved, and made to end
    if that takes too long: somebody may wait for another process that will never answer.
    """
    if os.environ.pop(_FOLLOWS, None) is not None:
        threading.Thread(target=_wait_and_end, name=_THREAD, daemon=True).start()


@contextmanager
def saying_it_once() -> Iterator[None]:
    """Without warnings, if `launch` started this process: who called it has given them."""
    log = logging.getLogger("submodel")
    level = log.level
    if "RANK" in os.environ and any(t.name == _THREAD for t in threading.enumerate()):
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _wait_and_end() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os._exit(128 + signal.SIGTERM)


def start_follower(
    arguments: Sequence[str],
    variables: Mapping[str, str],
    stdout: int | IO[str] | None,
    stderr: int | None,
) -> subprocess.Popen[bytes]:
    """Start a command of ours that ends when this process does, even if this one is killed.

    Args:
        arguments: What follows ``submodel``.
        variables: Its environment.
        stdout: As `subprocess.Popen` takes it.
        stderr: As `subprocess.Popen` takes it.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "submodel", *arguments],
        env={**variables, _FOLLOWS: "1"},
        stdin=subprocess.PIPE,  # never written to: its end is the sign of ours
        stdout=stdout,
        stderr=stderr,
        process_group=0,  # Ctrl-C reaches the children through us alone, once
    )


def launch(arguments: Sequence[str], processes: int) -> int:
    """Run this command in so many processes; returns the exit status of the first.

    They talk over loopback only. The first one prints; a process that dies ends the run, and the
    first says how to go on. When this process is told to end, they save their last round; when it
    is killed, they notice that themselves (`follow_launcher`).
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
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: object) -> None:
        for child in children:
            child.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    before = {n: signal.signal(n, pass_on) for n in endings()}
    try:
        for rank in range(processes):
            environment = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            out = None if rank == 0 else subprocess.DEVNULL
            children.append(start_follower(arguments, environment, out, out))
        return _wait(children)
    except OSError as error:
        raise SubmodelError(f"cannot start {processes} processes: {error}") from None
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
            if child.stdin is not None:
                child.stdin.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(children: Sequence[subprocess.Popen[bytes]]) -> int:
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
                print("another process of the run was lost: 'submodel resume' goes on", flush=True)
                first.kill()
                first.wait()
    for child in children[1:]:
        try:
            child.wait(_GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
    return first.returncode if first.returncode >= 0 else 128 - first.returncode
