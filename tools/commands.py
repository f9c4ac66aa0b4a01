"""Generate docs/commands.md: options, examples and JSON keys of each command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup, TyperOption

from submodel.cli.application import command_line
from submodel.cli.common import CommandHelp, Overview, parse_help


def page() -> str:
    """Format all commands in the order of `submodel --help`."""
    application = typer.main.get_command(command_line)
    assert isinstance(application, Overview)
    context = typer.Context(application, info_name="submodel")
    parts = []
    for panel, commands in application.panels().items():
        parts.append(f"## {panel}")
        for name, command in commands.items():
            parts += _sections(command, f"submodel {name}", context)
    return "\n\n".join(parts)


def _sections(command: Any, name: str, parent: typer.Context) -> Iterator[str]:
    context = typer.Context(command, parent=parent, info_name=name.split()[-1])
    if isinstance(command, TyperGroup):
        for inner_name, inner in command.commands.items():
            yield from _sections(inner, f"{name} {inner_name}", context)
        return
    assert command.callback is not None
    help_ = parse_help(command.callback)
    yield f"### `{name}`"
    yield help_.about
    usage = command.get_usage(context).removeprefix("Usage: ")
    yield "\n".join(["```", " ".join(usage.split()), "", *help_.examples, "```"])
    yield _parameters(command, context)
    if help_.keys:
        yield _keys(help_)


def _parameters(command: Any, context: typer.Context) -> str:
    rows = ["| | default | |", "| --- | --- | --- |"]
    for parameter in command.params:
        if isinstance(parameter, TyperOption):
            title = " ".join([", ".join(parameter.opts), _metavar(parameter, context)]).strip()
        else:
            title = parameter.make_metavar(context)
        cells = f"`{title}`", _default(parameter), getattr(parameter, "help", None) or ""
        rows.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(rows)


def _metavar(option: TyperOption, context: typer.Context) -> str:
    return "" if option.is_flag else option.make_metavar(context)


def _default(parameter: Any) -> str:
    if parameter.required:
        return "needed"
    default = getattr(parameter.default, "value", parameter.default)
    if default in (None, False, []) or callable(default) or parameter.default is None:
        return ""
    return f"`{default}`".replace("\n", "\\n")


def _keys(help_: CommandHelp) -> str:
    lines = ["| key of `--json` | |", "| --- | --- |"]
    lines += [f"| `{key}` | {_cell(meaning)} |" for key, meaning in help_.keys.items()]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
