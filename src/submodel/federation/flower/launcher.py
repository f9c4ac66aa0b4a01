"""Launcher of ``flower-superlink`` (guarded) and ``flower-supernode``; ends with its parent.

It is run by its path, not as a module: a SuperNode on a small device then holds Flower in memory,
but not this package with PyTorch. Only the process that it forks to start apps (superexec.py)
imports the package.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

import psutil

_HERE = Path(__file__).parent
_FLOWERS = "flower-superexec"
_FIRST, _LAST, _GROWTH = 0.25, 3.0, 1.4  # seconds between polls for a message
_ANSWER = 0.1  # seconds between polls for an app's answer
_HEARTBEAT = (
    15  # seconds; with Flower's 30, a dead device is listed, and its return refused, for a minute
)
_SCANS, _PAUSE = 20, 0.05  # scans for child processes; a dying one may still start another

_is_ending = threading.Event()


def follow_parent() -> None:
    """Stop this process when the one at the other end of its standard input has ended.

    The system closes that end however the parent dies. Unlike Linux's parent-death signal, this
    does not depend on the parent's thread, and it works on every system.
    """
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    _is_ending.set()
    # end children first: a ServerApp outlives its SuperLink
    me = psutil.Process()
    for _ in range(_SCANS):
        killed_processes = [one for one in me.children(recursive=True) if _end(one)]
        if not killed_processes:
            break
        time.sleep(_PAUSE)
    os.kill(os.getpid(), signal.SIGTERM)


def _watch_child(child: int) -> None:
    """End this process when the child that starts apps has ended; the parent restarts it."""
    os.waitpid(child, 0)
    if not _is_ending.is_set():
        print("submodel: the process that starts apps has ended", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)


def _end(one: psutil.Process) -> bool:
    """Kill a process; return whether it was running."""
    try:
        if one.status() == psutil.STATUS_ZOMBIE:
            return False
        one.kill()
    except psutil.NoSuchProcess:
        return False
    return True


class Pauses:
    """Replacement for ``time`` in Flower's SuperNode, with short pauses after a message.

    Flower sleeps for three seconds when there is no message. The next message of a run follows once
    all devices have answered, so the first pauses are short and later ones grow to three seconds.
    While an app works on an answer, Flower sleeps for less.
    """

    def __init__(self) -> None:
        self._pause = _FIRST

    def sleep(self, seconds: float) -> None:
        """Sleep for at most so many seconds."""
        if seconds < _LAST:
            self._pause = _FIRST
            time.sleep(min(seconds, _ANSWER))
        else:
            time.sleep(min(seconds, self._pause))
            self._pause = min(self._pause * _GROWTH, _LAST)


def start_apps(kind: str, runtime: list[str]) -> None:
    """Fork a process that starts apps; if that fails, run Flower's own program for it.

    Args:
        kind: superlink or supernode.
        runtime: address of the tasks, as arguments of Flower's programs.
    """
    parent = os.getpid()
    if child := os.fork():
        threading.Thread(target=_watch_child, args=(child,), name="apps", daemon=True).start()
        return
    try:
        from submodel.federation.flower import superexec

        command = superexec.wait_for_app(kind, runtime, parent)
    except Exception as error:  # another version of Flower may raise anything
        reason = f"{type(error).__name__}: {error}".replace("\n", " ")
        print(
            f"submodel: every message starts a program that imports PyTorch, because the faster "
            f"start of apps fails with this version of Flower ({reason})",
            flush=True,
        )
        os.execvp(_FLOWERS, [_FLOWERS, *runtime, "--parent-pid", str(parent)])
    if command is not None:
        superexec.run_app(command)
    os._exit(0)  # without freeing memory, which the system does


def run_flower() -> None:
    """Run ``launcher.py superlink|supernode [RUNTIME ARGUMENTS] -- ARGUMENTS``."""
    split = sys.argv.index("--")
    kind, *runtime = sys.argv[1:split]
    del sys.argv[1 : split + 1]
    if kind == "superlink":
        importlib.import_module("flwr.superlink.main")  # import once for both processes
        run = runpy.run_path(str(_HERE / "guard.py"))["run_superlink"]
    else:
        from flwr.supercore import heartbeat
        from flwr.supernode import fleet_http_connection as connection
        from flwr.supernode import start_client_internal as supernode
        from flwr.supernode.cli import flower_supernode as run

        for names in (vars(heartbeat), vars(connection)):  # missing in some versions
            if "HEARTBEAT_DEFAULT_INTERVAL" in names:
                names["HEARTBEAT_DEFAULT_INTERVAL"] = _HEARTBEAT
        names = vars(supernode)
        if names.get("time") is time:
            names["time"] = Pauses()
        else:
            print("submodel: this version of Flower polls for messages at its own pace", flush=True)
    if runtime and sys.platform == "linux":  # other systems' libraries do not support fork
        sys.argv += ["--isolation", "process"]
        start_apps(kind, runtime)  # before there is any thread
    follow_parent()
    run()


if __name__ == "__main__":
    run_flower()
