"""Memory of other processes of this machine, where the system lets them reach it (Linux)."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

_BOOT, _NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")


def machine_name() -> str | None:
    """Equal for processes that can reach each other's memory; None where none can.

    >>> machine_name() == machine_name()
    True
    """
    try:
        if hasattr(os, "memfd_create"):
            return f"{_BOOT.read_text('utf-8').strip()} {_NAMESPACE.readlink()}"
    except OSError:
        pass
    return None


def map_memory(pid: int, handle: int, *, writes: bool) -> mmap.mmap | None:
    """The memory that a process has opened; None if it cannot be reached.

    Args:
        pid: of the process.
        handle: of the memory, there.
        writes: whether it may be written to.

    >>> map_memory(0, 0, writes=False)
    """
    try:
        mode = os.O_RDWR if writes else os.O_RDONLY
        own_handle = os.open(f"/proc/{pid}/fd/{handle}", mode | os.O_CLOEXEC)
        try:
            return mmap.mmap(
                own_handle, 0, access=mmap.ACCESS_WRITE if writes else mmap.ACCESS_READ
            )
        finally:
            os.close(own_handle)
    except (OSError, ValueError):
        return None
