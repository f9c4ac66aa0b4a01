"""SuperExec that imports PyTorch once and forks a process for every app.

Flower's own SuperExec starts a program for every message to a device, which imports Flower, PyTorch
and this package for seconds first. This one polls the same interface for tasks, but has imported
them already; a fork then runs the program that Flower would start, with the same arguments. So
every message still has its own process and leaves no state for the next.

This process must not compute with PyTorch: a fork has none of the threads that PyTorch starts.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import importlib.metadata
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NoReturn

import httpx
import numpy as np
from flwr.proto.runtime_pb2 import AcquireTaskRequest, AcquireTaskResponse
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.superexec.plugin import AutoExecPlugin
from flwr.supercore.tls import validate_and_resolve_root_certificates

from submodel.federation.channel import growing_pauses

_PAUSE = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"  # a variable of Flower's, in seconds
_LONGEST = {"supernode": 0.25, "superlink": 1.0}  # default: seconds between polls for a task
_REFUSAL = 1.0  # seconds before PyTorch is imported: a refused device needs none
_APPS = {
    "supernode": ("flwr-clientapp", "submodel.federation.flower.client_app"),
    "superlink": ("flwr-serverapp", "submodel.federation.flower.server_app"),
}


def program(command: str) -> Callable[[], object]:
    """Return the function of one of Flower's commands.

    >>> program("flwr-clientapp").__name__
    'flwr_clientapp'
    """
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name=command)
    main: Callable[[], object] = entry.load()
    return main


@cache
def import_apps(kind: str) -> None:
    """Import the modules that the apps need, once."""
    command, module = _APPS[kind]
    program(command)
    importlib.import_module(module)
    gc.collect()
    gc.freeze()  # so that garbage collection copies no shared memory pages


def wait_for_app(kind: str, runtime: Sequence[str], parent: int) -> list[str] | None:
    """Fork a process for every task; return in each fork with the command to run.

    Returns None when the process ``parent``, which provides the tasks, has ended.
    """
    _set_process_name("superexec")
    ask, me = _task_request(runtime), os.getpid()
    longest = float(os.environ.get(_PAUSE, _LONGEST[kind]))
    pauses, first_answer = growing_pauses(min(0.1, longest), longest), math.inf
    while os.getppid() == parent:
        _reap_children()
        answer = ask()
        if answer is not None:
            first_answer = min(first_answer, time.monotonic())
        if answer is not None and answer.HasField("task") and answer.token:
            import_apps(kind)
            command = [TASK_TYPE_TO_COMMAND[TaskType(answer.task.type)], *runtime]
            if not os.fork():
                return [*command, "--token", answer.token, "--parent-pid", str(me)]
            pauses = growing_pauses(min(0.1, longest), longest)
        elif time.monotonic() > first_answer + _REFUSAL:
            import_apps(kind)
        time.sleep(next(pauses))
    return None


def _task_request(runtime: Sequence[str]) -> Callable[[], AcquireTaskResponse | None]:
    """Return a function that polls for a task; it returns None if there is no answer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runtime-api-address", required=True)
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--root-certificates")
    options = parser.parse_args(runtime)
    client = RuntimeHttpClient.from_server_address(
        server_address=options.runtime_api_address,
        insecure=options.insecure,
        root_certificates=validate_and_resolve_root_certificates(
            options.root_certificates, options.insecure
        ),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
    )
    request = AcquireTaskRequest(supported_task_types=list(TASK_TYPE_TO_COMMAND))

    def ask() -> AcquireTaskResponse | None:
        try:
            return client.AcquireTask(request)
        except httpx.TransportError:
            return None
        except httpx.HTTPStatusError as error:
            if error.response.is_client_error:  # the interface of another version
                raise
            return None

    return ask


def _set_process_name(name: str) -> None:
    """Set the name under which the system lists this process."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name[:15])


def _reap_children() -> None:
    """Reap apps that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def run_app(command: Sequence[str]) -> NoReturn:
    """Run a program of Flower in this process, as if started by itself, and exit."""
    # reseed NumPy's global generator, or foreign code draws the same numbers in every fork
    np.random.set_state(np.random.RandomState().get_state())  # noqa: NPY002
    name = command[0]
    _set_process_name(name)
    if name not in AutoExecPlugin.visible_output_task_types:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(nowhere, stream.fileno())
    sys.argv = list(command)
    try:
        code = program(name)()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    _end(code if isinstance(code, int) else int(code is not None))


def _end(code: int) -> NoReturn:
    """Exit like Python, but leave memory to the system: freeing it would copy shared pages."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
