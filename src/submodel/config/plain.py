"""Plain values as files and callers give them: bounded, before anything is done with them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date, time
from typing import Any

from submodel.errors import ConfigError

MOST_BYTES = 2**18  # of a configuration; tomllib reads about a megabyte per second
_DEEPEST = 50  # tables and lists within each other
_MOST_VALUES = 20_000
_LONGEST_NAME = 100  # parts joined by dots; tomllib takes time quadratic in their number
_MOST_BITS = 1024  # of a whole number; Python does not even print what is much longer
_LONGEST_TEXT = 200
# A string of any of TOML's four kinds, closed or not; a comment; one character.
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"""|\Z)|\'\'\'.*?(?:\'\'\'|\Z)|"(?:\\.|[^"\\\n])*"?|\'[^\'\n]*\'?'
    r"|\#[^\n]*|[^\"'#.=,\[\]{}\n]+|.",
    re.DOTALL,
)


def read_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text; `ConfigError` says what is wrong with it."""
    if len(text) > MOST_BYTES:
        raise ConfigError([f"larger than {MOST_BYTES:,} characters"])
    dots = depth = 0
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign == ".":
            dots += 1
        elif sign in tuple("=,[]{}\n"):
            dots = 0
        depth += (sign in ("[", "{")) - (sign in ("]", "}"))
        if dots >= _LONGEST_NAME or depth > _DEEPEST:
            raise ConfigError(["not valid TOML: nested too deeply"])
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # of TOML, and of numbers that are too long
        raise ConfigError([f"not valid TOML: {shorten(str(error))}"]) from None


def check_bounds(values: object) -> None:
    """Refuse values that are too deep, too many or too long to be handled, or not text."""
    count = 0
    waiting: list[tuple[str, int, object]] = [("", 0, values)]
    while waiting:
        path, depth, value = waiting.pop()
        count += 1
        if depth > _DEEPEST or count > _MOST_VALUES:
            what = "nested too deeply" if depth > _DEEPEST else f"more than {_MOST_VALUES:,} values"
            raise ConfigError([f"{shorten(path)}: {what}"])
        if isinstance(value, str) and not _is_text(value):
            raise ConfigError([f"{shorten(path)}: {show_value(value)} is not text"])
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            raise ConfigError([f"{shorten(path)}: a number of {value.bit_length():,} bits"])
        for name, inner in _items(value):
            if isinstance(name, str) and not _is_text(name):
                raise ConfigError([f"{shorten(path)}: {show_value(name)} is not text"])
            step = f"[{name}]" if isinstance(name, int) else f".{shorten(str(name))}"
            waiting.append((f"{path}{step}".lstrip("."), depth + 1, inner))


def unwritable(values: object, path: str = "") -> str:
    """The path of a value that TOML cannot hold, and its type; empty if there is none.

    >>> unwritable({"options": {"bias": None, "sizes": [1, 2.5]}})
    'options.bias: None'
    """
    if isinstance(values, Mapping | list | tuple):
        for name, inner in _items(values):
            if isinstance(values, Mapping) and not isinstance(name, str):
                return f"{path}: the key {show_value(name)}"
            step = f"[{name}]" if isinstance(name, int) else f".{name}"
            if place := unwritable(inner, f"{path}{step}".lstrip(".")):
                return place
        return ""
    if isinstance(values, str | bool | int | float | date | time):
        return ""
    return f"{path}: {show_value(values)}"


def show_value(value: object) -> str:
    """A value for a message, not too long.

    >>> show_value("a" * 1000)[-12:]
    'aaaaaaaa ...'
    """
    try:
        return shorten(repr(value))
    except (ValueError, RecursionError):  # a number with too many digits, a list within itself
        return f"a {type(value).__name__}"


def shorten(text: str) -> str:
    """The beginning of a long text."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ..."


def _items(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
