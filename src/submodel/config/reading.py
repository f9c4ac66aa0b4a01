"""Reading and writing configurations; every mistake is told at once, by its path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import tomli_w
from pydantic import Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from submodel.config.method import Devices, Engine, Local, Merge, Server, Train
from submodel.config.plain import MOST_BYTES, check_bounds, read_toml, shortened, shown, unwritable
from submodel.config.subject import AxesChoice, Clients, Data, Model
from submodel.data import DATA_NAMES
from submodel.errors import ConfigError
from submodel.files import UnreadableError, read_text
from submodel.model.zoo import ModelName
from submodel.options import Section
from submodel.schemes.choice import SchemeChoice


class Config(Section):
    """Everything that defines a run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=100)] = Field(
        "digits", description="names the run's folder"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        0, description="all randomness follows from it"
    )
    model: Model = Model()
    axes: AxesChoice = AxesChoice()
    data: Data = Data()
    clients: Clients = Clients()
    scheme: SchemeChoice = SchemeChoice()
    merge: Merge = Merge()
    server: Server = Server()
    local: Local = Local()
    train: Train = Train()
    engine: Engine = Engine()
    devices: Devices = Devices()

    @field_validator("name")
    @classmethod
    def _is_a_folder(cls, name: str) -> str:
        if not name.strip("."):
            raise PydanticCustomError("reserved", "names no new folder")
        return name


_MOST_PROBLEMS = 50
_ALLOWED = {
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


def _problem(error: Mapping[str, Any]) -> str:
    """One mistake as ``key.path: what was given, what is allowed``."""
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error["loc"]).lstrip(".")
    path, given = shortened(path), shown(error["input"])
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        section: Any = Config
        for part in error["loc"][:-1]:
            section = section.model_fields[part].annotation
        return f"{path}: no such key; allowed here: {', '.join(section.model_fields)}"
    if kind == "value_error":  # from a validator of a section: begins with the key it is about
        return f"{path}.{context['error']}"
    if path == "model.name":
        names = ", ".join(name for name in get_args(ModelName) if name != "own")
        return f"{path}: {given} is not one of {names} and not package.module:factory"
    if path == "data.name" and kind == "string_pattern_mismatch":
        return f"{path}: {given} is not one of {', '.join(DATA_NAMES)}"
    if path.startswith("clients.capacities") and kind in ("greater_than", "less_than_equal"):
        return f"{path}: {shortened(str(error['input']))} is not in (0, 1]"
    why = _ALLOWED[kind].format(**context) if kind in _ALLOWED else error["msg"]
    return f"{path}: {given} {why}"


def parse(values: Mapping[str, Any]) -> Config:
    """A checked configuration from nested plain values; reports every mistake at once.

    >>> parse({"clients": {"capacities": [1, 1.5]}, "local": {"lr": "fast"}})
    Traceback (most recent call last):
    submodel.errors.ConfigError: clients.capacities[1]: 1.5 is not in (0, 1]
    local.lr: 'fast' is not a number
    """
    check_bounds(values)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        problems = [_problem(e) for e in error.errors()]
        if more := problems[_MOST_PROBLEMS:]:
            problems[_MOST_PROBLEMS:] = [f"and {len(more):,} more mistakes"]
        raise ConfigError(problems) from None


def _setting(text: str) -> tuple[list[str], Any]:
    """Read one ``key.path=value``; the value is TOML, or a plain word."""
    path, sign, value = text.partition("=")
    if not sign or not path.strip():
        raise ConfigError([f"--set {shortened(text)}: want key.path=value"])
    try:
        found = read_toml(f"x = {value}")
    except ConfigError:
        found = {}
    return path.strip().split("."), found["x"] if found.keys() == {"x"} else value.strip()


def override(values: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Nested values with ``key.path=value`` settings put in.

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
                what = shortened(".".join(path[: depth + 1]))
                raise ConfigError([f"--set {shortened(text)}: {what} is not a table"])
            table[part] = dict(inner)
            table = table[part]
        table[path[-1]] = value
    return result


def read(path: Path | None, settings: Sequence[str] = ()) -> Config:
    """The configuration of a file (None: all defaults) with settings put in."""
    where = "" if path is None else f"{path}: "
    try:
        values = {} if path is None else read_toml(read_text(path, MOST_BYTES))
        return parse(override(values, settings))
    except ConfigError as error:
        raise ConfigError([where + problem for problem in error.problems]) from None
    except UnreadableError as error:
        raise ConfigError([f"{where}{error}"]) from None


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
                sections.append(_described(key, getattr(value, key), leaf.description))
        else:
            top.append(_described(name, value, field.description))
    return "\n".join([*top, *sections]) + "\n"


def _described(key: str, value: object, description: str | None) -> str:
    return f"{f'# {key} =' if value is None else _line(key, value)}  # {description}"


def _line(key: str, value: object) -> str:
    """A key and its value as one line of TOML, tables in braces."""
    if isinstance(value, Mapping):
        name = tomli_w.dumps({key: 0}).partition(" = ")[0]
        return f"{name} = {{{', '.join(_line(inner, value[inner]) for inner in value)}}}"
    text = tomli_w.dumps({key: value}, indent=0).strip()
    return text.replace("\n", " ").replace("[ ", "[").replace(", ]", "]")


def to_toml(config: Config) -> str:
    """The resolved configuration as TOML; unset keys are left out."""
    values = config.model_dump(exclude_none=True)
    if bad := unwritable(values):
        raise ConfigError([f"{bad} cannot be written to a file of TOML"])
    return tomli_w.dumps(values)
