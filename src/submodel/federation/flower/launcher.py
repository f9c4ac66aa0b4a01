"""Runs ``flower-superlink`` (guarded) or ``flower-supernode``, and ends with who started it.

Run by its path, not as a module: a SuperNode on a small device then holds Flower in memory, but
not the whole package with PyTorch. So it imports nothing of the package.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

import psutil

_HERE = Path(__file__).parent
_LOOKS, _PAUSE = 20, 0.05  # at what is left below us; a dying process may still start one


def follow_parent() -> None:
    """Stop this process when the one that holds the other end of its standard input is gone.

    However the parent dies, the system closes its end. Unlike Linux's parent-death signal this
    does not depend on the thread that started us, and it works on every system.
    """
    threading.Thread(target=_wait_and_end, name="parent", daemon=True).start()


def _wait_and_end() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    # What we have started first: of itself, a ServerApp outlives its SuperLink.
    me = psutil.Process()
    for _ in range(_LOOKS):
        killed_processes = [one for one in me.children(recursive=True) if _end(one)]
        if not killed_processes:
            break
        time.sleep(_PAUSE)
    os.kill(os.getpid(), signal.SIGTERM)


def _end(one: psutil.Process) -> bool:
    """Kill a process; whether there was one."""
    try:
        if one.status() == psutil.STATUS_ZOMBIE:
            return False
        one.kill()
    except psutil.NoSuchProcess:
        return False
    return True


def run_flower() -> None:
    """``launcher.py superlink|supernode ARGUMENTS``."""
    kind = sys.argv.pop(1)
    follow_parent()
    if kind == "superlink":
        runpy.run_path(str(_HERE / "guard.py"), run_name="__main__")
    else:
        from flwr.supernode.cli import flower_supernode

        flower_supernode()


if __name__ == "__main__":
    run_flower()
