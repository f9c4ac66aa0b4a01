"""Processes that start in a moment, from a server that has all of `submodel` loaded.

They are processes like any other, with a number to send signals to; only the seconds are saved in
which an interpreter loads PyTorch.
"""

from __future__ import annotations

import os
import sys
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

_LOADED = ["submodel.cli.training", "submodel.prepare.setup", "submodel.runs.loop"]


def forking() -> ForkServerContext:
    """The means to start processes so."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, *_LOADED])
    return context


def start_command(*arguments: str | Path) -> ForkServerProcess:
    """The command `submodel` with these arguments, silent; its exit status is ``exitcode``."""
    process = forking().Process(target=_main, args=([str(argument) for argument in arguments],))
    process.start()
    return process


def _main(arguments: list[str]) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    sys.argv = ["submodel", *arguments]
    from submodel.cli import main

    main()
