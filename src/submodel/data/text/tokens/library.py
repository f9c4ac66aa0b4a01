"""Tokenisers of the package ``tokenizers``, which reads and writes them as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from pydantic import TypeAdapter

from submodel.data.text.tokens.base import ByteLengths, NoTokenError, TokenArray
from submodel.errors import DataError, SubmodelError, plain
from submodel.extras import needs_extra
from submodel.files import UnreadableError, parse_typed

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_MOST_TOKENS = 10_000_000
_JSON = TypeAdapter(dict[str, Any])
_BYTE_LEVEL = {"ByteLevel"}
_WORD_STARTS = "\N{LOWER ONE EIGHTH BLOCK}"  # of SentencePiece: a space before a word


def tokenizers_package() -> Any:
    """The package, or the extra that brings it."""
    with needs_extra("text", "data.tokens: 'bpe' and 'file:PATH'"):
        import tokenizers
    return tokenizers


@contextmanager
def refusing(where: str) -> Iterator[None]:
    """Whatever the package raises, Rust's panics included, as a `DataError`."""
    try:
        yield
    except SubmodelError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # Ctrl-C and the like
        raise DataError(f"{where}: {plain(error)}") from None


@dataclass(frozen=True)
class LibraryTokens:
    """A tokeniser as its JSON says."""

    name: ClassVar[str] = "file"
    has_every_byte: ClassVar[bool] = False  # then no character can be without a token
    json_text: str

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        package = tokenizers_package()
        with refusing("not a tokeniser that the package 'tokenizers' reads"):
            tokenizer: Tokenizer = package.Tokenizer.from_str(self.json_text)
            tokenizer.no_truncation()
            tokenizer.no_padding()
            return tokenizer

    @cached_property
    def _by_number(self) -> dict[int, str]:
        return {number: token for token, number in self._tokenizer.get_vocab(True).items()}

    @cached_property
    def vocabulary(self) -> int:
        """The largest number of a token, and one for nought."""
        largest = max(self._by_number, default=-1) + 1
        if not 0 < largest <= _MOST_TOKENS:
            raise DataError(f"{largest:,} tokens; want 1 to {_MOST_TOKENS:,}")
        return largest

    @cached_property
    def byte_lengths(self) -> ByteLengths:
        """Of each token as its decoder spells it; marks that stand for no text count nothing.

        A tokeniser that drops spaces has none to count.
        """
        description = json.loads(self._tokenizer.to_str())
        kinds = set(_kinds(description.get("decoder")))
        model = description["model"]
        prefix = model.get("continuing_subword_prefix") or ""
        suffix = model.get("end_of_word_suffix") or ""
        added_numbers = {entry["id"] for entry in description.get("added_tokens", [])}
        special_numbers = {
            entry["id"] for entry in description.get("added_tokens", []) if entry["special"]
        }
        lengths = np.zeros(self.vocabulary, dtype=np.int64)
        for number, token in self._by_number.items():
            if number in special_numbers:
                continue
            if number in added_numbers:
                lengths[number] = len(token.encode("utf-8"))
            elif kinds & _BYTE_LEVEL:
                lengths[number] = len(token)  # a character for every byte
            elif "ByteFallback" in kinds and len(token) == 6 and token.startswith("<0x"):
                lengths[number] = 1
            else:
                spelling = token.removeprefix(prefix).removesuffix(suffix)
                lengths[number] = len(spelling.replace(_WORD_STARTS, " ").encode("utf-8"))
        return lengths

    def encode(self, text: str) -> TokenArray:
        """The tokens, without any that mark a beginning or an end."""
        if not self.has_every_byte:
            self._check(text)
        with refusing("data.tokens: the tokeniser fails"):
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
            return np.array(encoding.ids, dtype=np.int32)

    @cached_property
    def _usable_characters(self) -> set[str]:
        return set()  # as far as they came up

    def _check(self, text: str) -> None:
        """Raise for characters without a token, which models without an unknown one skip."""
        for character in sorted(set(text) - self._usable_characters):
            if self._is_skipped(character):
                place = text.index(character)
                raise NoTokenError(character, place, "the tokeniser has no token for it")
            self._usable_characters.add(character)

    def _is_skipped(self, character: str) -> bool:
        """Whether it reaches the model, which makes nothing of it; spaces may go before that."""
        twice = 2 * character  # as the beginning of a word and as its end
        with refusing("data.tokens: the tokeniser fails"):
            if self._tokenizer.encode(twice, add_special_tokens=False).ids:
                return False
            normalizer, splitter = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
            text = twice if normalizer is None else normalizer.normalize_str(twice)
            return bool(text.strip() if splitter is None else splitter.pre_tokenize_str(text))

    def decode(self, numbers: Sequence[int] | TokenArray) -> str:
        """The text."""
        ids = np.asarray(numbers).tolist()
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def to_json(self) -> str:
        """The whole tokeniser, as the package describes it."""
        return json.dumps({"tokens": self.name, "tokenizer": json.loads(self.json_text)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote."""
        content = parse_typed(_JSON, text)
        if content.keys() != {"tokens", "tokenizer"} or content["tokens"] != cls.name:
            raise UnreadableError(f"want the keys tokens, which is {cls.name!r}, and tokenizer")
        tokeniser = cls(json.dumps(content["tokenizer"]))
        _ = tokeniser.vocabulary  # it can be read
        return tokeniser


def _kinds(decoder: Any) -> Iterator[str]:
    """The types of a decoder and of those that it is made of."""
    if isinstance(decoder, dict):
        yield str(decoder.get("type"))
        for part in decoder.get("decoders", []):
            yield from _kinds(part)
