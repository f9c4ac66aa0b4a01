"""What the fork server imports before it forks commands: all that most of them need.

An interpreter takes seconds to load PyTorch, which a comparison of fifty runs would pay fifty
times. The server computes nothing: it has no threads that a fork would lose, and no accelerator.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys

_MODULES = (
    *("submodel.cli", "submodel.config.setup", "submodel.runs.loop", "submodel.runs.export"),
    *("submodel.engines.batched.engine", "submodel.engines.processes.group"),
    *("submodel.model.axes.measure", "submodel.report.tables", "typer", "rich.progress"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg"),
)

if "multiprocessing.forkserver" in sys.orig_argv[-1]:  # not where a test or tool imports this
    os.setpgid(0, 0)  # Ctrl-C and the end of a terminal are for the launcher, which passes them on
for _module in _MODULES:
    with contextlib.suppress(ImportError):  # a command that needs it says so
        importlib.import_module(_module)
