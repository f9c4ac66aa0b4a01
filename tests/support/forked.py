"""Processes that start quickly, from a server with all of `submodel` loaded.

They are normal processes with an id for signals; only the seconds for loading PyTorch are saved.
Their own children start normally.
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
    """Return the multiprocessing context of the server."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, *_LOADED])
    return context


def start_command(
    *arguments: str | Path,
    cwd: Path | None = None,
    stdout: str | Path = os.devnull,
    stderr: str | Path = os.devnull,
) -> ForkServerProcess:
    """Start the command `submodel`; its exit status is ``exitcode``.

    Args:
        arguments: arguments of `submodel`.
        cwd: working folder.
        stdout: file for its output.
        stderr: file for its errors.
    """
    words = [str(argument) for argument in arguments]
    files = [os.devnull, str(stdout), str(stderr)]
    process = forking().Process(target=_main, args=(words, str(cwd or Path.cwd()), files))
    process.start()
    return process


def run_command(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process to its end."""
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
    # tests in the background of a shell, or under nohup, ignore these
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.argv = ["submodel", *words]
    from submodel.cli import main

    main()
