"""Encoded text on disk: a folder for every text, tokeniser and length, complete or not there.

They are in the folder of `submodel.data.cache`, named by a hash of the files' paths, sizes and
times and of the keys; a file that changes is encoded anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from submodel.data.cache import cache_folder, keeping_in
from submodel.data.registry import TOKENS
from submodel.data.text.plan import TextPlan
from submodel.errors import DataError
from submodel.files import UnreadableError, read_typed, write_text

_VERSION = 1  # of what is kept: another reads nothing of this one
_INDEX = "index.json"
_MOST_BYTES = 1 << 30


class TextIndex(BaseModel):
    """What is status of windows, beside themselves."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: str  # the tokeniser as JSON
    vocabulary: int
    bytes_per_token: float
    length: int
    names: list[str]  # of the owners
    train: list[list[int]]  # the number of an owner and of its windows, in order
    test: list[list[int]]
    left_out: int


_ADAPTER = TypeAdapter(TextIndex)


def text_key(plan: TextPlan, options: Any, tokens_json: str | None) -> str:
    """A hash of all that encoded text follows from; ``tokens_json`` of others' tokenisers."""
    component = TOKENS.find(options.tokens)
    keys = (*plan.keys, *component.options.model_fields)
    files = [*plan.files]
    if component.argument:
        files.append(Path(component.argument).expanduser())
    content = {
        "version": _VERSION,
        "where": plan.where,
        "files": [_identity(file) for file in files],
        "keys": {key: getattr(options, key) for key in keys},
        "tokens": tokens_json,
        **({"identity": plan.identity} if plan.identity else {}),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _identity(file: Path) -> list[Any]:
    try:
        status = file.stat()
    except OSError as error:
        raise DataError(f"{file}: {error.strerror or error}") from None
    return [str(file.resolve()), status.st_size, status.st_mtime_ns]


def text_folder(key: str) -> Path:
    """Where a text is kept."""
    return cache_folder() / "text" / key


def read_index(folder: Path) -> TextIndex | None:
    """What is kept in a folder; None where there is nothing."""
    if not folder.is_dir():
        return None
    try:
        return read_typed(_ADAPTER, folder / _INDEX, _MOST_BYTES)
    except UnreadableError as error:
        raise DataError(f"{folder / _INDEX}: damaged ({error}); delete {folder}") from None


def keep_text(folder: Path, write: Callable[[Path], TextIndex]) -> TextIndex:
    """Let ``write`` fill a folder beside this one, then rename: nobody ever sees half of it."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    with keeping_in(folder.parent):
        try:
            partial.mkdir()
            index = write(partial)
            write_text(partial / _INDEX, index.model_dump_json())
            if not folder.exists():  # else another process was first, with the same
                partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return index
