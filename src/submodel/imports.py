"""Imports by name: of what a configuration names, and of our own when it is first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from submodel.errors import ConfigError


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's ``__getattr__``: names live in modules that are imported when first used.

    PyTorch takes seconds and hundreds of megabytes; whoever asks for help or only keeps a
    connection open should not pay for it. Modules of the package are found in the same way.
    """

    def get(name: str) -> Any:
        if name in homes:
            found = getattr(importlib.import_module(homes[name]), name)
            setattr(sys.modules[package], name, found)
            return found
        path = f"{package}.{name}"
        if not name.startswith("_"):
            try:
                return importlib.import_module(path)
            except ModuleNotFoundError as error:
                if error.name != path:
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get


def is_path(name: str) -> bool:
    """Whether a name is a path to code.

    >>> is_path("my_package.nets:make"), is_path("cnn")
    (True, False)
    """
    return ":" in name


def find(path: str, key: str) -> Callable[..., Any]:
    """What ``package.module:name`` names; modules of the working folder count too.

    ``key`` is where the configuration names it, for errors.
    """
    module_name, _, name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError([f"{key}: {path!r}: cannot import {module_name!r}: {error}"]) from None
    except Exception as error:  # whatever the module's own code raises
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError([f"{key}: {path!r}: {module_name!r} fails: {reason}"]) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError([f"{key}: {path!r}: {module_name!r} has no {part!r}"])
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError([f"{key}: {path!r} is a {type(found).__name__}, not a factory"])
    return found
