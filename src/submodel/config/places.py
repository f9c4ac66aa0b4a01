"""Paths in a configuration: where they are on this machine, and where a run was begun.

A relative path is one from the working folder. A run keeps the folder that it was begun in, so that
it can go on in another.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from submodel.config.config import Config
from submodel.options import Section, is_path_key

PLACE_KEYS = (
    "data.name",
    "data.path",
    "data.source",
    "data.test_path",
    "data.tokens",
    "model.weights",
)
"""Keys that say where something is; what is found there is compared with what a run began with."""


def paths_in(config: Config) -> dict[str, Path]:
    """The paths that a configuration has, by key; those in names such as ``csv:PATH`` too.

    >>> from submodel.config import parse
    >>> paths_in(parse({"data": {"name": "csv:a.csv", "test_path": "b.csv"}}))
    {'data.name': PosixPath('a.csv'), 'data.test_path': PosixPath('b.csv')}
    """
    found: dict[str, Path] = {}

    def note(key: str, path: Path) -> Path:
        found[key] = path
        return path

    _with_paths(config, note)
    return found


def located(config: Config, begun_in: Path | None) -> Config:
    """The configuration with relative paths from the folder that a run was begun in.

    Args:
        config: of the run.
        begun_in: the folder; None: not known. Paths that are not there stay as they are.
    """
    if begun_in is None or begun_in == Path.cwd():
        return config
    return _with_paths(
        config, lambda _, path: there if (there := begun_in / path).exists() else path
    )


def made_absolute(config: Config, then: Config) -> Config:
    """The configuration with those paths absolute, from the working folder, that are new in it.

    Args:
        config: the one with changes.
        then: the one before them.
    """
    before = paths_in(then)
    return _with_paths(
        config, lambda key, path: path if path == before.get(key) else path.absolute()
    )


def _with_paths(config: Config, change: Callable[[str, Path], Path]) -> Config:
    """The configuration with every path (``~`` expanded) replaced, if it is replaced at all."""
    sections: dict[str, Section] = {}
    for section_name in Config.model_fields:
        section = getattr(config, section_name)
        if not isinstance(section, Section):
            continue
        values: dict[str, Any] = {}
        for key in type(section).model_fields:
            value = getattr(section, key)
            prefix = _prefix(section, key, value)
            if prefix is None:
                continue
            path = Path(value.removeprefix(prefix)).expanduser()
            if (new := change(f"{section_name}.{key}", path)) != path:
                values[key] = f"{prefix}{new}"
        if values:
            sections[section_name] = section.with_values(**values)
    return config.model_copy(update=sections) if sections else config


def _prefix(section: Section, key: str, value: object) -> str | None:
    """What stands before the path in a value, as ``csv:``; None where it has no path."""
    if not isinstance(value, str):
        return None
    if is_path_key(type(section), key):
        return ""
    kind = type(section).choices.get(key)
    prefix, colon, _ = value.partition(":")
    if kind is None or not colon or prefix not in kind.prefixes:
        return None
    return f"{prefix}:" if kind.offers[prefix].argument == "PATH" else None
