"""Shared parts of all commands: application, help, console, types of arguments, JSON output.

The help groups commands by purpose and ends with examples and the keys of the JSON output. All of
it comes from the command's docstring: a sentence, further paragraphs, ``Examples:`` with one
command per line, and ``JSON:`` with the keys of the object that ``--json`` prints.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from submodel.cli import completion
from submodel.core.errors import SubmodelError

_SECTION = re.compile(r"^(Examples|JSON):$", re.MULTILINE)


@dataclass(frozen=True)
class CommandHelp:
    """Help of a command, parsed from its docstring."""

    about: str
    examples: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)  # of the JSON output, with descriptions


def parse_help(command: Callable[..., Any]) -> CommandHelp:
    """Parse a command's docstring.

    >>> def greet() -> None:
    ...     '''Say hello.
    ...
    ...     Examples:
    ...         submodel greet
    ...     JSON:
    ...         text: greeting,
    ...             printed
    ...     '''
    >>> parse_help(greet)
    CommandHelp(about='Say hello.', examples=['submodel greet'], keys={'text': 'greeting, printed'})
    """
    about, *parts = _SECTION.split(inspect.getdoc(command) or "")
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    examples = [line.strip() for line in sections.get("Examples", "").splitlines() if line.strip()]
    keys: dict[str, str] = {}
    key = ""
    for line in sections.get("JSON", "").splitlines():
        if re.match(r" {4}\S", line):
            key, _, meaning = line.strip().partition(": ")
            keys[key] = meaning
        elif line.strip():
            keys[key] += f" {line.strip()}"
    paragraphs = [" ".join(paragraph.split()) for paragraph in about.strip().split("\n\n")]
    return CommandHelp("\n\n".join(paragraphs), examples, keys)


class DocumentedCommand(TyperCommand):
    """Command whose help ends with examples and the keys of its JSON."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        super().format_help(ctx, formatter)
        assert self.callback is not None
        lesson, output = parse_help(self.callback), Console()
        if lesson.examples:
            text = Text("\n".join(lesson.examples))
            output.print(Panel(text, title="Examples", title_align="left", border_style="dim"))
        if lesson.keys:
            table = Table.grid(padding=(0, 2, 0, 0))
            for key, meaning in lesson.keys.items():
                table.add_row(Text(key, "bold cyan"), Text(meaning))
            title = "The object that --json prints"
            output.print(Panel(table, title=title, title_align="left", border_style="dim"))


class CommandGroup(TyperGroup):
    """Group of commands that suggests the nearest name for a mistyped one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve a command; the error for an unknown name suggests the nearest one."""
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:  # a UsageError, of Click or of Typer's own copy of it
            if hasattr(error, "possibilities"):  # or Click 8.4 repeats the suggestion
                error.possibilities = None
            raise


class ExternalCommand(TyperCommand):
    """Placeholder of another package's command; its callback loads and returns the command."""


class Overview(CommandGroup):
    """Application whose help lists all commands by purpose on one screen."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a command or complete a command line."""
        with completion.whole_bash_words():
            return super().main(*arguments, **options)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by name; load it if another package provides it."""
        command = super().get_command(ctx, cmd_name)
        if isinstance(command, ExternalCommand):
            assert command.callback is not None
            command = self.commands[cmd_name] = command.callback()
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Print the help."""
        from rich.table import Table
        from rich.text import Text

        output = Console(highlight=False)
        output.print(Text("Usage: submodel COMMAND ...", "bold"))
        output.print(f"{self.help}\n")
        width = max(map(len, self.commands))
        for panel, commands in self.panels().items():
            table = Table.grid(padding=(0, 2, 0, 0))
            table.add_column(min_width=width + 2)
            for name, command in commands.items():
                table.add_row(Text(f"  {name}", "bold cyan"), first_sentence(command))
            output.print(Text(panel, "bold yellow"), table, sep="\n")
        options = [parameter.opts[0] for parameter in self.get_params(ctx)]
        output.print(f"\nOptions: {', '.join(options)}")
        output.print("'submodel COMMAND --help' has the options of a command, and examples.")

    def panels(self) -> dict[str, dict[str, Any]]:
        """Return the listed commands by panel of the help."""
        panels: dict[str, dict[str, Any]] = {}
        for name in self.commands:
            command = self.get_command(None, name)
            if command.hidden:
                continue
            panel = getattr(command, "rich_help_panel", None) or "Others"
            panels.setdefault(panel, {})[name] = command
        return panels


def first_sentence(command: Any) -> str:
    """Return the first sentence of the help of a `TyperCommand` or `TyperGroup`."""
    return (command.help or "").split("\n\n")[0]


def register_command(
    application: typer.Typer,
    name: str,
    command: Callable[..., None],
    panel: str | None = None,
    *,
    takes_anything: bool = False,
    is_hidden: bool = False,
) -> None:
    """Register a function as a command of an application; its docstring is the help.

    Args:
        application: application to extend.
        name: name of the command.
        command: function with the command's parameters.
        panel: heading of the command in the overview.
        takes_anything: ignore arguments that the function does not declare.
        is_hidden: leave the command out of the help.
    """
    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    decorate = application.command(
        name=name,
        cls=DocumentedCommand,
        help=parse_help(command).about,
        rich_help_panel=panel,
        hidden=is_hidden,
        context_settings=anything if takes_anything else None,
    )
    decorate(command)


command_line = typer.Typer(
    cls=Overview,
    help="Train one model over devices that cannot hold it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
# a pipe or a file has no width: leave room for whole tables
console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 140)
_notes = Console(highlight=False, markup=False, stderr=True)


def talk(as_json: bool) -> Console:
    """Return the console for progress: standard output, or standard error if that holds JSON."""
    return _notes if as_json else console


def make_folder(path: Path, option: str = "--out") -> Path:
    """Create the folder of results before any work, so that a wrong path fails early."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SubmodelError(f"{option}: {path}: cannot be created: {error.strerror}") from None
    return path


def print_json(content: Mapping[str, Any]) -> None:
    """Print a result as one JSON object, with the keys of the command's help.

    Numbers that are not finite become null, paths become strings.

    >>> print_json({"run": Path("runs/digits"), "test_loss": math.inf})
    {
     "run": "runs/digits",
     "test_loss": null
    }
    """
    print(json.dumps(_plain_value(content), indent=1, allow_nan=False), flush=True)


def _plain_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


ConfigFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG.toml]",
        help="Configuration file; default: the built-in digits example.",
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
    typer.Argument(metavar="RUN", help="Folder of a run.", autocompletion=completion.run_folders),
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace the run in --out, unless it is running.")
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object; everything else goes to standard error."),
]
