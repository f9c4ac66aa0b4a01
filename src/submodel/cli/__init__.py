"""The command line, one short function per command. May import api and below."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Annotated, NoReturn

import typer

from submodel.cli import (
    advise,
    compare,
    devices,
    federation,
    models,
    report,
    research,
    theory,
    training,
    watching,
)
from submodel.cli.base import command_line
from submodel.engines.processes.followers import follow_launcher
from submodel.engines.processes.launch import endings
from submodel.errors import SubmodelError

_COMMANDS: dict[str, Callable[..., None]] = {
    "train": training.train_command,
    "resume": training.resume_command,
    "show": training.show_command,
    "runs": watching.runs_command,
    "score": training.score_command,
    "cost": models.cost_command,
    "inspect": models.inspect_command,
    "plan": models.plan_command,
    "fit": models.fit_command,
    "export": models.export_command,
    "generate": models.generate_command,
    "serve": devices.serve_command,
    "join": devices.join_command,
    "data": research.data_command,
    "reproduce": research.reproduce_command,
    "compare": compare.compare_command,
    "advise": advise.advise_command,
    "study": theory.study_command,
    "report": report.report_command,
    "config": models.config_command,
}
for _name, _command in _COMMANDS.items():
    command_line.command(name=_name)(_command)
command_line.add_typer(federation.federation_commands, name="federation")


@command_line.callback(invoke_without_command=True)
def version(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Train one model over devices that cannot hold it."""
    if show_version:
        print(f"submodel {metadata.version('submodel')}")
        raise typer.Exit


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """Run the command; a user's mistake is a sentence and exit status 2, never a traceback."""
    for number in set(endings()) - {signal.SIGINT}:  # which Python turns into this already
        signal.signal(number, _stop)
    follow_launcher()
    try:
        command_line()
    except SubmodelError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a path that cannot be made or read, a full disk
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
