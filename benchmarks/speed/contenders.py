"""Contenders as processes, which start once and run a round on request, one at a time."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OURS = ("local", "processes")
OTHERS = ("flower", "pfl")  # installed from requirements.txt, perhaps for another interpreter
BY_TORCH = {f"{name}-torch": name for name in OURS}
"""Our engines with the kernels of torch instead of native ones."""
CONTENDERS = ("bare", *OURS, *BY_TORCH, *OTHERS)
_ROOT = Path(__file__).resolve().parents[2]
_TO_PREPARE, _FOR_A_ROUND, _TO_END = 900.0, 1800.0, 30.0  # seconds


class ContenderError(Exception):
    """Failure of a contender, with the reason."""


def _isolated(command: Sequence[str]) -> list[str]:
    """Wrap a command so that it has no network but loopback, and leaves no processes behind.

    Ray listens on every interface and looks up addresses of cloud services.
    """
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        raise ContenderError("the commands unshare and ip are needed to run Ray without a network")
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    namespaces = ["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    shell = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    return ["unshare", *user, *namespaces, *shell, *command]


class Contender:
    """A contender on a workload, in its own process."""

    def __init__(
        self, name: str, workload: str, scale: float, python: str, root: Path = _ROOT
    ) -> None:
        self.name = name
        self.about: dict[str, Any] = {}
        interpreter = python if name in OTHERS else sys.executable
        command = [interpreter, "-m", f"benchmarks.speed.{BY_TORCH.get(name, name)}"]
        command += ["--workload", workload, "--scale", str(scale)]
        command += ["--kernels", "torch"] if name in BY_TORCH else []
        if name == "flower":
            command = _isolated(command)
        paths = [str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._begin = time.perf_counter()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                bufsize=0,
                cwd=root,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
                start_new_session=True,
            )
        except OSError as error:
            raise ContenderError(f"cannot start: {error}") from None
        self._rest = b""

    def prepare(self) -> None:
        """Wait until the contender is ready."""
        self.about = self._answer(_TO_PREPARE)["ready"]
        self.about["seconds_to_prepare"] = round(time.perf_counter() - self._begin, 1)

    def go(self) -> dict[str, Any]:
        """Run a round."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"go\n")
        except BrokenPipeError:
            raise ContenderError(self._last_words()) from None
        return self._answer(_FOR_A_ROUND)

    def _answer(self, patience: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        until = time.perf_counter() + patience
        while b"\n" not in self._rest:
            left = until - time.perf_counter()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise ContenderError(f"no answer within {patience:.0f} s")
            got = os.read(self._process.stdout.fileno(), 1 << 16)
            if not got:
                raise ContenderError(self._last_words())
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        """Describe the end of the process by its last line of output."""
        self._process.wait(_TO_END)
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        words = lines[-1].strip() if lines else "no output"
        return f"ended with status {self._process.returncode}: {words}"

    def close(self) -> None:
        """End the process by closing its input, then by signals to its session."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                os.killpg(self._process.pid, number)
            try:
                self._process.wait(_TO_END)
                break
            except subprocess.TimeoutExpired:
                continue
        self._process.stdout.close()
        self._log.close()
