"""Processes that start in a moment, from a server that has all of `submodel` loaded.

They are processes like any other, with a number to send signals to; only the seconds are saved in
which an interpreter loads PyTorch. What they start themselves is started as ever.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory

_LOADED = [
    *("submodel.cli.training", "submodel.config.setup", "submodel.runs.loop"),
    *("submodel.model.axes.measure", "submodel.engines.batched.engine", "submodel.report.tables"),
    *("submodel.data.sources.digits", "matplotlib.figure", "matplotlib.backends.backend_agg"),
]


def forking() -> ForkServerContext:
    """The means to start processes so."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, *_LOADED])
    return context


def start_command(
    *arguments: str | Path,
    cwd: Path | None = None,
    stdout: str | Path = os.devnull,
    stderr: str | Path = os.devnull,
) -> ForkServerProcess:
    """The command `submodel` with these arguments; its exit status is ``exitcode``.

    Args:
        arguments: What follows `submodel`.
        cwd: Where it runs.
        stdout: The file that it prints to.
        stderr: The file that its errors go to.
    """
    words = [str(argument) for argument in arguments]
    files = [os.devnull, str(stdout), str(stderr)]
    process = forking().Process(target=_main, args=(words, str(cwd or Path.cwd()), files))
    process.start()
    return process


def run_command(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, when it has ended."""
    with TemporaryDirectory() as folder:
        out, errors = Path(folder) / "out", Path(folder) / "errors"
        process = start_command(*arguments, cwd=cwd, stdout=out, stderr=errors)
        process.join()
        assert process.exitcode is not None
        texts = out.read_text("utf-8"), errors.read_text("utf-8")
    return subprocess.CompletedProcess(list(map(str, arguments)), process.exitcode, *texts)


def _main(words: list[str], cwd: str, files: list[str]) -> None:
    for stream, file in enumerate(files):
        kind = os.O_RDONLY if stream == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        os.dup2(os.open(file, kind), stream)
    os.chdir(cwd)
    # tests that a shell started in the background, or under nohup, ignore these
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.argv = ["submodel", *words]
    from submodel.cli import main

    main()
