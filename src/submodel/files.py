"""Small files: replaced as a whole; read within bounds, as somebody may have damaged them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from submodel.errors import SubmodelError


class UnreadableError(SubmodelError):
    """A file that cannot be read as what it should be; the text says why, without the path."""


def read_text(path: Path, most: int) -> str:
    """The text of a file of at most so many bytes."""
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


def parse_json(text: str | bytes) -> Any:
    """What a JSON text says."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"not JSON ({error})") from None


def read_json(path: Path, most: int) -> Any:
    """What a file of JSON says, of at most so many bytes."""
    return parse_json(read_text(path, most))


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
