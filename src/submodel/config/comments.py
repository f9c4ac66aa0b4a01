"""Keeping the comments that somebody wrote into a configuration when it is written anew."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a tenth of a second that few commands need
    from tomlkit.container import Container

KeyPath = tuple[str, ...]
_HEADER = re.compile(r"\[([\w.-]+)\]\s*(#.*)?")
_KEY = re.compile(r"(# )?([\w-]+) =( .*)?")
_UNSET = re.compile(r"# [\w-]+ =\s*(#.*)")  # as `describe` writes a key without a value
# a string of any of TOML's four kinds, a comment, one character
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\])*"|\'[^\']*\'|#[^\n]*|.', re.DOTALL
)


@dataclass(frozen=True)
class _Comments:
    """What somebody wrote about a key or a section."""

    path: KeyPath  # empty at the end of the file
    above: Sequence[str]
    beside: str = ""


def keep_comments(text: str, users_text: str) -> str:
    r"""A configuration that we wrote, with the comments of one that somebody else wrote.

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


def _foreign(notes: Sequence[str], our_notes: set[str]) -> list[str]:
    """Those that we did not write ourselves: a user may have begun with what we printed."""
    unset = {note: match[1] for note in notes if (match := _UNSET.fullmatch(note))}
    return [note for note in notes if note not in our_notes and unset.get(note) not in our_notes]


def _join_comments(line: str, beside: str) -> str:
    """A line with somebody's comment before our own."""
    content, our_comment = _split(line)
    if not beside or beside == our_comment:
        return line
    rest = "" if beside.endswith(our_comment) else f" {our_comment}"
    return f"{content}  {beside}{rest}"


def _split(line: str) -> tuple[str, str]:
    """A line of ours and the comment beside it, if it has one.

    >>> _split('name = "a  # b"  # c'), _split("# width =  # how wide")
    (('name = "a  # b"', '# c'), ('# width =', '# how wide'))
    """
    if unset := _UNSET.fullmatch(line):
        return line[: unset.start(1)].rstrip(), unset[1]
    for token in _TOKEN.finditer(line):
        if token[0].startswith("#"):
            return line[: token.start()].rstrip(), token[0]
    return line, ""


def _inside(item: str) -> list[str]:
    """The comments within a list over several lines."""
    return [token[0] for token in _TOKEN.finditer(item) if token[0].startswith("#")]


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


def _comments(text: str) -> list[_Comments]:
    """All comments of a text, by what they stand above or beside."""
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
    """Those of a table; ``waiting`` holds what stands above whatever comes next."""
    from tomlkit.items import Array, Comment, Table, Whitespace

    for key, item in table.body:
        if isinstance(item, Comment):
            waiting.append(item.trivia.comment)
        if key is None or isinstance(item, Whitespace | Comment):
            continue
        item_path = (*path, key.key)
        inside = _inside(item.as_string()) if isinstance(item, Array) else []
        beside = item.trivia.comment
        if isinstance(item, Table) and item.is_super_table():
            beside = ""  # of a name with dots: it has no line
        elif waiting or beside or inside:
            yield _Comments(item_path, [*waiting, *inside], beside)
            waiting.clear()
        if isinstance(item, Table):
            yield from _in_table(item.value, item_path, waiting)
