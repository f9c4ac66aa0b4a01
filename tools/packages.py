"""Packages in `src/submodel`, their order and their imports, read from the code."""

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
LAYERS = ROOT / "pyproject.toml"


@dataclass(frozen=True)
class Packages:
    """Packages from top to bottom, with the number of imports from one to another."""

    names: tuple[str, ...]
    imports: Mapping[tuple[str, str], int]  # (importer, imported) -> pairs of modules

    def below(self, package: str) -> dict[str, int]:
        """Return the imported packages of a package with counts, the most frequent first."""
        found = {to: count for (by, to), count in self.imports.items() if by == package}
        return dict(sorted(found.items(), key=lambda item: (-item[1], self.names.index(item[0]))))

    @cached_property
    def reach(self) -> dict[str, set[str]]:
        """Packages that each package needs, directly or through others."""
        found: dict[str, set[str]] = {}
        for package in reversed(self.names):
            direct = self.below(package)
            found[package] = set(direct).union(*(found[other] for other in direct))
        return found

    @cached_property
    def edges(self) -> list[tuple[str, str]]:
        """Transitive reduction of the imports."""
        return [
            (package, other)
            for package in self.names
            for other in sorted(self.below(package), key=self.names.index)
            if not any(other in self.reach[between] for between in self.below(package))
        ]


def read_packages() -> Packages:
    """The packages in the order of pyproject.toml, with the imports of the current code."""
    settings = tomllib.loads(LAYERS.read_text("utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    names = tuple(name for name in layers if not name.startswith("_"))
    graph = grimp.build_graph("submodel", cache_dir=None)
    found: Counter[tuple[str, str]] = Counter()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            by, to = (name.partition(".")[2].partition(".")[0] for name in (module, imported))
            if by in names and to in names and by != to:
                found[by, to] += 1
    return Packages(names, dict(found))


def purpose(package: str) -> str:
    """Return the first sentence of a package's docstring."""
    file = ROOT / "src/submodel" / f"{package}.py"
    if not file.exists():
        file = file.with_suffix("") / "__init__.py"
    docstring = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return docstring.split("\n")[0].partition(". ")[0].removesuffix(".")
