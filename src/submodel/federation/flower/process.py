"""A Flower process as our child: its environment, files, log and end, and no relative left behind.

It has its own home, no telemetry, and installs nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from submodel.core.errors import SubmodelError

_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    # how devices cut what they send, and so what a server takes from them (bounds.py)
    "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE": str(5 << 20),
}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def environment(home: Path) -> dict[str, str]:
    """What a Flower process inherits: our environment, and what Flower must be told.

    >>> environment(Path("/var/flower"))["FLWR_HOME"]
    '/var/flower'
    """
    # Flower starts its helpers by name, so those of this Python must be found first
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    flower_variables = {"FLWR_HOME": str(home.absolute()), "PATH": programs.rstrip(os.pathsep)}
    return {**os.environ, **_SETTINGS, **flower_variables, **past_proxies(os.environ)}


def past_proxies(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that keep loopback out of a machine's proxy, in both spellings.

    Flower's processes of one machine talk to each other over HTTP, and its client sends even
    that through a proxy if the environment names one.

    >>> past_proxies({"NO_PROXY": "intranet"})["no_proxy"]
    'intranet,127.0.0.1,localhost,::1'
    """
    exceptions = variables.get("no_proxy") or variables.get("NO_PROXY") or ""
    hosts = [host.strip() for host in exceptions.split(",") if host.strip()]
    if "*" not in hosts:
        hosts += [host for host in _LOOPBACK if host not in hosts]
    return dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(hosts))


@dataclass(frozen=True)
class ServerFiles:
    """Of a server: the federation's CA, the certificate signed by it, and its key."""

    ca: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class DeviceFiles:
    """Of a device: whom to trust, and its own private key (OpenSSH, EC P-384)."""

    ca: Path
    key: Path


def relatives(pid: int) -> set[psutil.Process]:
    """All that run below a process; none if it is gone.

    >>> import os, subprocess
    >>> with subprocess.Popen(["sleep", "9"]) as child:
    ...     below = relatives(os.getpid())
    ...     child.kill()
    >>> child.pid in {one.pid for one in below}
    True
    """
    try:
        return {one for one in psutil.Process(pid).children(recursive=True) if is_running(one)}
    except psutil.NoSuchProcess:
        return set()


def is_running(one: psutil.Process) -> bool:
    """Whether it still does: not gone, not a zombie, not another one of the same number.

    >>> is_running(psutil.Process())
    True
    """
    try:
        return bool(one.is_running() and one.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def kill(one: psutil.Process) -> None:
    """End it, if it still runs and is ours to end."""
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        one.kill()


_LAUNCHER = Path(__file__).with_name("launcher.py")
_STOP = 15.0  # seconds for a clean end; Flower's own limit is 5
# Seconds for Flower's helpers to notice that they are alone. A ServerApp whose SuperLink is gone
# never does: it tries to report its end there for ever.
_ALONE = 1.0
_KILL_PATIENCE = 5.0  # seconds that the system may take to end a process that was killed
_LOOK = 0.5  # seconds between two looks at what it has started
_LAST_LINES = 12
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


class Child:
    """A SuperLink or a SuperNode (``kind``) with its arguments. It ends when this process does.

    ``runtime`` is where its apps find it, in the arguments of Flower's programs; without it, it has
    none but those that Flower starts.
    """

    def __init__(
        self,
        kind: str,
        arguments: Sequence[str],
        home: Path,
        log: Path,
        runtime: Sequence[str] = (),
    ) -> None:
        launcher = [sys.executable, "-P", str(_LAUNCHER)]
        self._command = [*launcher, kind, *runtime, "--", *arguments]
        self._home, self.log = home, log
        self._process: subprocess.Popen[bytes] | None = None
        self._family: set[psutil.Process] = set()
        self._look_again = 0.0
        self._log_start = self._log_read = 0

    def start(self) -> None:
        """Start it, again if need be; what it says is added to the log."""
        self.stop()
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab") as log:
                self._log_start = self._log_read = log.tell()
                self._process = subprocess.Popen(
                    self._command,
                    env=environment(self._home),
                    stdin=subprocess.PIPE,  # never written to: its end is the sign of ours
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    process_group=0,  # Ctrl-C is ours to pass on
                )
        except OSError as error:
            raise SubmodelError(f"cannot start Flower: {error}") from None

    def alive(self) -> bool:
        """Whether it runs."""
        if self._process is None or self._process.poll() is not None:
            return False
        if time.monotonic() > self._look_again:  # so they are known if it dies without a word
            family = {one for one in self._family if is_running(one)}
            self._family = family | relatives(self._process.pid)
            self._look_again = time.monotonic() + _LOOK
        return True

    @property
    def returncode(self) -> int | None:
        """Its exit status once it has ended, negative for a signal."""
        return None if self._process is None else self._process.poll()

    def output(self) -> str:
        """What it has said since its last start."""
        return _decode(self._read_log(self._log_start))

    def news(self) -> str:
        """What it has said since the last call, in whole lines."""
        text, newline, _ = self._read_log(self._log_read).rpartition(b"\n")
        self._log_read += len(text + newline)
        return _decode(text)

    def last_lines(self) -> str:
        """The end of that, for an error message."""
        lines = [line.rstrip() for line in self.output().splitlines() if line.strip()]
        return "\n".join(lines[-_LAST_LINES:]) or "(it said nothing)"

    def _read_log(self, start: int) -> bytes:
        """The log from a byte on."""
        try:
            with self.log.open("rb") as log:
                log.seek(start)
                return log.read()
        except OSError:
            return b""

    def stop(self) -> None:
        """End it and everything below it; nothing happens if it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        self._family |= relatives(process.pid)
        process.terminate()
        try:
            process.wait(_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()
        end(self._family)
        self._family = set()


def _decode(text: bytes) -> str:
    """Text of a log, without its colours."""
    return _COLOUR.sub("", text.decode(errors="replace"))


def end(family: set[psutil.Process]) -> None:
    """Wait a little for these processes to end by themselves, then make them."""
    for one in _survivors(family, _ALONE):
        kill(one)
    _survivors(family, _KILL_PATIENCE)


def _survivors(family: set[psutil.Process], seconds: float) -> set[psutil.Process]:
    """Those that still run after so many seconds."""
    deadline = time.monotonic() + seconds
    survivors = {one for one in family if is_running(one)}
    while survivors and time.monotonic() < deadline:
        time.sleep(0.05)
        survivors = {one for one in survivors if is_running(one)}
    return survivors
