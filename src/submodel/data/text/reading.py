"""Plain text from files, decoded as it is read: one file, or a folder with one for every owner."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from submodel.data.text.streams import TextStream, measured_stream, split_pieces
from submodel.errors import ConfigError, DataError

_CHUNK = 1 << 18


def check_encoding(encoding: str) -> None:
    """Raise unless this names an encoding of text.

    >>> check_encoding("rot13")
    Traceback (most recent call last):
    submodel.errors.ConfigError: data.encoding: 'rot13' is not an encoding of text, as 'utf-8' is
    """
    try:
        "".encode(encoding)
        b"".decode(encoding)
    except (LookupError, ValueError):
        raise ConfigError(
            [f"data.encoding: {encoding!r} is not an encoding of text, as 'utf-8' is"]
        ) from None


def read_decoded(file: Path, encoding: str) -> Iterator[str]:
    """The text of a file, a chunk at a time; raises with the byte that is not of the encoding."""
    try:
        with file.open("rb") as content:
            decoder = codecs.getincrementaldecoder(encoding)("strict")
            place = 0
            while True:
                chunk = content.read(_CHUNK)
                waiting = len(decoder.getstate()[0])  # bytes of a character that is not complete
                try:
                    text = decoder.decode(chunk, final=not chunk)
                except UnicodeDecodeError as error:
                    byte = place - waiting + error.start
                    raise DataError(
                        f"{file}: byte {byte:,} is not {encoding} ({error.reason}); set "
                        "data.encoding to what the file is written in"
                    ) from None
                except UnicodeError as error:  # as of utf-16 without its mark
                    raise DataError(f"{file}: not {encoding} ({error})") from None
                if text:
                    yield text
                if not chunk:
                    return
                place += len(chunk)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from None


def check_exists(path: Path) -> None:
    """Raise where there is nothing."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")


def read_plain(path: Path, encoding: str) -> list[TextStream]:
    """One stream of a file, which is nobody's; of a folder, one for each file in it.

    Files of a folder are owners by their path in it, in the order of their names; hidden ones are
    left alone.
    """
    check_exists(path)
    if not path.is_dir():
        return [measured_stream("", str(path), _pieces(path, encoding))]
    return [
        measured_stream(file.relative_to(path).as_posix(), str(file), _pieces(file, encoding))
        for file in visible_files(path)
    ]


def visible_files(path: Path) -> list[Path]:
    """A file itself; all files of a folder and its folders but for hidden ones."""
    if not path.is_dir():
        return [path]
    files = (file for file in path.rglob("*") if file.is_file())
    return sorted(f for f in files if _is_visible(f.relative_to(path)))


def _pieces(file: Path, encoding: str) -> Callable[[], Iterator[str]]:
    return partial(_read_pieces, file, encoding)


def _read_pieces(file: Path, encoding: str) -> Iterator[str]:
    return split_pieces(read_decoded(file, encoding))


def _is_visible(path: Path) -> bool:
    return not any(part.startswith(".") for part in path.parts)
