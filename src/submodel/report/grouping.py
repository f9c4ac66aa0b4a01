"""Results in folders, and groups of runs with equal settings, for pages and figures."""

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
    """Find the results in a folder or in the file of a record.

    Returns:
        The kind with its paths: folders of runs, the folder of a comparison's records, or files of
        a reproduction's records. None if there are no results.
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
    """Whether a file begins like a record; studies write JSON as well."""
    with file.open("rb") as content:
        return b'"slug"' in content.read(200)


def spell_settings(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of a configuration that have values, in a normal form.

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
    """Return the normal form of a value: 10 for 10.0."""
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def shaping_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that affect a result; runs of one arm share them.

    Names, trackers, checkpoints, the location of data and the engine have no effect. Training over
    devices has an effect, because devices may have other data.

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
    """Return the positions of equal values, in the order of first occurrence.

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
    """Group runs by title and `shaping_settings`; return positions and differing settings."""
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
    """Return the keys in which configurations differ.

    A key that only exists for one component, such as ``scheme.order``, is omitted.

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
    """Return a sentence for every run with the configuration and seed of an earlier one.

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
