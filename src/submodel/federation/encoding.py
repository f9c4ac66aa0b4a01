"""How the server's text or table became numbers, on its way to devices that have others.

A tokeniser may have megabytes. It goes out with the question who a device is, not with every task;
the device keeps it on its disk, under a fingerprint that every message has.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from submodel.data import Dataset
from submodel.data.cache import cache_folder
from submodel.data.facts import TableFacts
from submodel.data.sources import Encoding
from submodel.errors import ConfigError, DataError, plain
from submodel.federation.wire import WireError, read_as
from submodel.files import UnreadableError, read_text

_MOST_BYTES = 1 << 25
"""Of an encoding, as it travels."""
_log = logging.getLogger(__name__)
_KEY = "encoding"
_NOTHING: dict[str, Any] = {"tokens": None, "table": None}


@dataclass(frozen=True)
class _EncodingHead:
    """What the head of a question says."""

    tokens: str | None
    table: TableFacts | None


def encoding_values(data: Dataset) -> dict[str, Any]:
    """How text or a table became numbers, as plain values.

    Args:
        data: the server's own.

    >>> from submodel.data import digits
    >>> encoding_values(digits())
    {'tokens': None, 'table': None}
    """
    tokens = None if data.text is None else data.text.tokens
    return {"tokens": tokens, "table": None if data.table is None else asdict(data.table)}


def encoding_fingerprint(values: Mapping[str, Any]) -> str:
    """Equal for equal values; empty where there are none.

    >>> encoding_fingerprint({"tokens": None, "table": None})
    ''
    """
    if values == _NOTHING:
        return ""
    return hashlib.sha256(_text(values).encode()).hexdigest()


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)


def encoding_head(data: Dataset) -> dict[str, Any]:
    """What a question says in addition; raises `ConfigError` where that is too much to send.

    Args:
        data: the server's own.
    """
    values = encoding_values(data)
    if values == _NOTHING:
        return {}
    if (size := len(_text(values))) > _MOST_BYTES:
        raise ConfigError(
            [f"data.tokens: {size:,} bytes of tokens; devices are sent {_MOST_BYTES:,} at most"]
        )
    return {_KEY: values}


def receive_encoding(head: Mapping[str, Any], fingerprint: str) -> Encoding:
    """The encoding that a message has, which is kept from then on, or that an earlier one had.

    Args:
        head: of the message.
        fingerprint: which encoding it is.
    """
    if not fingerprint:
        return Encoding()
    if len(fingerprint) != 64 or not fingerprint.isalnum() or not fingerprint.isascii():
        raise WireError(f"facts.encoding: {plain(fingerprint, 60)!r} is no fingerprint")
    if _KEY in head:
        return _check_encoding(head[_KEY], fingerprint)
    file = _file_of(fingerprint)
    try:
        return _check_encoding(json.loads(read_text(file, _MOST_BYTES)), fingerprint)
    except (UnreadableError, WireError, ValueError, RecursionError) as error:
        raise DataError(
            f"{file}: the server's tokens are not there ({plain(error)}); leave and join again, "
            "with the environment variable SUBMODEL_DATA set to a folder that can be written"
        ) from None


def keep_encoding(head: Mapping[str, Any], fingerprint: str) -> None:
    """Write the encoding of a message, if it has one, where later processes find it."""
    if not fingerprint or _KEY not in head:
        return
    receive_encoding(head, fingerprint)  # it is one
    file = _file_of(fingerprint)
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(_text(head[_KEY]), "utf-8")
        partial.replace(file)
    except OSError as error:
        _log.warning("%s: cannot keep the server's tokens there (%s)", file, error)
        partial.unlink(missing_ok=True)


def _file_of(fingerprint: str) -> Path:
    return cache_folder() / "devices" / f"encoding-{fingerprint}.json"


def _check_encoding(values: Any, fingerprint: str) -> Encoding:
    head = read_as(_EncodingHead, values)
    table = head.table
    if table is not None and not table.columns:
        raise WireError("encoding: a table without columns")
    for code in () if table is None else (*table.columns, *filter(None, [table.target])):
        if not (math.isfinite(code.mean) and 0 < code.deviation < math.inf):
            raise WireError(f"encoding: column {plain(code.name, 60)!r} has no mean and deviation")
        if code.fill and (
            len(code.fill) != len(code.words or ()) or not all(0 <= f <= 1 for f in code.fill)
        ):
            raise WireError(f"encoding: column {plain(code.name, 60)!r} has no shares of its words")
    if encoding_fingerprint(values) != fingerprint:
        raise WireError("encoding: it is another one than the facts say")
    return Encoding(tokens=head.tokens, table=head.table)
