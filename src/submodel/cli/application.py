"""Application of the command line: its commands, those of other packages, and exit codes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Annotated, Any, NoReturn

import typer

from submodel.cli import compare, devices, federation, former, planning, results, training, watching
from submodel.cli.common import ExternalCommand, command_line, register_command
from submodel.core.errors import SubmodelError
from submodel.core.extensions import COMMANDS, FROM_LAB, LAB, extensions, load_extension
from submodel.engines.processes.launch import ending_signals

__all__ = ["command_line", "main"]

_COMMANDS: dict[str, dict[str, Callable[..., None] | str]] = {
    "Train": {
        "train": training.train_command,
        "resume": training.resume_command,
    },
    "Before training": {
        "config": planning.config_command,
        "data": planning.data_command,
        "inspect": planning.inspect_command,
        "cost": planning.cost_command,
        "advise": "Recommend a scheme for a fleet by recorded results",
    },
    "Look at results": {
        "runs": watching.runs_command,
        "watch": watching.watch_command,
        "show": results.show_command,
        "report": watching.report_command,
    },
    "Use the model": {
        "fit": results.fit_command,
        "export": results.export_command,
    },
    "Compare and reproduce": {
        "compare": compare.compare_command,
        "reproduce": "Run the paper's experiments again",
    },
    "Theory": {
        "study": "Measure the statements of the theorems",
    },
    "Devices": {
        "serve": devices.serve_command,
        "join": devices.join_command,
    },
}
"""Commands by panel of `submodel --help`; a string describes a command of the laboratory."""
_FORMER: dict[str, Callable[..., None]] = {
    "score": former.score_command,
    "plot": former.plot_command,
    "plan": former.plan_command,
    "generate": former.generate_command,
}
"""Commands under a former name; the help does not list them."""


def _register_external(name: str, panel: str, about: str) -> None:
    """Register a command of another package; if that is missing, the command names the package."""

    def load() -> Any:
        entry = extensions(COMMANDS).get(name)
        application = typer.Typer(add_completion=False)
        try:
            if entry is None:
                raise SubmodelError(f"submodel {name}: {FROM_LAB}")
            register_command(application, name, load_extension(entry), panel)
        except SubmodelError as error:
            problem = error  # Python deletes the name of a handler at its end

            def fail() -> None:
                raise problem

            lack = f"needs {LAB}" if entry is None else "fails to load"
            fail.__doc__ = f"{about} ({lack})."
            register_command(application, name, fail, panel, takes_anything=True)
        return typer.main.get_command(application)

    command_line.command(name=name, cls=ExternalCommand, rich_help_panel=panel)(load)


for _panel, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, str):
            _register_external(_name, _panel, _command)
        else:
            register_command(command_line, _name, _command, _panel)
for _name, _command in _FORMER.items():
    register_command(command_line, _name, _command, "Former names", is_hidden=True)
for _name in extensions(COMMANDS).keys() - {"federation"}.union(_FORMER, *_COMMANDS.values()):
    _register_external(_name, "Of other packages", "A command of another package")
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
    """Run a command; a mistake of the user is one line and exit status 2, never a traceback."""
    for number in set(ending_signals()) - {signal.SIGINT}:  # raises KeyboardInterrupt already
        signal.signal(number, _stop)
    try:
        command_line(prog_name="submodel")
    except SubmodelError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # such as an unreadable path or a full disk
        if error.strerror is None:
            raise
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"error: {where}{error.strerror}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
