"""Reading of configurations, within bounds; all mistakes are reported at once, by key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from submodel.config.sections import Config
from submodel.core.errors import ConfigError
from submodel.core.files import UnreadableError, read_text
from submodel.core.options import Section, compose

MOST_BYTES = 2**18  # of a configuration; tomllib reads about a megabyte per second
MOST_MISTAKES = 50
"""The number of mistakes that one error reports."""
_DEEPEST = 50  # nesting of tables and lists
_MOST_VALUES = 20_000
_LONGEST_NAME = 100  # parts joined by dots; tomllib takes time quadratic in their number
_MOST_BITS = 1024  # of an integer; Python refuses to print much longer ones
_LONGEST_TEXT = 200
# A string of any of TOML's four kinds, closed or not; a comment; one character.
TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"""|\Z)|\'\'\'.*?(?:\'\'\'|\Z)|"(?:\\.|[^"\\\n])*"?|\'[^\'\n]*\'?'
    r"|\#[^\n]*|[^\"'#.=,\[\]{}\n]+|.",
    re.DOTALL,
)
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
    "string_pattern_mismatch": "contains characters other than letters, digits, '.', '_' and '-'",
    "model_type": "is not a table of keys",
}
_FORMER = ("options",)  # former key of built-in components, which have their own keys instead


def read(path: str | Path | None, settings: Sequence[str] = (), of_run: bool = False) -> Config:
    """Read the configuration of a file, with settings applied.

    Args:
        path: path of the file; None: all defaults.
        settings: settings as on the command line, ``KEY=VALUE``.
        of_run: whether the file belongs to a run, perhaps of an earlier version, which wrote all
            keys of all components; keys of components that are not chosen are then ignored.
    """
    where = "" if path is None else f"{path}: "
    try:
        values = {} if path is None else read_toml(read_text(Path(path), MOST_BYTES))
        if of_run:
            values = without_unused(override(values, settings))
        return parse(override(values, settings))
    except ConfigError as error:
        raise ConfigError([where + problem for problem in error.problems]) from None
    except UnreadableError as error:
        raise ConfigError(f"{where}{error}") from None


def parse(values: Mapping[str, Any]) -> Config:
    """Check nested plain values and make a configuration; report every mistake at once.

    >>> parse({"clients": {"capacities": [1, 1.5]}, "local": {"lr": "fast"}})
    Traceback (most recent call last):
    submodel.core.errors.ConfigError: clients.capacities[1]: 1.5 is not in (0, 1]
    local.lr: 'fast' is not a number
    >>> parse({"scheme": {"name": "random", "windows": 8}})
    Traceback (most recent call last):
    submodel.core.errors.ConfigError: scheme.windows: 'random' has no such key; it goes with \
scheme.name = rolling
    """
    check_bounds(values)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        problems = [_sentence(mistake, values) for mistake in error.errors()]
        if more := problems[MOST_MISTAKES:]:
            problems[MOST_MISTAKES:] = [f"and {len(more):,} more mistakes"]
        raise ConfigError(problems) from None


def override(values: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Apply ``key.path=value`` settings to nested values.

    >>> override({"seed": 1}, ["scheme.name=random", "clients.capacities=[1, 0.5]"])
    {'seed': 1, 'scheme': {'name': 'random'}, 'clients': {'capacities': [1, 0.5]}}
    """
    result = dict(values)
    for text in settings:
        path, value = _setting(text)
        table = result
        for depth, part in enumerate(path[:-1]):
            inner = table.get(part, {})
            if not isinstance(inner, dict):
                what = shorten(".".join(path[: depth + 1]))
                raise ConfigError(f"--set {shorten(text)}: {what} is not a table")
            table[part] = dict(inner)
            table = table[part]
        table[path[-1]] = value
    return result


def _setting(text: str) -> tuple[list[str], Any]:
    """Read one ``key.path=value``; the value is TOML or a plain word."""
    path, sign, value = text.partition("=")
    if not sign or not path.strip():
        raise ConfigError(f"--set {shorten(text)}: not of the form key.path=value")
    try:
        table = read_toml(f"x = {value}")
    except ConfigError:
        table = {}
    return path.strip().split("."), table["x"] if table.keys() == {"x"} else value.strip()


def without_unused(values: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the keys of components that are not chosen, which earlier versions wrote.

    >>> without_unused({"scheme": {"name": "full", "windows": 3}, "seed": 1})
    {'scheme': {'name': 'full'}, 'seed': 1}
    """
    result = dict(values)
    for name, section in values.items():
        base = section_class(name)
        if base is None or not isinstance(section, Mapping):
            continue
        composed = compose(base, section)
        result[name] = {
            key: value
            for key, value in section.items()
            if key in composed.model_fields
            or (
                not any(registry.names_with_key(key) for registry in composed.choices.values())
                and key not in _FORMER
            )
        }
    return result


def section_class(name: str) -> type[Section] | None:
    """Return the class of a section by its name; None if there is none."""
    field = Config.model_fields.get(name)
    if field is None:
        return None
    types = [field.annotation, *get_args(field.annotation)]
    return next((k for k in types if isinstance(k, type) and issubclass(k, Section)), None)


def _sentence(error: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """Format a mistake that pydantic found: key path, given value, allowed values."""
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error["loc"]).lstrip(".")
    path, text = shorten(path), show_value(error["input"])
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return f"{path}: {_no_such_key(error['loc'], values)}"
    whose = _whose(error["loc"], values)
    if kind == "missing":
        return f"{path}: is missing{whose}"
    if kind == "value_error":  # from a validator of a section: begins with its key
        return f"{path}.{context['error']}".lstrip(".")
    if path.startswith("clients.capacities") and kind in ("greater_than", "less_than_equal"):
        return f"{path}: {shorten(str(error['input']))} is not in (0, 1]"
    why = _REASONS[kind].format(**context) if kind in _REASONS else error["msg"]
    return f"{path}: {text} {why}{whose}"


def _no_such_key(where: Sequence[str | int], values: Mapping[str, Any]) -> str:
    """Explain an unknown key, and suggest the intended one."""
    *outer, key = map(str, where)
    if not outer:
        return _nearest(key, list(Config.model_fields))
    base = section_class(outer[0])
    section_values = values.get(outer[0], {})
    if base is None or not isinstance(section_values, Mapping):
        return "no such key"
    section = compose(base, section_values)
    chosen = _chosen(section, section_values)
    for choice, registry in section.choices.items():
        if owners := registry.names_with_key(key):
            return (
                f"{show_value(chosen[choice])} has no such key; it goes with {outer[0]}.{choice} = "
                f"{' or '.join(owners)}"
            )
    if key == "options":
        names = [name for name in chosen.values() if name is not None]
        take = "takes" if len(names) == 1 else "take"
        names_text = " and ".join(map(repr, names))
        return f"{names_text} {take} keys of this section; options are for your own components"
    return _nearest(key, list(section.model_fields), list(_foreign(section, chosen).values()))


def _nearest(key: str, keys: Sequence[str], components: Sequence[str] = ()) -> str:
    """Suggest the nearest key of the section, or the same key elsewhere; name the components."""
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
    """List where a section has this key, by default or with other components."""
    base = section_class(name)
    if base is None:
        return []
    section = compose(base, {})
    if key in section.model_fields:
        return [f"{name}.{key}"]
    return [
        f"{name}.{key} (with {name}.{choice} = {' or '.join(owners)})"
        for choice, registry in section.choices.items()
        if (owners := registry.names_with_key(key))
    ]


def _chosen(section: type[Section], values: Mapping[str, Any]) -> dict[str, Any]:
    """Map the keys that name components to the given or default names."""
    return {
        key: registry.named(values.get(key, section.model_fields[key].default))
        for key, registry in section.choices.items()
    }


def _foreign(section: type[Section], chosen: Mapping[str, Any]) -> dict[str, str]:
    """Map keys to the chosen components that are not part of this package."""
    registries = section.choices
    return {
        key: name
        for key, name in chosen.items()
        if registries[key].accepts(name) and not registries[key].is_builtin(name)
    }


def _whose(where: Sequence[str | int], values: Mapping[str, Any]) -> str:
    """Name the foreign component that declares a key, in brackets; empty if there is none."""
    if len(where) < 2:
        return ""
    base, section_values = section_class(str(where[0])), values.get(str(where[0]))
    if base is None or not isinstance(section_values, Mapping) or where[1] in base.model_fields:
        return ""
    section = compose(base, section_values)
    for choice, name in _foreign(section, _chosen(section, section_values)).items():
        try:
            if where[1] in section.choices[choice].find(name).options.model_fields:
                return f" (a key of {name!r})"
        except ConfigError:
            continue
    return ""


def read_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text; raise `ConfigError` if it is invalid."""
    if len(text) > MOST_BYTES:
        raise ConfigError(f"larger than {MOST_BYTES:,} characters")
    dots = depth = 0
    for token in TOKEN.finditer(text):
        sign = token[0]
        if sign == ".":
            dots += 1
        elif sign in tuple("=,[]{}\n"):
            dots = 0
        depth += (sign in ("[", "{")) - (sign in ("]", "}"))
        if dots >= _LONGEST_NAME or depth > _DEEPEST:
            raise ConfigError("not valid TOML: nested too deeply")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # invalid TOML, or a number that is too long
        raise ConfigError(f"not valid TOML: {shorten(str(error))}") from None


def check_bounds(values: object) -> None:
    """Refuse values that are nested too deeply, too many, too long, or not valid text."""
    count = 0
    waiting: list[tuple[str, int, object]] = [("", 0, values)]
    while waiting:
        path, depth, value = waiting.pop()
        count += 1
        if depth > _DEEPEST or count > _MOST_VALUES:
            what = "nested too deeply" if depth > _DEEPEST else f"more than {_MOST_VALUES:,} values"
            raise ConfigError(f"{shorten(path)}: {what}")
        if isinstance(value, str) and not _is_text(value):
            raise ConfigError(f"{shorten(path)}: {show_value(value)} is not text")
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            raise ConfigError(f"{shorten(path)}: a number of {value.bit_length():,} bits")
        for name, inner in items_of(value):
            if isinstance(name, str) and not _is_text(name):
                raise ConfigError(f"{shorten(path)}: {show_value(name)} is not text")
            step = f"[{name}]" if isinstance(name, int) else f".{shorten(str(name))}"
            waiting.append((f"{path}{step}".lstrip("."), depth + 1, inner))


def items_of(value: object) -> Iterator[tuple[object, object]]:
    """Yield the entries of a table or list with keys or positions; none for other values."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def show_value(value: object) -> str:
    """Format a value for a message, shortened.

    >>> show_value("a" * 1000)[-12:]
    'aaaaaaaa ...'
    """
    try:
        return shorten(repr(value))
    except (ValueError, RecursionError):  # a number with too many digits, a list within itself
        return f"a {type(value).__name__}"


def shorten(text: str) -> str:
    """Shorten a long text to its beginning."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ..."
