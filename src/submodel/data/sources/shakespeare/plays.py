"""Plays as plain text: who says what.

A play is a sequence of blocks with empty lines between them. A speech begins with the name of its
role on a line of its own, in capitals ("LADY CAPULET.") or, in plays that never do so, capitalised
("Lady Capulet."); it may go on after a stage direction, which stands in brackets. Everything before
the first act, prologue or induction is about the play.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_SECTION = re.compile(
    r"(the )?(act|prologue|induction|epilogue|scene)\b|the end\.?$", re.IGNORECASE
)
_BEGINNING = re.compile(r"(the )?(act|prologue|induction)\b", re.IGNORECASE)
_DIRECTION = re.compile(r"[\[{][^\]}]*[\]}]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 .,'&-]*")
_LONGEST_NAME = 40
_CAPITALS = 0.6  # of the letters of a name in capitals; the texts have a "LADY FalcoNBRIDGE"
_USUAL = 0.1  # the share of blocks that begin with a name in capitals, where names are


def speeches_by_role(text: str) -> dict[str, list[str]]:
    r"""The speeches of every role, in order, without stage directions.

    Args:
        text: a play.

    >>> speeches_by_role("ACT I.\n\nROMEO.\nAy me!\n\n[Exit Servant.]\n\nSad hours.\n\nALL.\nOh!\n")
    {'ROMEO': ['Ay me!\nSad hours.'], 'ALL': ['Oh!']}
    """
    blocks = list(_play_blocks(text))
    by_capitals = sum(_in_capitals(block[0]) for block in blocks if block[1:])
    names_are_capitals = by_capitals >= _USUAL * len(blocks)
    speeches: dict[str, list[list[str]]] = {}
    speech: list[str] | None = None
    for block in blocks:
        is_name = _in_capitals if names_are_capitals else _is_capitalised
        if block[1:] and is_name(block[0]) and not _BEGINNING.match(block[0]):
            speech = block[1:]
            speeches.setdefault(_role(block[0]), []).append(speech)
        elif _SECTION.match(block[0]):
            speech = None
        elif speech is not None:
            speech += block
    return {role: ["\n".join(lines) for lines in parts] for role, parts in speeches.items()}


def _play_blocks(text: str) -> Iterator[list[str]]:
    """The lines of every block from the play's beginning on, less directions and empty lines."""
    is_play = False
    for block in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")):
        lines = [" ".join(line.split()) for line in _DIRECTION.sub("", block).split("\n")]
        lines = [line for line in lines if line]
        is_play = is_play or bool(lines and _BEGINNING.match(lines[0]))
        if is_play and lines:
            yield lines


def _in_capitals(line: str) -> bool:
    letters = [c for c in line.replace(" and ", " ").replace("&c", "") if c.isalpha()]
    capitals = sum(letter.isupper() for letter in letters)
    if not _is_short(line) or len(letters) < 2 or capitals < _CAPITALS * len(letters):
        return False
    return line.endswith(".") or capitals == len(letters)


def _is_capitalised(line: str) -> bool:
    words = line.removesuffix(".").split()
    small = [word for word in words if not (word[0].isupper() or word[0].isdigit())]
    return _is_short(line) and line.endswith(".") and len(words) <= 4 and set(small) <= {"and"}


def _is_short(line: str) -> bool:
    return len(line) <= _LONGEST_NAME and _NAME.fullmatch(line) is not None


def _role(line: str) -> str:
    """The name as all spellings of it have it."""
    return " ".join(line.rstrip(" .").upper().split())
