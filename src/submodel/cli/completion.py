"""Shell completion of run folders, names and keys, without loading components.

Typer completes commands, options and choices, and filters the results of these callbacks by the
typed text. `make graph` writes ``keys.json``, so no component is loaded for its name.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TypedDict

from submodel.report.plots.figure_kinds import FIGURES

Completions = list[tuple[str, str]]
"""Completions, each with a description."""


class KeyEntry(TypedDict):
    """Completion data of one configuration key."""

    about: str
    values: dict[str, str]  # allowed values with descriptions; empty if unrestricted
    default: str


@cache
def known_keys() -> dict[str, KeyEntry]:
    """Return all keys of the configuration, including those of components."""
    text = resources.files(__package__).joinpath("keys.json").read_text("utf-8")
    keys: dict[str, KeyEntry] = json.loads(text)
    return keys


def settings(incomplete: str) -> Completions:
    """Complete ``KEY=VALUE``: keys first, then the values of a complete key.

    >>> settings("clients.per_r")
    [('clients.per_round=10', 'clients per round')]
    """
    key, sign, _ = incomplete.partition("=")
    names = [name for name in known_keys() if name == key or (not sign and name.startswith(key))]
    if len(names) > 1:
        return [(f"{name}=", known_keys()[name]["about"]) for name in names]
    pairs = []
    for name in names:
        entry = known_keys()[name]
        values = entry["values"] or {entry["default"]: entry["about"]}
        pairs += [(f"{name}={value}", about) for value, about in values.items()]
    return pairs


def names_of(key: str) -> Callable[[], Completions]:
    """Return a completion over the allowed values of a configuration key."""
    return lambda: [*known_keys()[key]["values"].items()]


def figures() -> Completions:
    """Complete the figures of `submodel report`."""
    return [(name, kind.about) for name, kind in FIGURES.items()]


def data_names(incomplete: str) -> Completions:
    """Complete built-in data sources and configuration files."""
    return [*names_of("data.name")(), *config_files(incomplete)]


def arms(incomplete: str) -> Completions:
    """Complete schemes separated by commas.

    >>> "rolling,static" in dict(arms("rolling,sta"))
    True
    """
    before, comma, _ = incomplete.rpartition(",")
    return [(f"{before}{comma}{name}", about) for name, about in names_of("scheme.name")()]


def run_folders(incomplete: str) -> Completions:
    """Complete folders of runs, under ``runs`` or below the typed path."""
    places = _folders(_base(incomplete))
    runs = [path for path in dict.fromkeys([*places, *_folders(Path("runs"))]) if _is_run(path)]
    completed = [(str(path), "a run") for path in runs]
    return completed + [(f"{path}/", "") for path in places if not _is_run(path)]


def config_files(incomplete: str) -> Completions:
    """Complete files that end in ``.toml``, and folders.

    Args:
        incomplete: typed text.
    """
    base = _base(incomplete)
    files = [(str(path), "") for path in sorted(base.glob("*.toml"))]
    return files + [(f"{path}/", "") for path in _folders(base)]


def _base(incomplete: str) -> Path:
    return Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent


def _is_run(path: Path) -> bool:
    return (path / "config.toml").is_file()


def _folders(base: Path) -> list[Path]:
    try:
        return sorted(p for p in base.iterdir() if p.is_dir() and not p.name.startswith("."))
    except OSError:
        return []


@contextmanager
def whole_bash_words() -> Iterator[None]:
    """Complete ``KEY=VALUE`` and ``a:b`` in Bash, which splits both into several words.

    Words are joined before Typer reads them. Each printed completion keeps only the part after the
    last break, because Bash replaces no more than that. Typer has no public interface for either:
    its class for Bash is private, and its version decides whether that is registered with Click or
    with Typer's own copy of Click.
    """
    if os.environ.get("_SUBMODEL_COMPLETE") != "complete_bash":
        yield
        return
    words = os.environ["COMP_WORDS"].split("\n")[: int(os.environ["COMP_CWORD"]) + 1]
    whole_words = re.sub(r"\n(?=[=:])|(?<=[=:])\n", "", "\n".join(words)).split("\n")
    os.environ["COMP_WORDS"] = "\n".join(whole_words)
    os.environ["COMP_CWORD"] = str(len(whole_words) - 1)
    kept = re.sub(r"^[\"']|[^=:]*$", "", whole_words[-1])
    completed = io.StringIO()
    try:
        with redirect_stdout(completed):
            yield
    finally:
        for line in completed.getvalue().splitlines():
            print(line.removeprefix(kept))
