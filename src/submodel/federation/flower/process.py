"""Flower process as a child: environment, files, log, and an end of all its descendants.

The process has its own home, sends no telemetry and installs nothing.
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
    # chunk size of devices' messages, which limits their requests (bounds.py)
    "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE": str(5 << 20),
}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a Flower process: this one's, with settings of Flower.

    >>> environment(Path("/var/flower"))["FLWR_HOME"]
    '/var/flower'
    """
    # Flower starts helpers by name: programs of this Python come first
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    flower_variables = {"FLWR_HOME": str(home.absolute()), "PATH": programs.rstrip(os.pathsep)}
    return {**os.environ, **_SETTINGS, **flower_variables, **proxy_exceptions(os.environ)}


def proxy_exceptions(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables that exempt loopback from proxies, in both spellings.

    Flower's processes on one machine communicate over HTTP, and its client uses a proxy of the
    environment even for that.

    >>> proxy_exceptions({"NO_PROXY": "intranet"})["no_proxy"]
    'intranet,127.0.0.1,localhost,::1'
    """
    exceptions = variables.get("no_proxy") or variables.get("NO_PROXY") or ""
    hosts = [host.strip() for host in exceptions.split(",") if host.strip()]
    if "*" not in hosts:
        hosts += [host for host in _LOOPBACK if host not in hosts]
    return dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(hosts))


@dataclass(frozen=True)
class ServerFiles:
    """Files of a server: CA of the federation, certificate signed by it, and key."""

    ca: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class DeviceFiles:
    """Files of a device: CA to trust, and private key (OpenSSH, EC P-384)."""

    ca: Path
    key: Path


def descendants(pid: int) -> set[psutil.Process]:
    """Return all running descendants of a process; none if it has ended.

    >>> import os, subprocess
    >>> with subprocess.Popen(["sleep", "9"]) as child:
    ...     below = descendants(os.getpid())
    ...     child.kill()
    >>> child.pid in {one.pid for one in below}
    True
    """
    try:
        return {one for one in psutil.Process(pid).children(recursive=True) if is_running(one)}
    except psutil.NoSuchProcess:
        return set()


def is_running(one: psutil.Process) -> bool:
    """Whether a process runs: not ended, not a zombie, not a new process with its number.

    >>> is_running(psutil.Process())
    True
    """
    try:
        return bool(one.is_running() and one.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def kill(one: psutil.Process) -> None:
    """Kill a process, if it runs and belongs to this user."""
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        one.kill()


_LAUNCHER = Path(__file__).with_name("launcher.py")
_STOP = 15.0  # seconds for a clean end; Flower's own limit is 5
# Seconds for Flower's helpers to end after their parent. A ServerApp without its SuperLink never
# ends: it tries to report its end there for ever.
_ORPHAN_SECONDS = 1.0
_KILL_TIMEOUT = 5.0  # seconds for the system to end a killed process
_SCAN_INTERVAL = 0.5  # seconds between scans for descendants
_LAST_LINES = 12
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


class Child:
    """Child process: a SuperLink or a SuperNode, which ends when this process does.

    Args:
        kind: superlink or supernode.
        arguments: arguments of Flower's program.
        home: folder of Flower's files.
        log: file of its output.
        runtime: its address for apps, as arguments of Flower's programs; if empty, Flower starts
            the apps.
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
        self._descendants: set[psutil.Process] = set()
        self._next_scan = 0.0
        self._log_start = self._log_read = 0

    def start(self) -> None:
        """Start or restart the process; its output is appended to the log."""
        self.stop()
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab") as log:
                self._log_start = self._log_read = log.tell()
                self._process = subprocess.Popen(
                    self._command,
                    env=environment(self._home),
                    stdin=subprocess.PIPE,  # never written to: closed when this process ends
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    process_group=0,  # Ctrl-C reaches this process only
                )
        except OSError as error:
            raise SubmodelError(f"cannot start Flower: {error}") from None

    def alive(self) -> bool:
        """Whether the process runs."""
        if self._process is None or self._process.poll() is not None:
            return False
        if time.monotonic() > self._next_scan:  # to know the descendants if it dies suddenly
            processes = {one for one in self._descendants if is_running(one)}
            self._descendants = processes | descendants(self._process.pid)
            self._next_scan = time.monotonic() + _SCAN_INTERVAL
        return True

    @property
    def returncode(self) -> int | None:
        """Exit status of the process, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    def output(self) -> str:
        """Return the output since the last start."""
        return _decode(self._read_log(self._log_start))

    def new_output(self) -> str:
        """Return the output since the last call, in whole lines."""
        text, newline, _ = self._read_log(self._log_read).rpartition(b"\n")
        self._log_read += len(text + newline)
        return _decode(text)

    def last_lines(self) -> str:
        """Return the last lines of the output, for an error message."""
        lines = [line.rstrip() for line in self.output().splitlines() if line.strip()]
        return "\n".join(lines[-_LAST_LINES:]) or "(no output)"

    def _read_log(self, start: int) -> bytes:
        """Return the log from a byte on."""
        try:
            with self.log.open("rb") as log:
                log.seek(start)
                return log.read()
        except OSError:
            return b""

    def stop(self) -> None:
        """End the process, if it runs, and all its descendants."""
        process, self._process = self._process, None
        if process is None:
            return
        self._descendants |= descendants(process.pid)
        process.terminate()
        try:
            process.wait(_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()
        end(self._descendants)
        self._descendants = set()


def _decode(text: bytes) -> str:
    """Decode a log and remove its colours."""
    return _COLOUR.sub("", text.decode(errors="replace"))


def end(processes: set[psutil.Process]) -> None:
    """Wait shortly for processes to end, then kill them."""
    for one in _survivors(processes, _ORPHAN_SECONDS):
        kill(one)
    _survivors(processes, _KILL_TIMEOUT)


def _survivors(processes: set[psutil.Process], seconds: float) -> set[psutil.Process]:
    """Return the processes that still run after so many seconds."""
    deadline = time.monotonic() + seconds
    survivors = {one for one in processes if is_running(one)}
    while survivors and time.monotonic() < deadline:
        time.sleep(0.05)
        survivors = {one for one in survivors if is_running(one)}
    return survivors
