"""Readers of text: tokenisers and tables, with valid files."""

from __future__ import annotations

import json
from pathlib import Path

from submodel.core.files import read_text
from submodel.data.builtin_data import TOKENS
from submodel.data.text.streams import read_table
from submodel.data.text.tokens import TokensContext, read_tokens

_TEXT = "the cat sat on the mat; the naïve cat ☃☃\n" * 3
_ROWS = [{"who": who, "said": f'{who}: "{number}",\n☃'} for number in range(4) for who in "ab"]


def read_tokeniser(path: Path) -> object:
    """Read and use a tokeniser."""
    tokeniser = read_tokens(read_text(path, 1 << 20))
    numbers = tokeniser.encode(_TEXT)
    assert len(tokeniser.byte_lengths) == tokeniser.vocabulary
    return tokeniser.decode(numbers)


def tokenisers() -> tuple[bytes, ...]:
    """Return every kind of our tokenisers."""
    saved_tokenisers = []
    for name, keys in {"bytes": {}, "characters": {}, "bpe": {"vocabulary": 260}}.items():
        component = TOKENS.find(name)
        options = component.options(**keys)
        saved_tokenisers.append(
            component.make(options, TokensContext(lambda: [_TEXT])).to_json().encode()
        )
    return tuple(saved_tokenisers)


def read_rows(path: Path) -> object:
    """Read a table, with and without its clients."""
    return [
        "".join(stream.pieces())
        for client in ("who", None)
        for stream in read_table(path, "utf-8", "said", client)
    ]


def json_rows() -> tuple[bytes, ...]:
    """Return a table as lines of JSON."""
    return ("\n".join(map(json.dumps, _ROWS)).encode(),)


def csv_rows() -> tuple[bytes, ...]:
    """Return a table with commas."""
    lines = [f'{row["who"]},"{row["said"].replace(chr(34), 2 * chr(34))}"' for row in _ROWS]
    return ("\n".join(["who,said", *lines]).encode(),)
