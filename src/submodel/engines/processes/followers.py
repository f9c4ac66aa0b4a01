"""Commands of ours that end when this process does, even if this one is killed."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from submodel.engines.processes.nursery import MESSAGE

GRACE = 20.0
"""Seconds that a process has to end by itself."""
_FOLLOWS = "SUBMODEL_FOLLOWS"  # set for those whose standard input is held open by their launcher
FOLLOWER_THREAD = "launcher"
"""The thread of a follower that waits for its launcher's end."""


def follow_launcher() -> None:
    """If `Followers` started this process, end with who called it, however that ends.

    The system closes its end of our standard input then, on every system and whichever of its
    threads started us. We are told as by a kill, so that the last round is saved, and made to end
    if that takes too long: somebody may wait for another process that will never answer.
    """
    if os.environ.pop(_FOLLOWS, None) is not None:
        threading.Thread(target=_wait_and_end, name=FOLLOWER_THREAD, daemon=True).start()


def _wait_and_end() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(128 + signal.SIGTERM)


class Follower(Protocol):
    """A command that runs, as `subprocess.Popen` has it."""

    @property
    def returncode(self) -> int | None:
        """What `poll` last said."""

    def poll(self) -> int | None:
        """The exit status if it has ended; minus the signal's number if that ended it."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, when it has ended; `subprocess.TimeoutExpired` if it has not by then."""

    def send_signal(self, sig: int) -> None:
        """Send it a signal, if it has not ended."""


class Followers:
    """Starts commands of ours; those that still run when it is closed are killed.

    On Linux they are forked from a process with everything loaded (`nursery`), which waits for more
    as long as this one lives, so that all but the first start in a moment; elsewhere each is
    started by itself.

    >>> with Followers() as followers:
    ...     followers.start(["--version"], os.environ, subprocess.DEVNULL).wait()
    0
    """

    def __init__(self) -> None:
        self._followers: list[Follower] = []
        self._open_ends: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for follower in self._followers:
            if follower.poll() is None:
                follower.send_signal(signal.SIGKILL)
                follower.wait()
        for end in self._open_ends:
            os.close(end)

    def start(
        self, arguments: Sequence[str], variables: Mapping[str, str], output: int | None
    ) -> Follower:
        """Start a command.

        Args:
            arguments: What follows ``submodel``.
            variables: Its environment.
            output: The file that it writes to, or `subprocess.DEVNULL`; None is where we write to.
        """
        theirs, ours = os.pipe()  # never written to: its end is the sign of ours
        self._open_ends.append(ours)
        variables = {**variables, _FOLLOWS: "1"}
        try:
            if sys.platform == "linux":
                follower: Follower = _nursery().start(arguments, variables, theirs, output)
            else:
                follower = subprocess.Popen(
                    [sys.executable, "-P", "-m", "submodel", *arguments],
                    env=variables,
                    stdin=theirs,
                    stdout=output,
                    stderr=output,
                    process_group=0,  # Ctrl-C reaches the children through us alone, once
                )
        finally:
            os.close(theirs)
        self._followers.append(follower)
        return follower


class _NurseryLink:
    """A nursery, and who was born there."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._variables = dict(os.environ)
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._statuses: list[int | None] = []
        self._core_seconds: dict[int, float] = {}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__package__}.nursery", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is not for it
            )

    def start(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        stdin: int,
        output: int | None,
    ) -> _ForkedCommand:
        number = len(self._statuses)
        differing: dict[str, str | None] = dict.fromkeys(self._variables.keys() - variables)
        differing |= {n: v for n, v in variables.items() if self._variables.get(n) != v}
        request = {
            "number": number,
            "arguments": list(arguments),
            "variables": differing,
            "folder": str(Path.cwd()),
        }
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            if output is None:
                files = [stdin, 1, 2]
            else:
                files = [stdin, *[nowhere if output == subprocess.DEVNULL else output] * 2]
            socket.send_fds(self._link, [json.dumps(request).encode()], files)
        finally:
            os.close(nowhere)
        self._statuses.append(None)
        return _ForkedCommand(self, number)

    def send_signal(self, number: int, sig: int) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._link.send(json.dumps({"number": number, "signal": int(sig)}).encode())

    def status(self, number: int, patience: float | None) -> int | None:
        """How it ended, after so many seconds at most."""
        deadline = None if patience is None else time.monotonic() + patience
        while self._statuses[number] is None:
            seconds_left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._link], [], [], seconds_left)[0]:
                return None
            if message := self._link.recv(MESSAGE):
                ending = json.loads(message)
                self._statuses[ending["number"]] = ending["status"]
                self._core_seconds[ending["number"]] = ending["core_seconds"]
            else:  # the nursery was killed; that they are nobody's children does not end them
                self._statuses = [-signal.SIGKILL if s is None else s for s in self._statuses]
        return self._statuses[number]

    def core_seconds(self, number: int) -> float | None:
        """What it took of a core, if it has ended and that is known."""
        return self._core_seconds.get(number)

    @property
    def is_ours(self) -> bool:
        """Whether it still waits, and for this process: not for one that this was forked from."""
        return self._owner == os.getpid() and self._process.poll() is None

    def close(self) -> None:
        """Let it end."""
        if self._owner == os.getpid():
            self._link.close()
            self._process.wait()


_links: list[_NurseryLink] = []  # the last is the one that waits


def _nursery() -> _NurseryLink:
    """The nursery of this process."""
    if not _links or not _links[-1].is_ours:
        _links.append(_NurseryLink())
        atexit.register(_links[-1].close)
    return _links[-1]


class _ForkedCommand:
    """A command that was forked."""

    def __init__(self, link: _NurseryLink, number: int) -> None:
        self._link, self._number = link, number

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._link.status(self._number, 0.0)

    def wait(self, timeout: float | None = None) -> int:
        if (status := self._link.status(self._number, timeout)) is None:
            raise subprocess.TimeoutExpired("submodel", timeout or 0.0)
        return status

    def send_signal(self, sig: int) -> None:
        self._link.send_signal(self._number, sig)

    @property
    def core_seconds(self) -> float | None:
        return self._link.core_seconds(self._number)


def core_seconds_of(follower: Follower) -> float | None:
    """What a command that has ended took of a core, with all that it started and waited for.

    Args:
        follower: of `Followers.start`.

    Returns:
        None where nobody counts it: on systems other than Linux.
    """
    return follower.core_seconds if isinstance(follower, _ForkedCommand) else None
