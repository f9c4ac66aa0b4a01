"""The rooms of the package, their order, and who imports whom: read from the code."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent
GROUND = "ground"
"""The files beside the rooms, which stand as one: they import nothing but each other."""


@dataclass(frozen=True)
class Rooms:
    """The rooms from top to bottom, and how many imports go from one to another."""

    names: tuple[str, ...]  # the ground last
    files: tuple[str, ...]  # of the ground
    imports: Mapping[tuple[str, str], int]  # (who imports, who is imported) -> pairs of modules

    def below(self, room: str) -> dict[str, int]:
        """The rooms that a room imports, most often first."""
        found = {to: count for (by, to), count in self.imports.items() if by == room}
        return dict(sorted(found.items(), key=lambda item: (-item[1], self.names.index(item[0]))))

    @cached_property
    def reach(self) -> dict[str, set[str]]:
        """The rooms that each one needs, directly or through others."""
        found: dict[str, set[str]] = {}
        for room in reversed(self.names):
            direct = self.below(room)
            found[room] = set(direct).union(*(found[other] for other in direct))
        return found

    @cached_property
    def edges(self) -> list[tuple[str, str]]:
        """The imports that do not follow from others: the transitive reduction."""
        return [
            (room, other)
            for room in self.names
            for other in sorted(self.below(room), key=self.names.index)
            if not any(other in self.reach[between] for between in self.below(room))
        ]


def read_rooms() -> Rooms:
    """The rooms as pyproject.toml orders them, with the imports of the code as it is."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    *layers, last = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    files = tuple(name.strip() for name in last.split(":"))
    rooms = {name: name for name in layers if not name.startswith("_")}
    rooms |= dict.fromkeys(files, GROUND)
    graph = grimp.build_graph("submodel", cache_dir=None)
    found: Counter[tuple[str, str]] = Counter()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            by, to = (rooms.get(name.split(".")[1:2][0]) if "." in name else None
                      for name in (module, imported))  # fmt: skip
            if by and to and by != to:
                found[by, to] += 1
    names = (*(name for name in layers if name in rooms), GROUND)
    return Rooms(names, files, dict(found))


def purpose(room: str) -> str:
    """First sentence of a room's docstring."""
    file = ROOT / "src/submodel" / f"{room}.py"
    if not file.exists():
        file = file.with_suffix("") / "__init__.py"
    docstring = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return docstring.split("\n")[0].partition(". ")[0].removesuffix(".")
