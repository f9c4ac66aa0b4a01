"""Writing of configurations as TOML, for a run's folder or with a description of every key.

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
_UNSET = re.compile(r"# [\w-]+ =\s*(#.*)")  # a key without a value, as `describe` writes it


def describe(config: Config) -> str:
    """Format a configuration as TOML with a description of every key; unset keys as comments.

    >>> describe(Config()).splitlines()[1]
    'seed = 0  # seed of all randomness'
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
            sections.append(_describe_key(key, setting, "key of a component that is not installed"))
    return "\n".join([*top, *sections]) + "\n"


def _describe_key(key: str, value: object, description: str | None) -> str:
    return f"{f'# {key} =' if value is None else _line(key, value)}  # {description}"


def _line(key: str, value: object) -> str:
    """Format a key and its value as one line of TOML, tables in braces.

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
    """Format the resolved configuration as TOML; unset keys are left out."""
    values = config.model_dump(exclude_none=True)
    if bad := _unwritable(values):
        raise ConfigError(f"{bad} cannot be written as TOML")
    notes = [
        f"# {key} = {name!r}: an object given in Python; this run can be resumed only from Python, "
        "with the object given again\n"
        for key, name in given_names(values).items()
    ]
    return "".join([*notes, tomli_w.dumps(values)])


def _unwritable(values: object, path: str = "") -> str:
    """Return the path and spelling of a value that TOML cannot hold; empty if there is none.

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
    """Map keys to the components of a configuration that were given in Python and have no path.

    Args:
        values: nested values of the configuration, or the configuration itself.
        path: key of the values.
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

    Comments above or beside a key stay there; those of removed keys go to the end, with the key's
    name. If ``users_text`` is not TOML, no comments are inserted.

    Args:
        text: output of `to_toml` or `describe`, with a key or a section in each line.
        users_text: text of the user, in any order and any spelling of TOML.

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
    """The user's comments on a key or a section."""

    path: KeyPath  # empty at the end of the file
    above: Sequence[str]
    beside: str = ""


def _comments(text: str) -> list[_Comments]:
    """Collect all comments of a text with the key that each stands above or beside."""
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
    """Yield the comments of a table; ``waiting`` collects those above the next key."""
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
            beside = ""  # a table of a dotted name: it has no line of its own
        elif waiting or beside or inside:
            yield _Comments(item_path, [*waiting, *inside], beside)
            waiting.clear()
        if isinstance(item, Table):
            yield from _in_table(item.value, item_path, waiting)


def _comments_in(text: str) -> list[str]:
    return [token[0] for token in TOKEN.finditer(text) if token[0].startswith("#")]


def _paths(lines: Sequence[str]) -> Iterator[tuple[KeyPath, str]]:
    """Yield every line that this package wrote with the path of its key or section."""
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
    """Split a line that this package wrote into content and comment.

    >>> _split('name = "a  # b"  # c'), _split("# width =  # how wide")
    (('name = "a  # b"', '# c'), ('# width =', '# how wide'))
    """
    unset = _UNSET.fullmatch(line)
    comment = unset[1] if unset else "".join(_comments_in(line))
    return line.removesuffix(comment).rstrip() if comment else line, comment


def _join_comments(line: str, beside: str) -> str:
    """Insert the user's comment before the comment that this package wrote."""
    content, our_comment = _split(line)
    if not beside or beside == our_comment:
        return line
    rest = "" if beside.endswith(our_comment) else f" {our_comment}"
    return f"{content}  {beside}{rest}"


def _foreign(notes: Sequence[str], our_notes: set[str]) -> list[str]:
    """Filter out our own comments: a user may have started from printed defaults."""
    unset = {note: match[1] for note in notes if (match := _UNSET.fullmatch(note))}
    return [note for note in notes if note not in our_notes and unset.get(note) not in our_notes]
