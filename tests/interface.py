"""The public interface of the code; `python -m tests.interface` adds new entries.

tests/interface.json lists every key, command, option, JSON key, file, exit code, group and name
that users may rely on. Entries are added when the interface grows, and never removed: a renamed
thing keeps its old name as an alias.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from tools import completions
from typer.core import TyperGroup

from submodel.cli.application import command_line
from submodel.cli.common import parse_help

ROOT = Path(__file__).parent.parent
FILE = Path(__file__).with_name("interface.json")
REFERENCE = ROOT / "docs/reference"
FORMER_PATHS = "## Former paths"
Interface = dict[str, dict[str, list[str]]]
"""Things by part of the interface, with the values of each."""


def read_interface() -> Interface:
    """Read all parts from the code and from the pages that promise them."""
    return {
        "keys": dict(_keys()),
        "commands": dict(_commands()),
        "modules": dict(documented_modules()),
        "pages": {
            "files of a run": [*_first_column("run-folder.md", "file")],
            "metrics": [*_first_column("run-folder.md", "entry")],
            "exit codes": [*_first_column("interface.md", "code")],
            "entry points": [*_first_column("interface.md", "group")],
        },
    }


def _keys() -> Iterator[tuple[str, list[str]]]:
    """Return every configuration key with its default and allowed names."""
    for key, entry in json.loads(completions.text()).items():
        yield key, [f"default: {entry['default']}", *entry["values"]]


def _commands() -> Iterator[tuple[str, list[str]]]:
    """Return every command with arguments, options and JSON keys."""
    application: Any = typer.main.get_command(command_line)
    waiting = [("submodel", application)]
    while waiting:
        name, command = waiting.pop(0)
        if isinstance(command, TyperGroup):
            context = typer.Context(command)
            waiting += [(f"{name} {i}", command.get_command(context, i)) for i in command.commands]
        options = [word for p in command.params for word in (*p.opts, *p.secondary_opts)]
        keys = [] if command.callback is None else parse_help(command.callback).keys
        names = [part.strip() for key in keys for part in key.split(",")]
        yield name, [*options, *(f"JSON: {key}" for key in names)]


def documented_modules() -> Iterator[tuple[str, list[str]]]:
    """Return the modules of docs/reference/python.md with their names, `submodel` first.

    The names of former modules are in tests/interface.json.
    """
    text = (REFERENCE / "python.md").read_text("utf-8").partition(FORMER_PATHS)[0]
    yield "submodel", sorted(re.findall(r"^::: submodel\.(\w+)$", text, re.MULTILINE))
    for module, names in re.findall(r"^\| `(submodel[\w.]*)` \| (`[^|]*`) \|", text, re.MULTILINE):
        yield module, re.findall(r"`(\w+)`", names)
    kept: Interface = json.loads(FILE.read_text("utf-8"))
    for module, _ in former_modules():
        yield module, kept["modules"][module]


def former_modules() -> Iterator[tuple[str, str]]:
    """Return the former paths of docs/reference/python.md with the current modules."""
    text = (REFERENCE / "python.md").read_text("utf-8").partition(FORMER_PATHS)[2]
    rows = re.findall(r"^\| `(submodel[\w.]*)` \| `([\w.]+)` \|", text, re.MULTILINE)
    yield from (row for row in rows if row[0] != "submodel.theory")  # which has no list of names


def _first_column(page: str, heading: str) -> Iterator[str]:
    """Yield the first column of the tables of a page after a heading."""
    text = (REFERENCE / page).read_text("utf-8")
    for table in re.findall(rf"^\| {heading} \|.*\n\| ---.*\n((?:\|.*\n)+)", text, re.MULTILINE):
        for row in table.splitlines():
            cell = row.split("|")[1]
            yield from re.findall(r"`([^`]+)`", cell) or [cell.strip()]


def offered_names(module: str) -> list[str]:
    """Return the public names of a module; raise an error if one is missing."""
    found = importlib.import_module(module)
    for name in found.__all__:
        getattr(found, name)
    return list(found.__all__)


def main() -> None:
    kept: Interface = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    for part, things in read_interface().items():
        for thing, names_of_thing in things.items():
            known = kept.setdefault(part, {}).setdefault(thing, [])
            known += [name_ for name_ in names_of_thing if name_ not in known]
    lines = [
        f' "{part}": {{\n'
        + ",\n".join(f"  {json.dumps(t)}: {json.dumps(o)}" for t, o in things.items())
        + "\n }"
        for part, things in kept.items()
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
