"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazily"]


def lazily(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose names live in other modules.

    Importing PyTorch takes seconds and hundreds of megabytes; a command that prints help or keeps
    a connection open should not pay for it. Modules of the package are found in the same way.

    Args:
        package: the package.
        names: by module, the names that the package offers of it, separated by spaces.
    """
    homes = {name: module for module, text in names.items() for name in text.split()}

    def get(name: str) -> Any:
        if name in homes:
            value = getattr(importlib.import_module(homes[name]), name)
            setattr(sys.modules[package], name, value)
            return value
        path = f"{package}.{name}"
        if not name.startswith("_"):
            try:
                return importlib.import_module(path)
            except ModuleNotFoundError as error:
                if error.name != path:
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
