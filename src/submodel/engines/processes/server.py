"""The imports of the forkserver before it forks commands.

Importing PyTorch takes seconds, which a comparison of fifty runs would pay fifty times. The server
computes nothing: it has no threads that a fork would lose, and no accelerator.
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
    os.setpgid(0, 0)  # Ctrl-C and hangups go to the launcher, which forwards them
for _module in _MODULES:
    with contextlib.suppress(ImportError):  # a command that needs the module raises the error
        importlib.import_module(_module)
