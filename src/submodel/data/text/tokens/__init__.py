"""Tokenisers, a file for each: text as whole numbers and back."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from submodel.data.registry import TOKENS
from submodel.data.text.tokens.base import Tokeniser, TokensContext
from submodel.errors import DataError, SubmodelError, plain
from submodel.files import UnreadableError, parse_typed

__all__ = ["Tokeniser", "TokensContext", "read_tokens"]

_HEAD = TypeAdapter(dict[str, Any])


def read_tokens(text: str) -> Tokeniser:
    """A tokeniser of ours from the JSON that its ``to_json`` wrote.

    >>> read_tokens('{"tokens": "bytes"}').vocabulary
    256
    """
    try:
        name = parse_typed(_HEAD, text).get("tokens")
        if not isinstance(name, str) or name not in TOKENS.offers:
            raise UnreadableError(f"tokens: {name!r} is not one of {', '.join(TOKENS.offers)}")
        target: Any = TOKENS.find(f"{name}:x" if name in TOKENS.prefixes else name).target
        tokeniser: Tokeniser = target.from_json(text)
    except SubmodelError as error:
        raise DataError(f"not a tokeniser: {plain(error)}") from None
    return tokeniser
