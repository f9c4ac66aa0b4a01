"""Imports by name: of what a configuration names, and of our own when it is first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from submodel.errors import ConfigError


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
