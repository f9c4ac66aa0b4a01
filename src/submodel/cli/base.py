"""What all commands share: the application, the console, the kinds of arguments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from submodel.cli import completion
from submodel.cli.help import Overview
from submodel.errors import SubmodelError

command_line = typer.Typer(
    cls=Overview,
    help="Train one model over devices that cannot hold it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
# a pipe or a file has no width of its own: leave room for whole tables
console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 140)
_notes = Console(highlight=False, markup=False, stderr=True)


def talk(as_json: bool) -> Console:
    """Where people hear how it goes: the output, or, if that is for JSON, the error output."""
    return _notes if as_json else console


def make_folder(path: Path, option: str = "--out") -> Path:
    """The folder that results go to: made before the work, which would be lost without it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SubmodelError(f"{option}: {path}: cannot be made: {error.strerror}") from None
    return path


ConfigFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG.toml]",
        help="Without it, the digits default.",
        autocompletion=completion.config_files,
    ),
]
SetOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key; repeatable.",
        autocompletion=completion.settings,
    ),
]
RunPath = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="The folder of a run.", autocompletion=completion.run_folders
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace the run that --out holds, unless it is running.")
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object; all else goes to the error output."),
]
