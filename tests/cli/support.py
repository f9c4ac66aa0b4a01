"""The commands of the application, and runs to try them on."""

from __future__ import annotations

from collections.abc import Iterator

import click
import typer

from submodel.cli.base import command_line


def all_commands() -> dict[str, click.Command]:
    """Every command by what is typed for it."""
    return dict(_commands(typer.main.get_command(command_line), ""))


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    for inner_name, inner in command.commands.items():
        yield from _commands(inner, f"{name} {inner_name}".strip())
