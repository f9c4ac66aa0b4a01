"""A mistake in a configuration as a sentence: the key, what was given, what is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from submodel.config.config import Config
from submodel.config.plain import shorten, show_value
from submodel.errors import ConfigError
from submodel.options import Section, compose

MOST_MISTAKES = 50
"""So many mistakes are told; nobody reads more."""
_REASONS = {
    "greater_than": "is not greater than {gt}",
    "greater_than_equal": "is less than {ge}",
    "less_than": "is not less than {lt}",
    "less_than_equal": "is greater than {le}",
    "literal_error": "is not one of {expected}",
    "int_parsing": "is not a whole number",
    "int_type": "is not a whole number",
    "int_from_float": "is not a whole number",
    "float_type": "is not a number",
    "float_parsing": "is not a number",
    "finite_number": "is not a finite number",
    "string_type": "is not a string",
    "list_type": "is not a list",
    "string_too_long": "is longer than {max_length} characters",
    "too_short": "has too few entries: at least {min_length}",
    "string_pattern_mismatch": "holds characters other than letters, digits, '.', '_' and '-'",
    "model_type": "is not a table of keys",
}


def sentences(errors: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> list[str]:
    """The mistakes that pydantic found in ``values``."""
    problems = [_sentence(error, values) for error in errors]
    if more := problems[MOST_MISTAKES:]:
        problems[MOST_MISTAKES:] = [f"and {len(more):,} more mistakes"]
    return problems


def _sentence(error: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """One mistake as ``key.path: what was given, what is allowed``."""
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error["loc"]).lstrip(".")
    path, text = shorten(path), show_value(error["input"])
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return f"{path}: {_no_such_key(error['loc'], values)}"
    whose = _whose(error["loc"], values)
    if kind == "missing":
        return f"{path}: is missing{whose}"
    if kind == "value_error":  # from a validator of a section: begins with the key it is about
        return f"{path}.{context['error']}".lstrip(".")
    if path.startswith("clients.capacities") and kind in ("greater_than", "less_than_equal"):
        return f"{path}: {shorten(str(error['input']))} is not in (0, 1]"
    why = _REASONS[kind].format(**context) if kind in _REASONS else error["msg"]
    return f"{path}: {text} {why}{whose}"


def _no_such_key(where: Sequence[str | int], values: Mapping[str, Any]) -> str:
    """What else may have been meant."""
    *outer, key = map(str, where)
    if not outer:
        return _nearest(key, list(Config.model_fields))
    base = section_class(outer[0])
    section_values = values.get(outer[0], {})
    if base is None or not isinstance(section_values, Mapping):
        return "no such key"
    section = compose(base, section_values)
    for choice, kind in section.choices.items():
        if owners := kind.having(key):
            component = section_values.get(choice, section.model_fields[choice].default)
            return (
                f"{show_value(component)} has no such key; it goes with {outer[0]}.{choice} = "
                f"{' or '.join(owners)}"
            )
    if key == "options":
        choices = [section_values.get(c, section.model_fields[c].default) for c in section.choices]
        names = [name for name in choices if name is not None]
        take = "takes" if len(names) == 1 else "take"
        return f"{' and '.join(map(repr, names))} {take} keys, not options, which are for own code"
    return _nearest(key, list(section.model_fields), _foreign(section, section_values))


def _nearest(key: str, keys: Sequence[str], components: Sequence[str] = ()) -> str:
    """The nearest key of the section, or the same key of others; ``components`` are named."""
    wrong = "no such key"
    if components:
        has = "have" if components[1:] else "has"
        wrong = f"{' and '.join(map(repr, components))} {has} no such key"
    allowed_here = f"allowed here: {', '.join(keys)}"
    if near := get_close_matches(key, keys, 1):
        return f"{wrong}; did you mean {near[0]!r}? {allowed_here}"
    if others := [place for name in Config.model_fields for place in _places(name, key)]:
        there = "there are" if others[1:] else "there is"
        return f"{wrong}; {there} {' and '.join(others)}; {allowed_here}"
    return f"{wrong}; {allowed_here}"


def _places(name: str, key: str) -> list[str]:
    """Where a section has this key: at once, or with other components than the default ones."""
    base = section_class(name)
    if base is None:
        return []
    section = compose(base, {})
    if key in section.model_fields:
        return [f"{name}.{key}"]
    return [
        f"{name}.{key} (with {name}.{choice} = {' or '.join(owners)})"
        for choice, kind in section.choices.items()
        if (owners := kind.having(key))
    ]


def _foreign(section: type[Section], section_values: Mapping[str, Any]) -> list[str]:
    """The components of others that a section chooses."""
    names = [
        (k, section_values.get(c, section.model_fields[c].default))
        for c, k in section.choices.items()
    ]
    return [name for kind, name in names if kind.knows(name) and not kind.is_ours(name)]


def _whose(where: Sequence[str | int], values: Mapping[str, Any]) -> str:
    """Which component of others declares a key; empty where it is one of ours."""
    if len(where) < 2:
        return ""
    base, section_values = section_class(str(where[0])), values.get(str(where[0]))
    if base is None or not isinstance(section_values, Mapping) or where[1] in base.model_fields:
        return ""
    section = compose(base, section_values)
    for choice, kind in section.choices.items():
        name = section_values.get(choice, section.model_fields[choice].default)
        if kind.knows(name) and not kind.is_ours(name):
            try:
                if where[1] in kind.find(name).options.model_fields:
                    return f" (a key of {name!r})"
            except ConfigError:
                continue
    return ""


def section_class(name: str) -> type[Section] | None:
    """The class of a section by its name; None where there is none."""
    field = Config.model_fields.get(name)
    if field is None:
        return None
    kinds = [field.annotation, *get_args(field.annotation)]
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, Section)), None)
