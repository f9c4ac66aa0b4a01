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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from submodel.engines.processes.followers import FOLLOWER_THREAD, GRACE, Follower, Followers
from submodel.errors import SubmodelError

_LOOPBACK = "127.0.0.1"
_FIRST_PORT, _PORTS, _TRIES = 12_000, 20_000, 100
_MOST_PER_CORE = 16


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
    if "RANK" in os.environ and any(t.name == FOLLOWER_THREAD for t in threading.enumerate()):
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def launch(arguments: Sequence[str], processes: int) -> int:
    """Run this command in so many processes; returns the exit status of the first.

    They talk over loopback only. The first one prints; a process that dies ends the run, and the
    first says how to go on. When this process is told to end, they save their last round; when it
    is killed, they notice that themselves (`followers`).
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

    def pass_on(number: int, _: object) -> None:
        for child in children:
            child.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    before = {n: signal.signal(n, pass_on) for n in endings()}
    try:
        with Followers() as followers:
            for rank in range(processes):
                environment = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                output = None if rank == 0 else subprocess.DEVNULL
                children.append(followers.start(arguments, environment, output))
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
            if time.monotonic() - lost_at > GRACE and not has_signalled:
                first.send_signal(signal.SIGTERM)
                has_signalled = True
            elif time.monotonic() - lost_at > 2 * GRACE:
                text = "another process of the run was lost: 'submodel resume' goes on"
                print(text, file=sys.stderr, flush=True)
                first.send_signal(signal.SIGKILL)
                first.wait()
    for child in children[1:]:
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
    status = first.wait()
    return status if status >= 0 else 128 - status
