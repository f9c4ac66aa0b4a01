"""Generate the file of configuration keys for shell completion."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from submodel.cli.completion import KeyEntry
from submodel.config import Config
from submodel.config.reading import section_class
from submodel.core.registry import Registry
from tools.components import words_of
from tools.packages import ROOT

KEYS = ROOT / "src/submodel/cli/keys.json"
_LONGEST = 70  # characters of a description


def text() -> str:
    """Return the content of the file."""
    return json.dumps(dict(_entries()), indent=1, ensure_ascii=False) + "\n"


def _entries() -> Iterator[tuple[str, KeyEntry]]:
    for name, field in Config.model_fields.items():
        if (section := section_class(name)) is None:
            yield name, _entry(field, None)
            continue
        choices = dict(section.choices)
        fields = dict(section.model_fields)
        registries = list(choices.values())
        for registry in registries:
            for options in _options(registry):
                fields = {**options.model_fields, **fields}
                registries += [k for k in options.choices.values() if k not in registries]
                choices = {**options.choices, **choices}
        for key, inner in fields.items():
            yield f"{name}.{key}", _entry(inner, choices.get(key))


def _options(registry: Registry[Any]) -> Iterator[Any]:
    for name, entry in registry.entries.items():
        if not entry.is_hidden:
            yield registry.find(f"{name}:x" if entry.argument else name).options


def _entry(field: FieldInfo, registry: Registry[Any] | None) -> KeyEntry:
    values = dict.fromkeys(words_of(field.annotation), "")
    if registry is not None:
        entries = {n: o for n, o in registry.entries.items() if not o.is_hidden}
        values = {f"{n}:" if o.argument else n: _short(o.about) for n, o in entries.items()}
    elif field.annotation is bool:
        values = {"true": "", "false": ""}
    has_default = field.default not in (None, PydanticUndefined)
    default = (
        field.default if isinstance(field.default, str) else json.dumps(field.default, default=str)
    )
    about = (
        (field.description or "").split(registry.describe())[0]
        if registry
        else field.description or ""
    )
    return {"about": _short(about), "values": values, "default": default if has_default else ""}


def _short(text: str) -> str:
    """Shorten a description to its first sentence or clause."""
    first = text.split("; ")[0].split(". ")[0].strip(" :.,")
    return first if len(first) <= _LONGEST else first[:_LONGEST].rsplit(" ", 1)[0] + " ..."
