"""Completion for shells: run folders, names, keys; without loading components.

Typer completes commands, options and choices, and filters what these callbacks offer by the typed
text. ``keys.json`` is written by `make graph`: components are not loaded for their names.
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

from submodel.report.plots.registry import FIGURES

Offers = list[tuple[str, str]]
"""Completions, each with a description."""


class KeyEntry(TypedDict):
    """A key of the configuration, as far as completion goes."""

    about: str
    values: dict[str, str]  # that it may have, and what each is; empty where any will do
    default: str


@cache
def known_keys() -> dict[str, KeyEntry]:
    """All keys of the configuration, those of components among them."""
    text = resources.files(__package__).joinpath("keys.json").read_text("utf-8")
    keys: dict[str, KeyEntry] = json.loads(text)
    return keys


def settings(incomplete: str) -> Offers:
    """``KEY=VALUE`` of a configuration: keys, and the values of one that is told.

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


def names_of(key: str) -> Callable[[], Offers]:
    """The completion to the names that a key of the configuration may have."""
    return lambda: [*known_keys()[key]["values"].items()]


def figures() -> Offers:
    """The figures of `submodel report`."""
    return [(name, kind.about) for name, kind in FIGURES.items()]


def data_names(incomplete: str) -> Offers:
    """Built-in data, and configurations of this folder."""
    return [*names_of("data.name")(), *config_files(incomplete)]


def ways(incomplete: str) -> Offers:
    """Schemes, separated by commas.

    >>> "rolling,static" in dict(ways("rolling,sta"))
    True
    """
    before, comma, _ = incomplete.rpartition(",")
    return [(f"{before}{comma}{name}", about) for name, about in names_of("scheme.name")()]


def run_folders(incomplete: str) -> Offers:
    """Folders of runs: those under ``runs``, or where the text leads."""
    places = _folders(_base(incomplete))
    runs = [path for path in dict.fromkeys([*places, *_folders(Path("runs"))]) if _is_run(path)]
    offers = [(str(path), "a run") for path in runs]
    return offers + [(f"{path}/", "") for path in places if not _is_run(path)]


def config_files(incomplete: str) -> Offers:
    """Files that end in ``.toml``, and folders on the way to them.

    Args:
        incomplete: what stands there.
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

    Words are joined before Typer reads them, and of what it prints only the part after the last
    break stays: Bash replaces no more than that. Typer has no public way to do either: its class
    for Bash is private, and registered with Click or with its own copy of Click by its version.
    """
    if os.environ.get("_SUBMODEL_COMPLETE") != "complete_bash":
        yield
        return
    words = os.environ["COMP_WORDS"].split("\n")[: int(os.environ["COMP_CWORD"]) + 1]
    whole_words = re.sub(r"\n(?=[=:])|(?<=[=:])\n", "", "\n".join(words)).split("\n")
    os.environ["COMP_WORDS"] = "\n".join(whole_words)
    os.environ["COMP_CWORD"] = str(len(whole_words) - 1)
    kept = re.sub(r"^[\"']|[^=:]*$", "", whole_words[-1])
    offers = io.StringIO()
    try:
        with redirect_stdout(offers):
            yield
    finally:
        for offer in offers.getvalue().splitlines():
            print(offer.removeprefix(kept))
