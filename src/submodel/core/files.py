"""Small files: written atomically; read within bounds, as they may be damaged."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, TypeAdapter, ValidationError

from submodel.core.errors import SubmodelError, plain

__all__ = ["JsonNumber", "UnreadableError", "read_typed", "write_text"]

_T = TypeVar("_T")


def _within_floats(value: int | float) -> int | float:
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise ValueError("larger than the largest floating-point number")
    return value


JsonNumber = Annotated[int | float, AfterValidator(_within_floats)]
"""A number in JSON; a whole number stays an `int`."""


class UnreadableError(SubmodelError):
    """A file without the expected content; the text gives the reason, without the path."""


def read_text(path: Path, most: int) -> str:
    """Read a text file of at most ``most`` bytes."""
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise UnreadableError(f"larger than {most:,} bytes")
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableError("not a text file") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise UnreadableError(getattr(error, "strerror", None) or str(error)) from None


def bounded_lines(path: Path, longest: int) -> Iterator[bytes]:
    """Yield the lines of a file, with their ends; none if the file cannot be read.

    Args:
        path: the file.
        longest: the length in bytes above which a line is yielded in pieces.
    """
    try:
        with path.open("rb") as file:
            while text := file.readline(longest):
                yield text
    except OSError:
        return


def parse_typed(kind: TypeAdapter[_T], text: str | bytes) -> _T:
    """Parse a JSON text into typed values; a number in quotes is not a number.

    Args:
        kind: the expected type; make it once, as that takes longer than reading.
        text: The JSON.

    >>> parse_typed(TypeAdapter(dict[str, list[int]]), '{"a": [1, "2"]}')
    Traceback (most recent call last):
    submodel.core.files.UnreadableError: a.1: input should be a valid integer
    """
    try:
        return kind.validate_json(text, strict=True)
    except ValidationError as error:
        raise UnreadableError(_first(error)) from None


def read_typed(kind: TypeAdapter[_T], path: Path, most: int, otherwise: str = "") -> _T:
    """Read a file of JSON into typed values.

    Args:
        kind: the expected type.
        path: the file.
        most: the largest allowed size in bytes.
        otherwise: if given, an unreadable file raises a `SubmodelError` with these words.
    """
    try:
        return parse_typed(kind, read_text(path, most))
    except UnreadableError as error:
        if not otherwise:
            raise
        raise SubmodelError(f"{path}: {otherwise} ({error})") from None


def _first(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where, why = ".".join(map(str, problem["loc"])), problem["msg"]
    if problem["type"] == "json_invalid":
        return f"not JSON ({plain(why.removeprefix('Invalid JSON: '), 200)})"
    reason = plain(why[:1].lower() + why[1:], 200)
    return f"{plain(where, 200)}: {reason}" if where else reason


def write_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def flush(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
