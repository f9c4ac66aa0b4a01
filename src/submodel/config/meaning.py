"""Comparison of configurations by value, their paths, and the changes that resuming allows.

A checkpoint keeps its configuration. Two configurations are compared by their checked values, so
neither the spelling of a number nor a key with a default that a later version adds makes them
differ. Relative paths start from the working folder; a run records the folder it began in, so that
it can be resumed from another.
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
    *("data.source", "data.path", "data.test_path", "model.weights"),  # contents are compared
)
"""Keys that may change when a run is resumed: none of them affects earlier rounds."""
RATE_KEYS = ("local.schedule", "local.milestones", "local.decay")
"""Keys that may change if the learning rates of earlier rounds stay the same."""
PLACE_KEYS = (
    "data.name",
    "data.path",
    "data.source",
    "data.test_path",
    "data.tokens",
    "model.weights",
)
"""Keys that locate data or weights; their contents are compared with those the run began with."""
_SCORE_KEYS = ("train.evaluate_capacities", "train.evaluate_train", "train.evaluate_train_examples",
           "train.evaluate_clients", "train.statistics", "train.statistics_examples")  # fmt: skip
_UNSET = "null"


def meaning(config: Config) -> dict[str, str]:
    """Map every key to its value in a canonical spelling.

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
    """Hash the values that must stay the same over a run."""
    unchangeable = {key: value for key, value in meaning(config).items() if key not in CHANGEABLE}
    return hashlib.sha256(_spell(unchangeable).encode()).hexdigest()


def differences(then: Config, now: Config) -> dict[str, tuple[str, str]]:
    """Map every key whose values differ to both values, spelled out.

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


def refusals(then: Config, now: Config, rounds_done: int) -> list[str]:
    """List why a run begun with ``then`` cannot be resumed with ``now``; empty if it can.

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
        if why := _reason(key, then, now, rounds_done):
            problems.append(f"{key}: {old} then, {new} now: {why}")
    if now.train.rounds < rounds_done and "train.rounds" not in changes:
        problems.append(f"train.rounds: {now.train.rounds}, but the run already has {rounds_done}")
    return problems


def _reason(key: str, then: Config, now: Config, rounds_done: int) -> str:
    """Return why this change of a key is refused; empty if it is allowed."""
    if key in _SCORE_KEYS:
        return "earlier rounds were scored with the old value"
    if key in RATE_KEYS:
        same_rates = _rates(then, rounds_done) == _rates(now, rounds_done)
        return "" if same_rates else "it changes the learning rates of earlier rounds"
    if key in PLACE_KEYS and key in paths_in(then) and key in paths_in(now):
        return ""  # the contents are compared
    if key not in CHANGEABLE:
        return "it shapes every round"
    if key == "train.rounds":
        if now.train.rounds < rounds_done:
            return f"the run already has {rounds_done}"
        if now.local.schedule == "cosine" and rounds_done:
            return "it determines all learning rates of a cosine schedule, also the earlier ones"
        if now.train.finish is not None and rounds_done:
            return "train.finish counts its rounds from the end; extend it by 'submodel fit'"
        others = not SCHEDULES.is_builtin(now.local.schedule)
        if others and _rates(then, rounds_done) != _rates(now, rounds_done):
            return f"it determines the learning rates of {now.local.schedule!r}, also earlier ones"
    if key == "engine.name" and "flower" in (then.engine.name, now.engine.name):
        return "the data of a run is either local or on devices"
    return ""


def _rates(config: Config, rounds: int) -> list[float]:
    """List the learning rates of the first rounds, relative to ``local.lr``."""
    schedule = SCHEDULES.find(config.local.schedule).make(config.local, config.train.rounds)
    return [schedule.factor(round_) for round_ in range(rounds)]


def _spell(value: object) -> str:
    """Spell a value so that equal values have equal text; 1 and 1.0 differ."""
    return json.dumps(value, sort_keys=True, default=str)


def _show(spelling: str) -> str:
    return "unset" if spelling == _UNSET else shorten(spelling)


def paths_in(config: Config) -> dict[str, Path]:
    """Map keys to the paths in a configuration, including those in names such as ``csv:PATH``.

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
    """Resolve relative paths from the folder a run began in, if known.

    A path that does not exist there is left unchanged.
    """
    if begun_in is None or begun_in == Path.cwd():
        return config
    return _with_paths(
        config, lambda _, path: there if (there := begun_in / path).exists() else path
    )


def made_absolute(config: Config, then: Config) -> Config:
    """Make those paths of a configuration absolute that differ from an earlier configuration."""
    before = paths_in(then)
    return _with_paths(
        config, lambda key, path: path if path == before.get(key) else path.absolute()
    )


def _with_paths(config: Config, change: Callable[[str, Path], Path]) -> Config:
    """Apply ``change`` to every path of a configuration, after expanding ``~``."""
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
    """Return the prefix of a path in a value, such as ``csv:``; None if it holds no path."""
    if not isinstance(value, str):
        return None
    if is_path_key(type(section), key):
        return ""
    registry = type(section).choices.get(key)
    prefix, colon, _ = value.partition(":")
    if registry is None or not colon or prefix not in registry.prefixes:
        return None
    return f"{prefix}:" if registry.entries[prefix].argument == "PATH" else None
