"""Help that teaches: commands by what people do, and each with examples and the keys of its JSON.

A command's docstring is all there is to say of it: a sentence, perhaps more, then ``Examples:``
with a command in each line, then ``JSON:`` with the keys of what ``--json`` prints.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from submodel.cli.completion import whole_bash_words

_SECTION = re.compile(r"^(Examples|JSON):$", re.MULTILINE)


@dataclass(frozen=True)
class Lesson:
    """What a docstring says of a command."""

    about: str
    examples: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)  # of the JSON, and what each is


def read_lesson(command: Callable[..., Any]) -> Lesson:
    """What a command's docstring says.

    Args:
        command: the function.

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
        """Print it."""
        from rich.console import Console
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        super().format_help(ctx, formatter)
        assert self.callback is not None
        lesson, console = read_lesson(self.callback), Console()
        if lesson.examples:
            text = Text("\n".join(lesson.examples))
            console.print(Panel(text, title="Examples", title_align="left", border_style="dim"))
        if lesson.keys:
            table = Table.grid(padding=(0, 2, 0, 0))
            for key, meaning in lesson.keys.items():
                table.add_row(Text(key, "bold cyan"), Text(meaning))
            title = "The object that --json prints"
            console.print(Panel(table, title=title, title_align="left", border_style="dim"))


def offer_command(
    application: typer.Typer,
    name: str,
    command: Callable[..., None],
    panel: str | None = None,
    *,
    takes_anything: bool = False,
) -> None:
    """Make a function a command.

    Args:
        application: that has it.
        name: what it is called there.
        command: the function; its docstring is its help.
        panel: what people do with it.
        takes_anything: whether arguments that it does not declare are ignored.
    """
    about = read_lesson(command).about
    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    decorate = application.command(
        name=name,
        cls=TaughtCommand,
        help=about,
        rich_help_panel=panel,
        context_settings=anything if takes_anything else None,
    )
    decorate(command)


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


class Overview(CommandGroup):
    """The application, whose help has all commands on one screen, by what people do."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a command, or complete one."""
        with whole_bash_words():
            return super().main(*arguments, **options)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Print it."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        console = Console(highlight=False)
        console.print(Text("Usage: submodel COMMAND ...", "bold"))
        console.print(f"{self.help}\n")
        width = max(map(len, self.commands))
        for panel, commands in self.panels().items():
            table = Table.grid(padding=(0, 2, 0, 0))
            table.add_column(min_width=width + 2)
            for name, command in commands.items():
                table.add_row(Text(f"  {name}", "bold cyan"), first_sentence(command))
            console.print(Text(panel, "bold yellow"), table, sep="\n")
        options = [parameter.opts[0] for parameter in self.get_params(ctx)]
        console.print(f"\nOptions: {', '.join(options)}")
        console.print("'submodel COMMAND --help' has the options of a command, and examples.")

    def panels(self) -> dict[str, dict[str, Any]]:
        """The commands by what people do."""
        panels: dict[str, dict[str, Any]] = {}
        for name, command in self.commands.items():
            panel = getattr(command, "rich_help_panel", None) or "Others"
            panels.setdefault(panel, {})[name] = command
        return panels


def first_sentence(command: Any) -> str:
    """What a command does, in a line.

    Args:
        command: a `TyperCommand` or a `TyperGroup`.
    """
    return (command.help or "").split("\n\n")[0]
