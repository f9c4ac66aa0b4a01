"""Writing configurations: as TOML for a run's folder, or with every key described.

The user's comments are kept when a configuration is written again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from typing import TYPE_CHECKING

import tomli_w

from submodel.config.reading import TOKEN, items_of, show_value
from submodel.config.sections import Config
from submodel.core.errors import ConfigError
from submodel.core.options import Section
from submodel.core.registry import GivenName

if TYPE_CHECKING:  # a tenth of a second that few commands need
    from tomlkit.container import Container

KeyPath = tuple[str, ...]
_HEADER = re.compile(r"\[([\w.-]+)\]\s*(#.*)?")
_KEY = re.compile(r"(# )?([\w-]+) =( .*)?")
_UNSET = re.compile(r"# [\w-]+ =\s*(#.*)")  # as `describe` writes a key without a value


def describe(config: Config) -> str:
    """The configuration as TOML with every key's description beside it; unset keys as comments.

    >>> describe(Config()).splitlines()[1]
    'seed = 0  # all randomness follows from it'
    """
    top: list[str] = []
    sections: list[str] = []
    for name, field in Config.model_fields.items():
        value = getattr(config, name)
        if not isinstance(value, Section):
            top.append(_describe_key(name, value, field.description))
            continue
        sections += ["", f"[{name}]  # {(type(value).__doc__ or '').rstrip('.')}"]
        for key, leaf in type(value).model_fields.items():
            sections.append(_describe_key(key, getattr(value, key), leaf.description))
        for key, setting in (value.model_extra or {}).items():
            sections.append(_describe_key(key, setting, "of a component whose code is not here"))
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
    if bad := _unwritable(values):
        raise ConfigError(f"{bad} cannot be written to a file of TOML")
    notes = [
        f"# {key} = {name!r}: given in Python, where no file can name it; the run goes on there "
        "alone, where it is given again\n"
        for key, name in given_names(values).items()
    ]
    return "".join([*notes, tomli_w.dumps(values)])


def _unwritable(values: object, path: str = "") -> str:
    """The path of a value that TOML cannot hold, and its type; empty if there is none.

    >>> _unwritable({"options": {"bias": None, "sizes": [1, 2.5]}})
    'options.bias: None'
    """
    if isinstance(values, Mapping | list | tuple):
        for name, inner in items_of(values):
            if isinstance(values, Mapping) and not isinstance(name, str):
                return f"{path}: the key {show_value(name)}"
            step = f"[{name}]" if isinstance(name, int) else f".{name}"
            if place := _unwritable(inner, f"{path}{step}".lstrip(".")):
                return place
        return ""
    if isinstance(values, str | bool | int | float | date | time):
        return ""
    return f"{path}: {show_value(values)}"


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
    for name, value in items_of(values):
        inner = f"{path}.{name}".lstrip(".") if isinstance(values, Mapping) else path
        found |= given_names(value, inner)
    return found


def keep_comments(text: str, users_text: str) -> str:
    r"""Insert the comments of a user's configuration into one that this package wrote.

    Comments above a key or beside it stay there; those of keys that are no more go to the end, with
    the key's name. Where ``users_text`` is not TOML, there are none.

    Args:
        text: What `to_toml` or `describe` made, a key or a section in each line.
        users_text: What somebody wrote, in any order and any spelling of TOML.

    >>> print(keep_comments("seed = 1\n", "# mine\nseed = 0  # try 1\n"), end="")
    # mine
    seed = 1  # try 1
    """
    comments = {one.path: one for one in _comments(users_text)}
    lines = text.splitlines()
    our_notes = {line.strip() for line in lines}
    our_notes |= {note for line in lines if (note := _split(line)[1])}
    result: list[str] = []
    for path, line in _paths(lines):
        comment = comments.pop(path, None) if path else None
        if comment is None:
            result.append(line)
        else:
            result += [*_foreign(comment.above, our_notes), _join_comments(line, comment.beside)]
    for path, comment in comments.items():
        name = f"{'.'.join(path)}: " if path else ""
        rest = _foreign([*comment.above, *([comment.beside] if comment.beside else [])], our_notes)
        result += [f"# {name}{note.lstrip('# ')}" if name else note for note in rest]
    return "\n".join(result) + "\n"


@dataclass(frozen=True)
class _Comments:
    """The user's comments about a key or a section."""

    path: KeyPath  # empty at the end of the file
    above: Sequence[str]
    beside: str = ""


def _comments(text: str) -> list[_Comments]:
    """All comments of a text, by the keys that they stand above or beside."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        body = tomlkit.parse(text)
    except (TOMLKitError, ValueError, RecursionError):
        return []
    waiting: list[str] = []
    comments = list(_in_table(body, (), waiting))
    return [*comments, _Comments((), waiting)] if waiting else comments


def _in_table(table: Container, path: KeyPath, waiting: list[str]) -> Iterator[_Comments]:
    """The comments of a table; ``waiting`` holds those above the next key."""
    from tomlkit.items import Array, Comment, Table, Whitespace

    for key, item in table.body:
        if isinstance(item, Comment):
            waiting.append(item.trivia.comment)
        if key is None or isinstance(item, Whitespace | Comment):
            continue
        item_path = (*path, key.key)
        inside = _comments_in(item.as_string()) if isinstance(item, Array) else []
        beside = item.trivia.comment
        if isinstance(item, Table) and item.is_super_table():
            beside = ""  # of a name with dots: it has no line
        elif waiting or beside or inside:
            yield _Comments(item_path, [*waiting, *inside], beside)
            waiting.clear()
        if isinstance(item, Table):
            yield from _in_table(item.value, item_path, waiting)


def _comments_in(text: str) -> list[str]:
    return [token[0] for token in TOKEN.finditer(text) if token[0].startswith("#")]


def _paths(lines: Sequence[str]) -> Iterator[tuple[KeyPath, str]]:
    """Every line of ours with the key or the section that it is about."""
    section: KeyPath = ()
    for line in lines:
        if header := _HEADER.fullmatch(line):
            section = tuple(header[1].split("."))
            yield section, line
        elif key := _KEY.fullmatch(line):
            yield (*section, key[2]), line
        else:
            yield (), line


def _split(line: str) -> tuple[str, str]:
    """Split one of our lines into its content and the comment beside it.

    >>> _split('name = "a  # b"  # c'), _split("# width =  # how wide")
    (('name = "a  # b"', '# c'), ('# width =', '# how wide'))
    """
    unset = _UNSET.fullmatch(line)
    comment = unset[1] if unset else "".join(_comments_in(line))
    return line.removesuffix(comment).rstrip() if comment else line, comment


def _join_comments(line: str, beside: str) -> str:
    """A line with the user's comment before ours."""
    content, our_comment = _split(line)
    if not beside or beside == our_comment:
        return line
    rest = "" if beside.endswith(our_comment) else f" {our_comment}"
    return f"{content}  {beside}{rest}"


def _foreign(notes: Sequence[str], our_notes: set[str]) -> list[str]:
    """The comments that are not ours: a user may have started from printed defaults."""
    unset = {note: match[1] for note in notes if (match := _UNSET.fullmatch(note))}
    return [note for note in notes if note not in our_notes and unset.get(note) not in our_notes]
