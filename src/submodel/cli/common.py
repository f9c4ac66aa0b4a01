"""What all commands share: the application and its help, the console, kinds of arguments, JSON.

Help teaches: commands by what people do, and each with examples and the keys of its JSON. A
command's docstring is all there is to say of it: a sentence, perhaps more, then ``Examples:`` with
a command in each line, then ``JSON:`` with the keys of what ``--json`` prints.
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
class Lesson:
    """The help of a command, parsed from its docstring."""

    about: str
    examples: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)  # of the JSON, and what each is


def read_lesson(command: Callable[..., Any]) -> Lesson:
    """Parse a command's docstring.

    >>> def greet() -> None:
    ...     '''Say hello.
    ...
    ...     Examples:
    ...         submodel greet
    ...     JSON:
    ...         text: what was said,
    ...             to whom
    ...     '''
    >>> read_lesson(greet)
    Lesson(about='Say hello.', examples=['submodel greet'], keys={'text': 'what was said, to whom'})
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
    return Lesson("\n\n".join(paragraphs), examples, keys)


class TaughtCommand(TyperCommand):
    """A command whose help ends with examples and the keys of its JSON."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        super().format_help(ctx, formatter)
        assert self.callback is not None
        lesson, output = read_lesson(self.callback), Console()
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
    """Commands under one name; a mistyped one is answered with the nearest."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is meant."""
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:  # a UsageError, which Typer has from Click or from itself
            if hasattr(error, "possibilities"):  # Click 8.4 would suggest them once more
                error.possibilities = None
            raise


class AddedCommand(TyperCommand):
    """A command of another package until it is asked for: its callback returns that command."""


class Overview(CommandGroup):
    """The application, whose help has all commands on one screen, by what people do."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a command, or complete one."""
        with completion.whole_bash_words():
            return super().main(*arguments, **options)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; that of another package is loaded."""
        command = super().get_command(ctx, cmd_name)
        if isinstance(command, AddedCommand):
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
        """The commands by what people do."""
        panels: dict[str, dict[str, Any]] = {}
        for name in self.commands:
            command = self.get_command(None, name)
            if command.hidden:
                continue
            panel = getattr(command, "rich_help_panel", None) or "Others"
            panels.setdefault(panel, {})[name] = command
        return panels


def first_sentence(command: Any) -> str:
    """What a `TyperCommand` or a `TyperGroup` does, in a line."""
    return (command.help or "").split("\n\n")[0]


def offer_command(
    application: typer.Typer,
    name: str,
    command: Callable[..., None],
    panel: str | None = None,
    *,
    takes_anything: bool = False,
    is_hidden: bool = False,
) -> None:
    """Make a function a command of an application; its docstring is the help.

    ``panel`` says what people do with it. Where it takes anything, arguments that it does not
    declare are ignored. A hidden command works, but the help does not list it.
    """
    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    decorate = application.command(
        name=name,
        cls=TaughtCommand,
        help=read_lesson(command).about,
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
# a pipe or a file has no width of its own: leave room for whole tables
console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 140)
_notes = Console(highlight=False, markup=False, stderr=True)


def talk(as_json: bool) -> Console:
    """The console for progress: the output, or the error output if the output is JSON."""
    return _notes if as_json else console


def make_folder(path: Path, option: str = "--out") -> Path:
    """Make the folder of results before the work, which would be lost without it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SubmodelError(f"{option}: {path}: cannot be made: {error.strerror}") from None
    return path


def print_json(content: Mapping[str, Any]) -> None:
    """Print a result as one object, with the keys that the command's help describes.

    A number that is not finite is null, a path is its text.

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
