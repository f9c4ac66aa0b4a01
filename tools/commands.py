"""The commands as a page: what people do, and for each command its options, examples and JSON."""

from __future__ import annotations

from collections.abc import Iterator

import click
import typer

from submodel.cli.base import command_line
from submodel.cli.help import Lesson, Overview, read_lesson


def page() -> str:
    """All commands, in the order of `submodel --help`."""
    application = typer.main.get_command(command_line)
    assert isinstance(application, Overview)
    context = click.Context(application, info_name="submodel")
    parts = []
    for panel, commands in application.panels().items():
        parts.append(f"## {panel}")
        for name, command in commands.items():
            parts += _sections(command, f"submodel {name}", context)
    return "\n\n".join(parts)


def _sections(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, parent=parent, info_name=name.split()[-1])
    if isinstance(command, click.Group):
        for inner_name, inner in command.commands.items():
            yield from _sections(inner, f"{name} {inner_name}", context)
        return
    assert command.callback is not None
    lesson = read_lesson(command.callback)
    yield f"### `{name}`"
    yield lesson.about
    usage = command.get_usage(context).removeprefix("Usage: ")
    yield "\n".join(["```", " ".join(usage.split()), "", *lesson.examples, "```"])
    yield _parameters(command, context)
    if lesson.keys:
        yield _keys(lesson)


def _parameters(command: click.Command, context: click.Context) -> str:
    rows = ["| | default | |", "| --- | --- | --- |"]
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            title = " ".join([", ".join(parameter.opts), _metavar(parameter, context)]).strip()
        else:
            title = parameter.make_metavar(context)
        cells = f"`{title}`", _default(parameter), getattr(parameter, "help", None) or ""
        rows.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(rows)


def _metavar(option: click.Option, context: click.Context) -> str:
    return "" if option.is_flag else option.make_metavar(context)


def _default(parameter: click.Parameter) -> str:
    if parameter.required:
        return "needed"
    default = getattr(parameter.default, "value", parameter.default)
    if default in (None, False, []) or callable(default) or parameter.default is None:
        return ""
    return f"`{default}`".replace("\n", "\\n")


def _keys(lesson: Lesson) -> str:
    """The keys of a command's JSON, one a row."""
    lines = ["| key of `--json` | |", "| --- | --- |"]
    lines += [f"| `{key}` | {_cell(meaning)} |" for key, meaning in lesson.keys.items()]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
