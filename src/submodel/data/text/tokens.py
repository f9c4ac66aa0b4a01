"""Tokenisers: conversion of text to whole numbers and back."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from submodel.core.errors import ConfigError, DataError, SubmodelError, plain
from submodel.core.extras import needs_extra
from submodel.core.files import UnreadableError, parse_typed, read_text
from submodel.core.options import Section
from submodel.data.builtin_data import TOKENS

TokenArray = NDArray[np.int32]
ByteLengths = NDArray[np.int64]
HALVES = re.compile("[\ud800-\udfff]")
"""Half characters (surrogates), which no text in a file contains."""
_JSON = TypeAdapter(dict[str, Any])
_CODE_POINTS = 0x110000
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MOST_TOKENS = 10_000_000
_WORD_STARTS = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's mark of a space before a word
_BYTES = 256
_PARALLELISM = "TOKENIZERS_PARALLELISM"
_MOST_BYTES = 256 << 20


class NoTokenError(DataError):
    """A piece of text without a token, with its position and the reason."""

    def __init__(self, piece: str, position: int, reason: str) -> None:
        self.piece, self.position, self.reason = piece, position, reason
        super().__init__(f"{piece!r} at character {position:,}: {reason}")


class Tokeniser(Protocol):
    """Conversion of text to tokens: whole numbers from 0 to ``vocabulary`` - 1."""

    @property
    def vocabulary(self) -> int:
        """Number of different tokens."""

    @property
    def byte_lengths(self) -> ByteLengths:
        """Number of bytes of text (UTF-8) of each token."""

    def encode(self, text: str) -> TokenArray:
        """Return the tokens of a text; raises `NoTokenError` if a character has none."""

    def decode(self, numbers: Sequence[int] | TokenArray) -> str:
        """Return the text of tokens."""

    def to_json(self) -> str:
        """Return the complete tokeniser as JSON."""


@dataclass(frozen=True)
class TokensContext:
    """The context in which a tokeniser is made, beside its own keys."""

    pieces: Callable[[], Iterable[str]]  # reads the text of the training part, in pieces
    argument: str = ""  # the text after the colon in the name, as in file:PATH


def read_tokens(text: str) -> Tokeniser:
    """Read a built-in tokeniser from the JSON of its ``to_json``.

    >>> read_tokens('{"tokens": "bytes"}').vocabulary
    256
    """
    try:
        name = parse_typed(_JSON, text).get("tokens")
        if not isinstance(name, str) or name not in TOKENS.entries:
            raise UnreadableError(f"tokens: {name!r} is not one of {', '.join(TOKENS.entries)}")
        target: Any = TOKENS.find(f"{name}:x" if name in TOKENS.prefixes else name).target
        tokeniser: Tokeniser = target.from_json(text)
    except SubmodelError as error:
        raise DataError(f"not a tokeniser: {plain(error)}") from None
    return tokeniser


@dataclass(frozen=True)
class ByteTokens:
    """Every byte of the text in UTF-8 is a token: any text has tokens, and nothing is learned.

    >>> ByteTokens().encode("né").tolist()
    [110, 195, 169]
    >>> ByteTokens().decode([110, 195, 169])
    'né'
    """

    @classmethod
    def configured(cls, options: Section, context: TokensContext) -> Self:  # noqa: ARG003
        """Make the tokeniser; it does not depend on the text."""
        return cls()

    @property
    def vocabulary(self) -> int:
        """Number of values of a byte."""
        return _BYTES

    @property
    def byte_lengths(self) -> ByteLengths:
        """One byte each."""
        return np.ones(_BYTES, dtype=np.int64)

    def encode(self, text: str) -> TokenArray:
        """Return the bytes of the text."""
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int32)

    def decode(self, numbers: Sequence[int] | TokenArray) -> str:
        """Return the text; invalid UTF-8, as of an incomplete character, becomes U+FFFD."""
        return np.asarray(numbers, dtype=np.uint8).tobytes().decode("utf-8", "replace")

    def to_json(self) -> str:
        """Return its name as JSON."""
        return json.dumps({"tokens": "bytes"})

    @classmethod
    def from_json(cls, text: str) -> Self:  # noqa: ARG003
        """Make the only such tokeniser."""
        return cls()


@dataclass(frozen=True)
class CharacterTokens:
    """Every character of the alphabet is a token, numbered in the order of Unicode.

    Args:
        alphabet: the characters, ascending.
        unknown: whether there is one more token, the last, for all other characters; it counts
            as one byte.

    >>> CharacterTokens("abc").encode("cab").tolist()
    [2, 0, 1]
    >>> CharacterTokens("ab", unknown=True).encode("a?").tolist()
    [0, 2]
    """

    alphabet: str
    unknown: bool = False

    @classmethod
    def configured(cls, options: Section, context: TokensContext) -> Self:  # noqa: ARG003
        """Make the tokeniser for the characters of the training part.

        Characters that occur there once share the unknown token, which is thus trained, with
        characters that occur only in the test part. If no character occurs once, there is no
        unknown token, and a new character is an error.
        """
        counts = np.zeros(_CODE_POINTS, dtype=np.int64)
        for piece in context.pieces():
            points, numbers = np.unique(_code_points(piece), return_counts=True)
            counts[points] += numbers
        common = np.flatnonzero(counts > 1)
        if not len(common):
            raise DataError(
                "data.tokens: 'characters' are learned, but no training character repeats"
            )
        return cls("".join(map(chr, common)), bool((counts == 1).any()))

    @cached_property
    def _points(self) -> NDArray[np.uint32]:
        return _code_points(self.alphabet)

    @property
    def vocabulary(self) -> int:
        """Number of characters, plus one with an unknown token."""
        return len(self.alphabet) + self.unknown

    @property
    def byte_lengths(self) -> ByteLengths:
        """Bytes of each character in UTF-8; 1 for the unknown token."""
        lengths = [len(character.encode("utf-8")) for character in self.alphabet]
        return np.array(lengths + [1] * self.unknown, dtype=np.int64)

    def encode(self, text: str) -> TokenArray:
        """Return the numbers of the characters."""
        points = _code_points(text)
        numbers = np.searchsorted(self._points, points).astype(np.int32)
        near = self._points[np.minimum(numbers, len(self._points) - 1)]
        if len(strange := np.flatnonzero(near != points)):
            if not self.unknown:
                first = int(strange[0])
                reason = (
                    "not in the training part, so 'characters' has no token for it; use 'bytes'"
                )
                raise NoTokenError(text[first], first, reason)
            numbers[strange] = len(self._points)
        return numbers

    def decode(self, numbers: Sequence[int] | TokenArray) -> str:
        """Return the text; the unknown token becomes U+FFFD."""
        characters = self.alphabet + _REPLACEMENT * self.unknown
        return "".join(characters[number] for number in np.asarray(numbers).tolist())

    def to_json(self) -> str:
        """Return the alphabet as JSON."""
        content = {"tokens": "characters", "alphabet": self.alphabet, "unknown": self.unknown}
        return json.dumps(content)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the JSON of `to_json`."""
        content = parse_typed(_ALPHABET, text)
        points = sorted(set(content.alphabet))
        if not points or "".join(points) != content.alphabet or HALVES.search(content.alphabet):
            raise DataError("alphabet: want different characters in ascending order")
        return cls(content.alphabet, content.unknown)


class _SavedAlphabet(BaseModel):
    model_config = ConfigDict(extra="forbid")
    tokens: Literal["characters"]
    alphabet: str
    unknown: bool


_ALPHABET = TypeAdapter(_SavedAlphabet)


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(np.uint32, copy=False)


if TYPE_CHECKING:
    from tokenizers import Tokenizer


def tokenizers_package() -> Any:
    """Import the package; a missing one is an error that names the extra."""
    with needs_extra("text", "data.tokens: 'bpe' and 'file:PATH'"):
        import tokenizers
    return tokenizers


@contextmanager
def refusing(where: str) -> Iterator[None]:
    """Turn any error of the package, Rust's panics included, into a `DataError`."""
    try:
        yield
    except SubmodelError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # such as KeyboardInterrupt
        raise DataError(f"{where}: {plain(error)}") from None


@dataclass(frozen=True)
class LibraryTokens:
    """A tokeniser of the package `tokenizers`, given as JSON."""

    name: ClassVar[str] = "file"
    has_every_byte: ClassVar[bool] = False  # whether every character has tokens
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
        """The largest number of a token, plus one."""
        largest = max(self._by_number, default=-1) + 1
        if not 0 < largest <= _MOST_TOKENS:
            raise DataError(f"{largest:,} tokens; want 1 to {_MOST_TOKENS:,}")
        return largest

    @cached_property
    def byte_lengths(self) -> ByteLengths:
        """Bytes of each token as its decoder spells it; special tokens have none.

        Spaces that a tokeniser drops are not counted.
        """
        description = json.loads(self._tokenizer.to_str())
        kinds = set(_kinds(description.get("decoder")))
        model = description["model"]
        prefix = model.get("continuing_subword_prefix") or ""
        suffix = model.get("end_of_word_suffix") or ""
        added = {entry["id"]: entry for entry in description.get("added_tokens", [])}
        lengths = np.zeros(self.vocabulary, dtype=np.int64)
        for number, token in self._by_number.items():
            if number in added:
                lengths[number] = 0 if added[number]["special"] else len(token.encode("utf-8"))
            elif "ByteLevel" in kinds:
                lengths[number] = len(token)  # a character for every byte
            elif "ByteFallback" in kinds and len(token) == 6 and token.startswith("<0x"):
                lengths[number] = 1
            else:
                spelling = token.removeprefix(prefix).removesuffix(suffix)
                lengths[number] = len(spelling.replace(_WORD_STARTS, " ").encode("utf-8"))
        return lengths

    def encode(self, text: str) -> TokenArray:
        """Return the tokens, without marks of a beginning or an end."""
        if not self.has_every_byte:
            self._check(text)
        with refusing("data.tokens: the tokeniser fails"):
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
            return np.array(encoding.ids, dtype=np.int32)

    @cached_property
    def _usable_characters(self) -> set[str]:
        return set()  # filled as characters occur

    def _check(self, text: str) -> None:
        """Raise for a character without a token, which models without an unknown token skip."""
        for character in sorted(set(text) - self._usable_characters):
            if self._is_skipped(character):
                place = text.index(character)
                raise NoTokenError(character, place, "the tokeniser has no token for it")
            self._usable_characters.add(character)

    def _is_skipped(self, character: str) -> bool:
        """Return whether a character reaches the model but gets no token; spaces may be dropped."""
        twice = 2 * character  # at the beginning and at the end of a word
        with refusing("data.tokens: the tokeniser fails"):
            if self._tokenizer.encode(twice, add_special_tokens=False).ids:
                return False
            normalizer, splitter = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
            text = twice if normalizer is None else normalizer.normalize_str(twice)
            return bool(text.strip() if splitter is None else splitter.pre_tokenize_str(text))

    def decode(self, numbers: Sequence[int] | TokenArray) -> str:
        """Return the text."""
        ids = np.asarray(numbers).tolist()
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def to_json(self) -> str:
        """Return the complete tokeniser, in the format of the package."""
        return json.dumps({"tokens": self.name, "tokenizer": json.loads(self.json_text)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the JSON of `to_json`."""
        content = parse_typed(_JSON, text)
        if content.keys() != {"tokens", "tokenizer"} or content["tokens"] != cls.name:
            raise UnreadableError(f"want the keys tokens, which is {cls.name!r}, and tokenizer")
        tokeniser = cls(json.dumps(content["tokenizer"]))
        _ = tokeniser.vocabulary  # raises if it cannot be read
        return tokeniser


def _kinds(decoder: Any) -> Iterator[str]:
    """Yield the types of a decoder and of its parts."""
    if isinstance(decoder, dict):
        yield str(decoder.get("type"))
        for part in decoder.get("decoders", []):
            yield from _kinds(part)


@dataclass(frozen=True)
class BpeTokens(LibraryTokens):
    """Byte-level byte-pair encoding, like GPT-2's: 256 bytes, and frequent pairs of tokens.

    Every text has tokens, and decoding restores the text.
    """

    name: ClassVar[str] = "bpe"
    has_every_byte: ClassVar[bool] = True

    class Options(Section):
        """The keys of ``bpe``."""

        vocabulary: Annotated[int, Field(ge=_BYTES, le=1_000_000)] = Field(
            1024, description="bpe: the largest number of tokens; fewer if the text has fewer pairs"
        )

    @classmethod
    def configured(cls, options: Options, context: TokensContext) -> Self:
        """Train the tokeniser on the training part."""
        package = tokenizers_package()
        tokenizer = package.Tokenizer(package.models.BPE())
        tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = package.decoders.ByteLevel()
        trainer = package.trainers.BpeTrainer(
            vocab_size=options.vocabulary,
            initial_alphabet=sorted(package.pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        with refusing("data.tokens: 'bpe' cannot be trained"), _one_thread():
            tokenizer.train_from_iterator(context.pieces(), trainer)
        return cls(tokenizer.to_str())


@contextmanager
def _one_thread() -> Iterator[None]:
    """Disable threads of the package, which warns of them in processes forked later."""
    before = os.environ.get(_PARALLELISM)
    os.environ[_PARALLELISM] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PARALLELISM]
        else:
            os.environ[_PARALLELISM] = before


@dataclass(frozen=True)
class FileTokens(LibraryTokens):
    """The tokeniser of a file; nothing is learned."""

    @classmethod
    def configured(cls, options: Section, context: TokensContext) -> Self:  # noqa: ARG003
        """Read the file."""
        path = Path(context.argument).expanduser()
        try:
            tokeniser = cls(read_text(path, _MOST_BYTES))
            _ = tokeniser.vocabulary  # raises if it cannot be read
        except (UnreadableError, DataError) as error:
            raise ConfigError(f"data.tokens: {path}: {error}") from None
        return tokeniser
