"""Generate docs/configuration.md: every section, component and key of the configuration."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from submodel.config import Config
from submodel.config.reading import section_class
from submodel.config.sections import TRACKERS
from submodel.core.options import Section
from submodel.core.registry import Registry
from submodel.data.builtin_data import AUGMENTATIONS
from submodel.tasks.builtin_tasks import METRICS

NAMED_IN_LISTS: dict[str, dict[str, Registry[Any]]] = {
    "task": {"metrics": METRICS},
    "data": {"augment": AUGMENTATIONS},
    "train": {"trackers": TRACKERS},
}
"""Registries of components that a list may name, by section and key; they add no keys."""


def page() -> str:
    """Format all sections in the order of a configuration."""
    plain = {key: field for key, field in Config.model_fields.items() if section_class(key) is None}
    parts = ["### Above all sections", _keys(plain, {})]
    for name in Config.model_fields:
        if (section := section_class(name)) is not None:
            choices = {**section.choices, **NAMED_IN_LISTS.get(name, {})}
            parts += [f"### `[{name}]`", str(section.__doc__).split("\n")[0]]
            parts.append(_keys(section.model_fields, choices))
            parts += [
                _components(registry) for registry in _with_inner_registries(choices.values())
            ]
    return "\n\n".join(parts)


def _with_inner_registries(registries: Iterable[Registry[Any]]) -> list[Registry[Any]]:
    """Return each registry once, followed by the registries of its components' options."""
    result: list[Registry[Any]] = []
    for registry in registries:
        names = [
            f"{name}:x" if entry.argument else name for name, entry in registry.entries.items()
        ]
        inner = [other for n in names for other in registry.find(n).options.choices.values()]
        for one in (registry, *inner):
            if one not in result:
                result.append(one)
    return result


def _keys(fields: dict[str, FieldInfo], choices: Any) -> str:
    lines = ["| key | default | meaning |", "| --- | --- | --- |"]
    for key, field in fields.items():
        cells = f"`{key}`", _default(field), _meaning(field, choices.get(key))
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines)


def _components(registry: Registry[Any]) -> str:
    """Tabulate the components of a registry with the keys that each adds to its section."""
    lines = [f"| `{registry.key}` | | its keys |", "| --- | --- | --- |"]
    for name, entry in registry.entries.items():
        if entry.is_hidden:
            continue
        title = f"{name}:{entry.argument}" if entry.argument else name
        component = registry.find(f"{name}:x" if entry.argument else name)
        keys = "<br>".join(_line(component.options, key) for key in component.options.model_fields)
        about = entry.about.replace("*", "\\*")
        lines.append(f"| `{title}` | {_cell(about)} | {_cell(keys)} |")
    return "\n".join(lines)


def _line(options: type[Section], key: str) -> str:
    field = options.model_fields[key]
    return f"`{key}` ({_default(field)}): {_meaning(field, options.choices.get(key))}"


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "needed"
    return "-" if field.default is None else f"`{json.dumps(field.default)}`"


def _meaning(field: FieldInfo, registry: Registry[Any] | None) -> str:
    """Describe a key, with its allowed values if they are a list of words."""
    text = field.description or ""
    if registry is not None:
        return text.replace(registry.describe(), f"see below; entry points: `{registry.group}`")
    words = words_of(field.annotation)
    if all(word in text for word in words):
        return text
    return f"{' or '.join(f'`{json.dumps(word)}`' for word in words)}: {text}"


def words_of(annotation: Any) -> list[str]:
    """List the literal values of an annotation."""
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    return [word for inner in get_args(annotation) for word in words_of(inner)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
