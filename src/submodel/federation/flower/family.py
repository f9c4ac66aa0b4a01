"""The processes below a process."""

from __future__ import annotations

from contextlib import suppress

import psutil


def relatives(pid: int) -> set[psutil.Process]:
    """All that run below a process; none if it is gone.

    Args:
        pid: Its number.

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

    Args:
        one: A process that ran once.

    >>> is_running(psutil.Process())
    True
    """
    try:
        return bool(one.is_running() and one.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def kill(one: psutil.Process) -> None:
    """End it, if it still runs and is ours to end.

    Args:
        one: A process that ran once.
    """
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        one.kill()
