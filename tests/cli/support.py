"""The commands of the application, and runs for tests of commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from submodel.cli.common import command_line


def all_commands() -> dict[str, Any]:
    """Return every command by its command line."""
    return dict(_commands(typer.main.get_command(command_line), ""))


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(command, TyperGroup):
        yield name, command
        return
    context = typer.Context(command)
    for inner_name in command.commands:
        inner = command.get_command(context, inner_name)
        yield from _commands(inner, f"{name} {inner_name}".strip())
