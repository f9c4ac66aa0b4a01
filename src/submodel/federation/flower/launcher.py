"""Runs ``flower-superlink`` (guarded) or ``flower-supernode``, and ends with who started it.

Run by its path, not as a module: a SuperNode on a small device then holds Flower in memory, but
not the whole package with PyTorch. So it imports nothing of the package, but in a process that it
forks for the purpose: the one that starts apps (superexec.py).
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
_FIRST, _LAST, _GROWTH = 0.25, 3.0, 1.4  # seconds between looks for a message
_ANSWER = 0.1  # seconds between looks for an app's answer
_HEARTBEAT = 15  # seconds; Flower's 30 list a device that died, and refuse its return, for a minute
_LOOKS, _PAUSE = 20, 0.05  # at what is left below us; a dying process may still start one

_is_ending = threading.Event()


def follow_parent() -> None:
    """Stop this process when the one that holds the other end of its standard input is gone.

    However the parent dies, the system closes its end. Unlike Linux's parent-death signal this
    does not depend on the thread that started us, and it works on every system.
    """
    threading.Thread(target=_wait_and_end, name="parent", daemon=True).start()


def _wait_and_end() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    _is_ending.set()
    # What we have started first: of itself, a ServerApp outlives its SuperLink.
    me = psutil.Process()
    for _ in range(_LOOKS):
        killed_processes = [one for one in me.children(recursive=True) if _end(one)]
        if not killed_processes:
            break
        time.sleep(_PAUSE)
    os.kill(os.getpid(), signal.SIGTERM)


def _wait_and_say(child: int) -> None:
    """End, and be started again, when there is nothing left that starts apps."""
    os.waitpid(child, 0)
    if not _is_ending.is_set():
        print("submodel: the process that starts apps has ended", flush=True)
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


class Pauses:
    """What Flower's SuperNode takes for ``time``: it looks for messages sooner after one.

    Flower sleeps for three seconds whenever there is none. The next of a run follows the last one
    when all devices have answered, so the first looks are soon and later ones ever rarer, up to
    those three seconds. While an app works on its answer, Flower sleeps for less.
    """

    def __init__(self) -> None:
        self._pause = _FIRST

    def sleep(self, seconds: float) -> None:
        """At most so many seconds."""
        if seconds < _LAST:
            self._pause = _FIRST
            time.sleep(min(seconds, _ANSWER))
        else:
            time.sleep(min(seconds, self._pause))
            self._pause = min(self._pause * _GROWTH, _LAST)


def start_apps(kind: str, runtime: list[str]) -> None:
    """Fork a process that starts apps; or have Flower's program do so if ours cannot.

    ``runtime`` is where their tasks are, in the arguments of Flower's programs.
    """
    parent = os.getpid()
    if child := os.fork():
        threading.Thread(target=_wait_and_say, args=(child,), name="apps", daemon=True).start()
        return
    try:
        from submodel.federation.flower import superexec

        command = superexec.wait_for_app(kind, runtime, parent)
    except Exception as error:  # whatever another version of Flower comes up with
        reason = f"{type(error).__name__}: {error}".replace("\n", " ")
        print(
            f"submodel: every message starts a program that imports PyTorch, as what starts apps "
            f"sooner does not go with this version of Flower ({reason})",
            flush=True,
        )
        os.execvp(_FLOWERS, [_FLOWERS, *runtime, "--parent-pid", str(parent)])
    if command is not None:
        superexec.run_app(command)
    os._exit(0)  # its memory is for the system to free


def run_flower() -> None:
    """``launcher.py superlink|supernode [RUNTIME ARGUMENTS] -- ARGUMENTS``."""
    split = sys.argv.index("--")
    kind, *runtime = sys.argv[1:split]
    del sys.argv[1 : split + 1]
    if kind == "superlink":
        importlib.import_module("flwr.superlink.main")  # once for both processes
        run = runpy.run_path(str(_HERE / "guard.py"))["run_superlink"]
    else:
        from flwr.supercore import heartbeat
        from flwr.supernode import fleet_http_connection as connection
        from flwr.supernode import start_client_internal as supernode
        from flwr.supernode.cli import flower_supernode as run

        for names in (vars(heartbeat), vars(connection)):  # another version may not have it
            if "HEARTBEAT_DEFAULT_INTERVAL" in names:
                names["HEARTBEAT_DEFAULT_INTERVAL"] = _HEARTBEAT
        names = vars(supernode)
        if names.get("time") is time:
            names["time"] = Pauses()
        else:
            print("submodel: this version of Flower looks for messages when it likes", flush=True)
    if runtime and sys.platform == "linux":  # elsewhere a fork does not go with system libraries
        sys.argv += ["--isolation", "process"]
        start_apps(kind, runtime)  # before there is any thread
    follow_parent()
    run()


if __name__ == "__main__":
    run_flower()
