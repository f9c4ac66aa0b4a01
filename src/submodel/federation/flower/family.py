"""The processes below a process, on Linux; elsewhere none are seen.

Used by launcher.py too, which is run by its path, and so imports nothing of the package.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Relative(NamedTuple):
    """A process; when it started tells it from a later one with the same number."""

    pid: int
    started: int


def relatives(pid: int) -> set[Relative]:
    """All that run below one."""
    children: dict[int, list[Relative]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        fields = _fields(path)
        if fields and fields[0] != "Z":
            one = Relative(int(path.name), int(fields[19]))
            children.setdefault(int(fields[1]), []).append(one)
    found: set[Relative] = set()
    below = list(children.get(pid, []))
    while below:
        one = below.pop()
        found.add(one)
        below += children.get(one.pid, [])
    return found


def runs(one: Relative) -> bool:
    """Whether it still does."""
    fields = _fields(Path(f"/proc/{one.pid}"))
    return bool(fields) and fields[0] != "Z" and int(fields[19]) == one.started


def _fields(process: Path) -> list[str]:
    """State, parent and so on, from after the name (which may hold anything) in ``stat``."""
    try:
        return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
