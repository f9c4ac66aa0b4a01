"""Comparing configurations by their values; their paths; what a resumed run may change.

A checkpoint keeps the configuration that it was made with. Two configurations are compared by their
checked values, so neither the spelling of a number nor a key that a later version adds, with a
default, makes them different. A relative path is one from the working folder; a run keeps the
folder that it was begun in, so that it can go on in another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from submodel.config.reading import shorten
from submodel.config.sections import Config
from submodel.core.options import Section, is_path_key
from submodel.tasks.builtin_tasks import SCHEDULES

CHANGEABLE = (
    "name",
    "train.rounds",
    "train.evaluate_every",
    "train.checkpoint_every",
    "train.output_step",
    "train.trackers",
    *(f"engine.{key}" for key in ("name", "processes", "threads", "device", "batching", "kernels")),
    *(f"devices.{key}" for key in ("least", "deadline", "quorum", "tries")),
    *("data.source", "data.path", "data.test_path", "model.weights"),  # the content is compared
)
"""Keys that may change when a run is resumed: none of them affects the rounds so far."""
RATE_KEYS = ("local.schedule", "local.milestones", "local.decay")
"""Keys that may change where the learning rates of the rounds so far stay the same."""
PLACE_KEYS = (
    "data.name",
    "data.path",
    "data.source",
    "data.test_path",
    "data.tokens",
    "model.weights",
)
"""Keys that say where something is; what is found there is compared with what a run began with."""
_SCORE_KEYS = ("train.evaluate_capacities", "train.evaluate_train", "train.evaluate_train_examples",
           "train.evaluate_clients", "train.statistics", "train.statistics_examples")  # fmt: skip
_UNSET = "null"


def meaning(config: Config) -> dict[str, str]:
    """Every key's value in a canonical spelling.

    >>> from submodel.config import parse
    >>> meaning(parse({"clients": {"per_round": 10}})) == meaning(Config())
    True
    """
    config_in_full = Config.model_validate(config.model_dump())
    values = {}
    for name in Config.model_fields:
        value = getattr(config_in_full, name)
        if isinstance(value, Section):
            for key in type(value).model_fields:
                values[f"{name}.{key}"] = _spell(getattr(value, key))
        else:
            values[name] = _spell(value)
    return values


def fingerprint(config: Config) -> str:
    """A hash of the values that must stay the same over a run."""
    unchangeable = {key: value for key, value in meaning(config).items() if key not in CHANGEABLE}
    return hashlib.sha256(_spell(unchangeable).encode()).hexdigest()


def differences(then: Config, now: Config) -> dict[str, tuple[str, str]]:
    """The keys whose values differ, with both.

    >>> from submodel.config import parse
    >>> differences(Config(), parse({"seed": 3, "model": {"width": 16}}))
    {'seed': ('0', '3'), 'model.width': ('32', '16')}
    """
    before, after = meaning(then), meaning(now)
    return {
        key: (_show(before.get(key, _UNSET)), _show(after.get(key, _UNSET)))
        for key in {**before, **after}
        if before.get(key, _UNSET) != after.get(key, _UNSET)
    }


def refusals(then: Config, now: Config, rounds_behind: int) -> list[str]:
    """The reasons why a run begun as ``then`` cannot be resumed as ``now``; empty if it can.

    >>> from submodel.config import parse
    >>> refusals(Config(), parse({"train": {"rounds": 300}}), 200)
    []
    >>> decay = {"schedule": "step", "milestones": [200]}
    >>> refusals(Config(), parse({"train": {"rounds": 220}, "local": decay}), 200)
    []
    >>> refusals(Config(), parse({"seed": 1}), 5)[0]
    'seed: 0 then, 1 now: it shapes every round'
    """
    problems = []
    changes = differences(then, now)
    for key, (old, new) in changes.items():
        if why := _reason(key, then, now, rounds_behind):
            problems.append(f"{key}: {old} then, {new} now: {why}")
    if now.train.rounds < rounds_behind and "train.rounds" not in changes:
        problems.append(
            f"train.rounds: {now.train.rounds}, but the run has {rounds_behind} already"
        )
    return problems


def _reason(key: str, then: Config, now: Config, rounds_behind: int) -> str:
    """The reason why a key may not change so; empty if it may."""
    if key in _SCORE_KEYS:
        return "the rounds so far were scored the other way"
    if key in RATE_KEYS:
        same_rates = _rates(then, rounds_behind) == _rates(now, rounds_behind)
        return "" if same_rates else "it changes the learning rates of rounds so far"
    if key in PLACE_KEYS and key in paths_in(then) and key in paths_in(now):
        return ""  # what is found there is compared
    if key not in CHANGEABLE:
        return "it shapes every round"
    if key == "train.rounds":
        if now.train.rounds < rounds_behind:
            return f"the run has {rounds_behind} already"
        if now.local.schedule == "cosine" and rounds_behind:
            return "the learning rates of a cosine schedule follow from it, also those so far"
        if now.train.finish is not None and rounds_behind:
            return "train.finish counts its rounds from the end; extend it by 'submodel fit'"
        others = not SCHEDULES.is_ours(now.local.schedule)
        if others and _rates(then, rounds_behind) != _rates(now, rounds_behind):
            return f"the learning rates of {now.local.schedule!r} follow from it, also those so far"
    if key == "engine.name" and "flower" in (then.engine.name, now.engine.name):
        return "a run's data is either here or on devices"
    return ""


def _rates(config: Config, rounds: int) -> list[float]:
    """The learning rates of the first rounds, relative to ``local.lr``."""
    schedule = SCHEDULES.find(config.local.schedule).make(config.local, config.train.rounds)
    return [schedule.factor(round_) for round_ in range(rounds)]


def _spell(value: object) -> str:
    """The same text for equal values; whole numbers and fractions differ."""
    return json.dumps(value, sort_keys=True, default=str)


def _show(spelling: str) -> str:
    return "unset" if spelling == _UNSET else shorten(spelling)


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
    """The configuration with relative paths from the folder that a run was begun in, if known.

    Paths that are not there stay as they are.
    """
    if begun_in is None or begun_in == Path.cwd():
        return config
    return _with_paths(
        config, lambda _, path: there if (there := begun_in / path).exists() else path
    )


def made_absolute(config: Config, then: Config) -> Config:
    """The configuration with those paths absolute that it does not share with an earlier one."""
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
    """The prefix of the path in a value, as ``csv:``; None where the value holds no path."""
    if not isinstance(value, str):
        return None
    if is_path_key(type(section), key):
        return ""
    kind = type(section).choices.get(key)
    prefix, colon, _ = value.partition(":")
    if kind is None or not colon or prefix not in kind.prefixes:
        return None
    return f"{prefix}:" if kind.entries[prefix].argument == "PATH" else None
