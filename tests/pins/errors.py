"""Errors, recorded by kind and keys; their wording is free."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import submodel.core.errors
from submodel.core.errors import ConfigError
from tests.pins.store import ERRORS

Caught = BaseException | subprocess.CompletedProcess[str]
KEY = re.compile(r"((?:training|test) data|scheme \w+|[^\s:'\"(]{1,80}): ")
"""Start of a message, if it is a key, an option, a file or a part of the data."""


def check(table: str, row: object, error: Caught) -> None:
    """Compare the error of a row of a table of mistakes with the recorded one.

    Args:
        table: the name of the table.
        row: the name of the row or its mistake, not the message.
        error: the caught exception, or the ended command.
    """
    ERRORS.check(name_of(table, row), describe(error))


def name_of(table: str, row: object) -> str:
    """Return the name of a row among the pins."""
    return f"{table}: {row if isinstance(row, str) else json.dumps(row)}"


def describe(error: Caught) -> list[str | None]:
    """Return the kind of an error, and the key of each of its messages (None: no key)."""
    if isinstance(error, subprocess.CompletedProcess):
        lines = [x.removeprefix("error: ") for x in error.stderr.splitlines() if x[:7] == "error: "]
        return [f"exit {error.returncode}", *map(_key, lines)]
    problems: Sequence[str] = [str(error)]
    if isinstance(error, ConfigError):
        problems = error.problems
    return [kind(error), *map(_key, problems)]


def kind(error: BaseException) -> str:
    """Return the public class of an error, the first of `submodel.core.errors` among its bases."""
    public = [k.__name__ for k in type(error).__mro__ if k.__name__ in submodel.core.errors.__all__]
    return public[0]


def _key(message: str) -> str | None:
    found = KEY.match(message)
    if found is None:
        return None
    return Path(found[1]).name if found[1].startswith("/") else found[1]
