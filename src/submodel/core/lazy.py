"""Import the names of a package when they are first used."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["lazily"]


def lazily(package: str, names: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose names live in other modules.

    Importing PyTorch takes seconds and hundreds of megabytes; a command that prints help or keeps
    a connection open should not pay for it. Modules of the package are found in the same way.

    Args:
        package: the name of the package.
        names: by module, the names that the package exports from it, separated by spaces; by
            default all names that the package imports under ``if TYPE_CHECKING:``.
    """
    given = {name: module for module, text in (names or {}).items() for name in text.split()}

    def get(name: str) -> Any:
        path = f"{package}.{name}"
        if not name.startswith("__") and (home := (given or _imported(package)).get(name)):
            value = getattr(importlib.import_module(home), name)
            setattr(sys.modules[package], name, value)
            return value
        if not name.startswith("_"):
            try:
                return importlib.import_module(path)
            except ModuleNotFoundError as error:
                if error.name != path:
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get


@cache
def _imported(package: str) -> dict[str, str]:
    """Return the module of every name that a package imports under ``if TYPE_CHECKING:``.

    >>> _imported("submodel.core")["Registry"]
    'submodel.core.registry'
    """
    code = ast.parse(Path(sys.modules[package].__file__ or "").read_text("utf-8"))
    blocks = (node for node in code.body if isinstance(node, ast.If))
    imports = (node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom))
    return {alias.name: node.module or "" for node in imports for alias in node.names}
