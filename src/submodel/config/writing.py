"""Writing configurations: as TOML for a run's folder, or with every key described."""

from __future__ import annotations

from collections.abc import Mapping

import tomli_w

from submodel.config.config import Config
from submodel.config.plain import unwritable
from submodel.errors import ConfigError
from submodel.options import Section
from submodel.plugins import GivenName


def describe(config: Config) -> str:
    """The configuration as TOML with every key's description beside it; unset keys as comments.

    >>> describe(Config()).splitlines()[1]
    'seed = 0  # all randomness follows from it'
    """
    top: list[str] = []
    sections: list[str] = []
    for name, field in Config.model_fields.items():
        value = getattr(config, name)
        if isinstance(value, Section):
            sections += ["", f"[{name}]  # {(type(value).__doc__ or '').rstrip('.')}"]
            for key, leaf in type(value).model_fields.items():
                sections.append(_describe_key(key, getattr(value, key), leaf.description))
            for key, setting in (value.model_extra or {}).items():
                sections.append(
                    _describe_key(key, setting, "of a component whose code is not here")
                )
        else:
            top.append(_describe_key(name, value, field.description))
    return "\n".join([*top, *sections]) + "\n"


def _describe_key(key: str, value: object, description: str | None) -> str:
    return f"{f'# {key} =' if value is None else _line(key, value)}  # {description}"


def _line(key: str, value: object) -> str:
    """A key and its value as one line of TOML, tables in braces.

    >>> _line("a = b", ["[ 1, ]", {"c": 2}])
    '"a = b" = ["[ 1, ]", {c = 2}]'
    """
    name = tomli_w.dumps({key: 0}).removesuffix(" = 0\n")
    return f"{name} = {_value(value)}"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(_line(key, inner) for key, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()


def to_toml(config: Config) -> str:
    """The resolved configuration as TOML; unset keys are left out."""
    values = config.model_dump(exclude_none=True)
    if bad := unwritable(values):
        raise ConfigError([f"{bad} cannot be written to a file of TOML"])
    notes = [
        f"# {key} = {name!r}: given in Python, where no file can name it; the run goes on there "
        "alone, where it is given again\n"
        for key, name in given_names(values).items()
    ]
    return "".join([*notes, tomli_w.dumps(values)])


def given_names(values: object, path: str = "") -> dict[str, str]:
    """The components of a configuration that were given in Python and have no path, by key.

    Args:
        values: of the configuration, nested; or the configuration itself.
        path: the key of the values.
    """
    if isinstance(values, Config):
        values = values.model_dump()
    if isinstance(values, GivenName):
        return {path: str(values)}
    found: dict[str, str] = {}
    if isinstance(values, list):
        for value in values:
            found |= given_names(value, path)
    for key, value in values.items() if isinstance(values, Mapping) else ():
        found |= given_names(value, f"{path}.{key}".lstrip("."))
    return found
