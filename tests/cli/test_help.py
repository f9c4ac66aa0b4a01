"""The help lists all commands, and each command accepts its examples."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from submodel.cli.common import command_line, first_sentence, parse_help
from tests.cli.support import all_commands
from tests.support.commands import Command

COMMANDS = all_commands()
ROOT = Path(__file__).parents[2]


def _help(submodel: Command, *words: str) -> str:
    result = submodel(*words, "--help")
    assert result.returncode == 0
    return str(result.stdout)


def test_the_overview_lists_all_commands(
    submodel: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = _help(submodel).rstrip().splitlines()
    assert max(map(len, lines)) <= 80
    hidden = {name for name, command in COMMANDS.items() if command.hidden}
    assert hidden == {"score", "plot", "plan", "generate"}
    names = {name.split()[0] for name in COMMANDS.keys() - hidden}
    assert names <= {line.split()[0] for line in lines if line.startswith("  ")}
    assert not hidden & {line.split()[0] for line in lines if line.startswith("  ")}
    assert "Train" in lines
    assert "Look at results" in lines


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_what_it_does_and_has_examples(
    name: str, submodel: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command = COMMANDS[name]
    assert first_sentence(command)
    assert command.callback is not None
    examples = parse_help(command.callback).examples
    assert examples
    shown = _help(submodel, *name.split())
    assert all(example in shown for example in examples), "longer than a line"
    undescribed = [p.opts for p in command.params if not getattr(p, "help", None)]
    assert undescribed == []


EXAMPLES = [
    (name, example)
    for name, command in COMMANDS.items()
    for example in parse_help(command.callback or print).examples
]


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_examples_are_understood(name: str, example: str) -> None:
    """Options, value types and files exist; other tests run the commands."""
    program, *words = shlex.split(example.split(" | ")[0].split(" > ")[0])
    assert program == "submodel"
    assert words[: len(name.split())] == name.split()
    arguments = words[len(name.split()) :]
    with COMMANDS[name].make_context(name, list(arguments)) as context:
        settings = context.params.get("settings") or []
    files = [word for word in arguments if word.startswith(("examples/", "results/"))]
    assert all((ROOT / file).exists() for file in files)
    assert all("=" in setting for setting in settings)


@pytest.mark.parametrize(
    ("words", "nearest"),
    [(["trian"], "'train'"), (["federation", "stauts"], "'status'"), (["inspct"], "'inspect'")],
)
def test_a_mistyped_command_is_answered_with_the_nearest(
    words: list[str], nearest: str, submodel: Command
) -> None:
    result: subprocess.CompletedProcess[str] = submodel(*words)
    assert result.returncode == 2
    assert result.stderr.count(f"Did you mean {nearest}?") == 1


def test_panels_hold_every_command_once() -> None:
    group = typer.main.get_command(command_line)
    assert isinstance(group, TyperGroup)
    shown = [command for command in group.commands.values() if not command.hidden]
    panels = [getattr(command, "rich_help_panel", None) for command in shown]
    assert all(isinstance(panel, str) for panel in panels)
    assert panels == sorted(panels, key=panels.index)  # the commands of a panel are contiguous
