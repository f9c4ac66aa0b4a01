"""The results in folders, and the groups of equal runs: for pages and figures alike."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from submodel.comparison.records import COMPARISON_FILE, record_files
from submodel.config.meaning import CHANGEABLE
from submodel.core.errors import plain
from submodel.runs.folder import is_run

Kind = Literal["run", "comparison", "records", "runs"]
_SHAPING = {"train.rounds", "train.evaluate_every", "train.output_step"}
_NOT_SHAPING = {"seed", *CHANGEABLE} - _SHAPING


def find_results(path: Path) -> tuple[Kind, list[Path]] | None:
    """Find the results of a folder, or of the file of a record; None: there are none.

    They are those of a run, or of runs that have begun (their folders), of a comparison (the folder
    of its records), or of a reproduction (the files of its records).
    """
    if is_run(path):
        return "run", [path]
    if path.suffix == ".json" and path.is_file():
        return "records", [path]
    for folder in (path, path / "records"):
        if (folder / COMPARISON_FILE).is_file():
            return "comparison", [folder]
        if records := [file for file in record_files(folder) if _is_record(file)]:
            return "records", records
    for pattern in ("*/config.toml", "runs/*/seed-*/config.toml"):
        if files := sorted(path.glob(pattern)):
            return "runs", [file.parent for file in files]
    return None


def _is_record(file: Path) -> bool:
    """Whether the beginning of a file is that of a record; studies write JSON, too."""
    with file.open("rb") as content:
        return b'"slug"' in content.read(200)


def spell_settings(values: Mapping[str, Any]) -> dict[str, str]:
    """The keys of a configuration that have values, each in one spelling.

    >>> spell_settings({"seed": 1, "local": {"lr": 1.0, "clip": None, "optimiser": "sgd"}})
    {'seed': '1', 'local.lr': '1', 'local.optimiser': 'sgd'}
    """
    settings = {}
    for name, section in values.items():
        entries = section if isinstance(section, Mapping) else {"": section}
        for key, value in entries.items():
            if value is not None:
                text = json.dumps(_plain(value), sort_keys=True, default=str)
                settings[plain(f"{name}.{key}".strip("."), 100)] = text.strip('"')
    return settings


def _plain(value: Any) -> Any:
    """A value in one spelling: 10.0 is 10."""
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def shaping_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that shape a result; runs of one arm share them, and differ by their seeds.

    Names, trackers, checkpoints, where the data is found and where tasks run shape no result.
    Training over devices does, as devices may have other data.

    >>> shaping_settings({"seed": "1", "local.lr": "0.1", "engine.name": "local"})
    {'local.lr': '0.1'}
    """
    return {
        key: value
        for key, value in sorted(settings.items())
        if (key not in _NOT_SHAPING and not key.startswith("engine."))
        or (key, value) == ("engine.name", "flower")
    }


def group_equal(values: Iterable[Hashable]) -> list[list[int]]:
    """The places of equal values, in the order of their first.

    >>> group_equal("abca")
    [[0, 3], [1], [2]]
    """
    places: dict[Hashable, list[int]] = {}
    for place, value in enumerate(values):
        places.setdefault(value, []).append(place)
    return list(places.values())


def group_arms(
    settings: Iterable[Mapping[str, str]], titles: Iterable[str]
) -> list[tuple[list[int], dict[str, str]]]:
    """Group runs by their title and shaping settings: places, and the settings that differ."""
    shaping = [shaping_settings(own) for own in settings]
    keys = ((title, *own.items()) for title, own in zip(titles, shaping, strict=True))
    groups = group_equal(keys)
    firsts = [shaping[places[0]] for places in groups]
    differing = distinctive_keys(firsts)
    return [
        (places, {key: first[key] for key in differing if key in first})
        for places, first in zip(groups, firsts, strict=True)
    ]


def distinctive_keys(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys by which configurations differ.

    A key that only follows from another component of its section, as ``scheme.order`` from a scheme
    that has one, is left out.

    >>> rolling, static = {"scheme.name": "rolling", "scheme.order": "x"}, {"scheme.name": "static"}
    >>> distinctive_keys([rolling, static])
    ['scheme.name']
    >>> distinctive_keys([rolling, {**rolling, "scheme.order": "y"}])
    ['scheme.order']
    """
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if _is_distinctive(key, settings)]


def _is_distinctive(key: str, settings: Sequence[Mapping[str, str]]) -> bool:
    if len({one[key] for one in settings if key in one}) > 1:
        return True
    if all(key in one for one in settings):
        return False
    namer = f"{key.partition('.')[0]}.name"
    by_name: dict[str | None, set[str | None]] = {}
    for one in settings:
        by_name.setdefault(one.get(namer), set()).add(one.get(key))
    return any(len(values) > 1 for values in by_name.values())


def describe_repeats(runs: Iterable[tuple[str, Hashable]]) -> list[str]:
    """The runs of which an earlier one has the same configuration and seed, a sentence each.

    >>> describe_repeats([("a", 0), ("b", 1), ("c", 0)])
    ['c: the same configuration and seed as a; curves show both, tables the first']
    """
    firsts: dict[Hashable, str] = {}
    return [
        f"{name}: the same configuration and seed as {firsts[key]}; curves show both, tables the "
        "first"
        for name, key in runs
        if firsts.setdefault(key, name) != name
    ]
