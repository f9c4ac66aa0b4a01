"""Our own modules, imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's ``__getattr__``: names live in modules that are imported when first used.

    PyTorch takes seconds and hundreds of megabytes; whoever asks for help or only keeps a
    connection open should not pay for it. Modules of the package are found in the same way.
    """

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
