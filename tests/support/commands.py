"""The command `submodel`, in a separate process or in this one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Command = Callable[..., subprocess.CompletedProcess[str]]


def process(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Start the command like a user."""
    command = [sys.executable, "-m", "submodel", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
