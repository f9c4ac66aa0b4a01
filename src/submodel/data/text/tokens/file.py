"""Tokens as a file says: any tokenizer.json that the package ``tokenizers`` reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from submodel.data.text.tokens.base import TokensContext
from submodel.data.text.tokens.library import LibraryTokens
from submodel.errors import ConfigError, DataError
from submodel.files import UnreadableError, read_text
from submodel.options import Section

_MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class FileTokens(LibraryTokens):
    """The tokeniser of a file; nothing is learned."""

    @classmethod
    def configured(cls, options: Section, context: TokensContext) -> Self:  # noqa: ARG003
        """As the file says."""
        path = Path(context.argument).expanduser()
        try:
            tokeniser = cls(read_text(path, _MOST_BYTES))
            _ = tokeniser.vocabulary  # it can be read
        except (UnreadableError, DataError) as error:
            raise ConfigError([f"data.tokens: {path}: {error}"]) from None
        return tokeniser
