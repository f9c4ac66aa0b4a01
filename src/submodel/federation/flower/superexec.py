"""A SuperExec that has imported PyTorch already, and forks a process for every app it starts.

Flower's own starts a program for every message to a device, which imports Flower, PyTorch and this
package for seconds before it does anything. This one asks the same interface the same question (is
there a task?), but it has imported them once; a copy of it then runs the program that Flower would
have started, with the same arguments. So every message still has a process of its own, of which
nothing is left for the next.

Nothing here may compute with PyTorch: a copy has none of the threads that it would have started.
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

from submodel.federation.post import growing_pauses

_PAUSE = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"  # a variable of Flower's, in seconds
_LONGEST = {"supernode": 0.25, "superlink": 1.0}  # without it, between looks for a task
_REFUSAL = 1.0  # seconds in which a device learns that it may not join: it needs no PyTorch
_APPS = {
    "supernode": ("flwr-clientapp", "submodel.federation.flower.client_app"),
    "superlink": ("flwr-serverapp", "submodel.federation.flower.server_app"),
}


def program(command: str) -> Callable[[], object]:
    """What a command of Flower's runs.

    >>> program("flwr-clientapp").__name__
    'flwr_clientapp'
    """
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name=command)
    main: Callable[[], object] = entry.load()
    return main


@cache
def import_apps(kind: str) -> None:
    """Import what the apps below a process of Flower's will need, once."""
    command, module = _APPS[kind]
    program(command)
    importlib.import_module(module)
    gc.collect()
    gc.freeze()  # so that looking for garbage copies no page that processes share


def wait_for_app(kind: str, runtime: Sequence[str], parent: int) -> list[str] | None:
    """Start a process for every task. Returns in each of these, with the command that it is to run.

    When the process ``parent``, which has the tasks, is gone, so is the work: None.
    """
    _be_called("superexec")
    ask, me = _question(runtime), os.getpid()
    longest = float(os.environ.get(_PAUSE, _LONGEST[kind]))
    pauses, first_answer = growing_pauses(min(0.1, longest), longest), math.inf
    while os.getppid() == parent:
        _bury_children()
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


def _question(runtime: Sequence[str]) -> Callable[[], AcquireTaskResponse | None]:
    """Whether there is a task; None if nobody answers, be it not yet or no more."""
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
            if error.response.is_client_error:  # another interface than that of this version
                raise
            return None

    return ask


def _be_called(name: str) -> None:
    """Be listed by the system under another name than what was started."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name[:15])


def _bury_children() -> None:
    """Let apps that have ended go."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def run_app(command: Sequence[str]) -> NoReturn:
    """Run a program of Flower's in this process, as if it had been started, and end."""
    # what code of others draws from NumPy's own generator: not what every app before it drew
    np.random.set_state(np.random.RandomState().get_state())  # noqa: NPY002
    name = command[0]
    _be_called(name)
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
    """End as Python does, but leave memory to the system: to free it would copy what is shared."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
