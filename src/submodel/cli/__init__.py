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
    join,
    models,
    plot,
    report,
    research,
    results,
    theory,
    training,
    watching,
)
from submodel.cli.base import command_line
from submodel.cli.help import offer_command
from submodel.engines.processes.followers import follow_launcher
from submodel.engines.processes.launch import endings
from submodel.errors import SubmodelError

_COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Train": {
        "train": training.train_command,
        "resume": training.resume_command,
    },
    "Before training": {
        "config": models.config_command,
        "data": research.data_command,
        "inspect": models.inspect_command,
        "cost": models.cost_command,
        "plan": models.plan_command,
        "advise": advise.advise_command,
    },
    "Look at results": {
        "runs": watching.runs_command,
        "watch": watching.watch_command,
        "show": results.show_command,
        "score": results.score_command,
        "report": report.report_command,
        "plot": plot.plot_command,
    },
    "Use the model": {
        "fit": results.fit_command,
        "export": results.export_command,
        "generate": results.generate_command,
    },
    "Compare and reproduce": {
        "compare": compare.compare_command,
        "reproduce": research.reproduce_command,
    },
    "Theory": {
        "study": theory.study_command,
    },
    "Devices": {
        "serve": devices.serve_command,
        "join": join.join_command,
    },
}
"""What people do, and the commands for it, as `submodel --help` lists them."""

for _panel, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        offer_command(command_line, _name, _command, _panel)
command_line.add_typer(federation.federation_commands, name="federation", rich_help_panel="Devices")


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
        command_line(prog_name="submodel")
    except SubmodelError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a path that cannot be made or read, a full disk
        if error.strerror is None:
            raise
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"error: {where}{error.strerror}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
