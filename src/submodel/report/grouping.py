"""Which runs are one group, in pages and figures: those that differ in nothing but their seeds."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from submodel.config.meaning import CHANGEABLE
from submodel.errors import plain

_SHAPING = {"train.rounds", "train.evaluate_every", "train.output_step"}
_NOT_SHAPING = {"seed", *CHANGEABLE} - _SHAPING
WayKey = tuple[tuple[str, str], ...]
"""The keys of a configuration that shape its result, and their values."""


def spell_settings(values: Mapping[str, Any]) -> dict[str, str]:
    """Every key of a configuration that has a value, each in one spelling.

    Args:
        values: the sections of a run, as its file, its record or its `Config` has them.

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


def way_of(settings: Mapping[str, str]) -> WayKey:
    """All that makes a configuration another way to train; runs that share it differ by seed.

    Names, trackers, checkpoints, where the data is found and where tasks run shape no result.
    Training over devices is another way than training here, as devices may have other data.

    Args:
        settings: of `spell_settings`.

    >>> way_of({"seed": "1", "local.lr": "0.1", "engine.name": "local", "engine.threads": "2"})
    (('local.lr', '0.1'),)
    """
    return tuple(
        (key, value)
        for key, value in sorted(settings.items())
        if (key not in _NOT_SHAPING and not key.startswith("engine."))
        or (key, value) == ("engine.name", "flower")
    )


def describe_repeats(runs: Iterable[tuple[str, Hashable]]) -> list[str]:
    """The runs of which an earlier one has the same configuration and seed, a sentence each.

    Args:
        runs: the name of each, and what is equal for runs that should be the same: way and seed.

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
