"""Reading configurations; every mistake is told at once, by its path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from submodel.config.config import Config
from submodel.config.mistakes import section_class, sentences
from submodel.config.plain import MOST_BYTES, check_bounds, read_toml, shorten
from submodel.errors import ConfigError
from submodel.files import UnreadableError, read_text
from submodel.options import compose


def parse(values: Mapping[str, Any]) -> Config:
    """A checked configuration from nested plain values; reports every mistake at once.

    >>> parse({"clients": {"capacities": [1, 1.5]}, "local": {"lr": "fast"}})
    Traceback (most recent call last):
    submodel.errors.ConfigError: clients.capacities[1]: 1.5 is not in (0, 1]
    local.lr: 'fast' is not a number
    >>> parse({"scheme": {"name": "random", "windows": 8}})
    Traceback (most recent call last):
    submodel.errors.ConfigError: scheme.windows: 'random' has no such key; it goes with \
scheme.name = rolling
    """
    check_bounds(values)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(sentences(error.errors(), values)) from None


def _setting(text: str) -> tuple[list[str], Any]:
    """Read one ``key.path=value``; the value is TOML, or a plain word."""
    path, sign, value = text.partition("=")
    if not sign or not path.strip():
        raise ConfigError([f"--set {shorten(text)}: want key.path=value"])
    try:
        table = read_toml(f"x = {value}")
    except ConfigError:
        table = {}
    return path.strip().split("."), table["x"] if table.keys() == {"x"} else value.strip()


def override(values: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Nested values with ``key.path=value`` settings put in.

    >>> override({"seed": 1}, ["scheme.name=random", "clients.capacities=[1, 0.5]"])
    {'seed': 1, 'scheme': {'name': 'random'}, 'clients': {'capacities': [1, 0.5]}}
    """
    result = dict(values)
    for text in settings:
        path, value = _setting(text)
        table = result
        for depth, part in enumerate(path[:-1]):
            inner = table.get(part, {})
            if not isinstance(inner, dict):
                what = shorten(".".join(path[: depth + 1]))
                raise ConfigError([f"--set {shorten(text)}: {what} is not a table"])
            table[part] = dict(inner)
            table = table[part]
        table[path[-1]] = value
    return result


def read(path: str | Path | None, settings: Sequence[str] = (), of_run: bool = False) -> Config:
    """The configuration of a file with settings put in.

    Args:
        path: of the file; None: all defaults.
        settings: as on the command line, ``KEY=VALUE``.
        of_run: the file is a run's, perhaps of an earlier version, which wrote all keys of all
            components; those that mean nothing, also with another component set, are left out.
    """
    where = "" if path is None else f"{path}: "
    try:
        values = {} if path is None else read_toml(read_text(Path(path), MOST_BYTES))
        if of_run:
            values = without_unused(override(values, settings))
        return parse(override(values, settings))
    except ConfigError as error:
        raise ConfigError([where + problem for problem in error.problems]) from None
    except UnreadableError as error:
        raise ConfigError([f"{where}{error}"]) from None


def without_unused(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without keys of components that are not chosen, which earlier versions wrote.

    >>> without_unused({"scheme": {"name": "full", "windows": 3}, "seed": 1})
    {'scheme': {'name': 'full'}, 'seed': 1}
    """
    result = dict(values)
    for name, section in values.items():
        base = section_class(name)
        if base is None or not isinstance(section, Mapping):
            continue
        kind = compose(base, section)
        result[name] = {
            key: value
            for key, value in section.items()
            if key in kind.model_fields
            or (
                not any(choice.having(key) for choice in kind.choices.values())
                and key not in _FORMER
            )
        }
    return result


_FORMER = ("options",)  # of components of ours, which have keys instead
