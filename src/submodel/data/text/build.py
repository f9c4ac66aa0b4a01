"""Datasets of text: read, divided, encoded and cut into windows, or read from the cache.

The windows of a large text are cached in a folder per text, tokeniser and length, complete or
absent. Its name is a hash of the files' paths, sizes and times and of the keys, so a changed file
is encoded again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from torch import Tensor

from submodel.core.errors import ConfigError, DataError
from submodel.core.files import UnreadableError, read_typed, write_text
from submodel.core.options import LARGEST, Count, Section
from submodel.data.builtin_data import TOKENS
from submodel.data.cache import cache_folder, keeping_in
from submodel.data.examples import Dataset, Examples
from submodel.data.facts import Owners, TextFacts
from submodel.data.sources import Encoding
from submodel.data.text.streams import TextStream
from submodel.data.text.tokens import (
    NoTokenError,
    TokenArray,
    Tokeniser,
    TokensContext,
    read_tokens,
)
from submodel.data.text.windows import (
    BYTES_PER_PLACE,
    LARGE,
    WindowFiles,
    Windows,
    count_windows,
    cut_windows,
    map_windows,
    stack_windows,
)

_log = logging.getLogger(__name__)
_VERSION = 1  # of the cache's format: other versions are not read
_INDEX = "index.json"
_MOST_BYTES = 1 << 30
Streams = Sequence[TextStream]
Passage = tuple[int, TextStream]
"""A part of a stream, with the number of its owner; -1 means no owner."""


class TextOptions(Section):
    """The keys that all sources of text share, for its conversion to sequences of tokens."""

    choices = {"tokens": TOKENS}  # noqa: RUF012

    tokens: str = Field("bytes", description=TOKENS.describe())
    length: Count = Field(64, description="tokens in a sequence")
    test_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="the final share of every client's text, used for testing"
    )
    least: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        0, description="clients with fewer characters are left out"
    )


@dataclass(frozen=True)
class TextSource:
    """A text to be read."""

    files: tuple[Path, ...]  # all its files; a change of any invalidates the cache
    read: Callable[[], tuple[Streams, Streams | None]]  # streams, and separate ones for testing
    keys: tuple[str, ...]  # the options that determine the result, except the tokeniser's own
    where: str  # the name in errors
    identity: str = ""  # distinguishes texts that are not files


class TextIndex(BaseModel):
    """Index of the cached windows of a text; a file of the cache."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: str  # the tokeniser as JSON
    vocabulary: int
    bytes_per_token: float
    length: int
    names: list[str]  # of the owners
    train: list[list[int]]  # pairs of an owner's number and a number of windows, in order
    test: list[list[int]]
    left_out: int


def build_text(source: TextSource, options: Any, encoding: Encoding | None = None) -> Dataset:
    """Build the dataset of a text.

    Args:
        source: the text.
        options: the section of the configuration, with the keys of `TextOptions`, of the source
            and of the tokeniser.
        encoding: the encoding of the run, for a device's own text.
    """
    if encoding is not None and encoding.tokens is None:
        raise ConfigError(
            f"--data: {source.where}: the run's own data is not text, so has no tokens"
        )
    is_builtin = TOKENS.is_builtin(options.tokens) and encoding is None
    if is_builtin and (index := read_index(folder := text_folder(text_key(source, options, None)))):
        return _map_dataset(folder, index, source)
    passages = divide_text(*source.read(), options, source.where)
    tokens_of_run = None if encoding is None else encoding.tokens
    tokeniser = make_tokeniser(options, passages.train, tokens_of_run)
    if passages.windows_size(options.length) <= LARGE:
        train: list[Windows] = []
        test: list[Windows] = []
        index = _encode(passages, tokeniser, options.length, (train.append, test.append), source)
        parts = [stack_windows(part, options.length) for part in (train, test)]
        return _dataset(index, parts, source)
    if not is_builtin:
        whole = " all for training" * (encoding is not None)
        folder = text_folder(text_key(source, options, tokeniser.to_json() + whole))

    def write(place: Path) -> TextIndex:
        with (
            WindowFiles(place, "train", options.length) as train,
            WindowFiles(place, "test", options.length) as test,
        ):
            sinks = (train.append, test.append)
            return _encode(passages, tokeniser, options.length, sinks, source)

    index = read_index(folder) or keep_text(folder, write)
    return _map_dataset(folder, index, source)


def make_tokeniser(
    options: Any, train: Sequence[Passage], tokens_of_run: str | None = None
) -> Tokeniser:
    """Make the tokeniser that the options name.

    Args:
        options: the options.
        train: the text of the training part.
        tokens_of_run: the server's tokeniser as JSON, for a device's own text.
    """
    if tokens_of_run is not None and TOKENS.is_builtin(options.tokens):
        return read_tokens(tokens_of_run)
    component = TOKENS.find(options.tokens)

    def pieces() -> Iterator[str]:
        return chain.from_iterable(part.pieces() for _, part in train)

    tokeniser = component.make(options, TokensContext(pieces, component.argument))
    if tokens_of_run is not None and tokeniser.to_json() != tokens_of_run:
        raise ConfigError(
            f"--data: {options.tokens!r} makes a different tokeniser here than on the server"
        )
    return tokeniser


@dataclass(frozen=True)
class Passages:
    """The used text, as parts of streams with their owners' numbers."""

    names: tuple[str, ...]  # of the owners
    train: Sequence[Passage]
    test: Sequence[Passage]
    left_out: int  # number of owners with too little text

    def windows_size(self, length: int) -> int:
        """Return an upper bound of the bytes of inputs and targets: a token has at least a byte."""
        rows = sum(count_windows(part.size, length) for _, part in (*self.train, *self.test))
        return rows * length * BYTES_PER_PLACE


def divide_text(
    streams: Streams, test_streams: Streams | None, options: TextOptions, where: str
) -> Passages:
    """Use the end of every stream, or other streams, for testing; leave out streams too short."""
    if not any(stream.characters for stream in streams):
        raise DataError(f"{where}: it contains no text")
    longest = max(streams, key=lambda stream: stream.size)
    if options.length > longest.size:
        raise ConfigError(
            f"data.length: {options.length:,} tokens, but {longest.where} has {longest.size:,} "
            "bytes, and no other text is longer"
        )
    enough = [s for s in streams if s.characters >= max(options.least, 1)]
    if not enough:
        most = max(stream.characters for stream in streams)
        raise ConfigError(
            f"data.least: {options.least:,}, but no text has more than {most:,} characters"
        )
    names = tuple(stream.owner for stream in enough if stream.owner)
    numbers = {name: number for number, name in enumerate(names)}
    train, test = [], []
    for stream in enough:
        owner, end = numbers.get(stream.owner, -1), stream.characters
        if test_streams is None:
            end -= round(end * options.test_share)
            test.append((owner, stream.cut(end, stream.characters)))
        train.append((owner, stream.cut(0, end)))
    for stream in test_streams or ():
        test.append((numbers.get(stream.owner, -1), stream))
    return Passages(names, train, test, len(streams) - len(enough))


class _Encoder:
    """Encoder of passages: all tokens except the first of a passage are targets."""

    def __init__(self, tokeniser: Tokeniser) -> None:
        self._tokeniser, self._lengths = tokeniser, tokeniser.byte_lengths
        self.targets = self.target_bytes = 0
        self.rows: list[tuple[int, int]] = []  # owner and number of windows of every passage

    def write(self, passage: Passage, length: int, sink: Callable[[Windows], None]) -> None:
        owner, stream = passage
        count = 0
        for windows in cut_windows(self._tokens(stream), length):
            sink(windows)
            count += len(windows.x)
        if count:
            self.rows.append((owner, count))

    def _tokens(self, stream: TextStream) -> Iterator[TokenArray]:
        place, has_first = stream.start, False
        for piece in stream.pieces():
            tokens = self._encode_piece(piece, place, stream.where)
            place += len(piece)
            targets = tokens if has_first else tokens[1:]
            has_first = has_first or len(tokens) > 0
            self.targets += len(targets)
            self.target_bytes += int(self._lengths[targets].sum())
            yield tokens

    def _encode_piece(self, piece: str, place: int, where: str) -> TokenArray:
        try:
            tokens = self._tokeniser.encode(piece)
        except NoTokenError as error:
            at = place + error.position
            raise DataError(
                f"{where}: {error.piece!r} at character {at:,}: {error.reason}"
            ) from None
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < len(self._lengths):
            wrong = int(tokens.max()) if tokens.min() >= 0 else int(tokens.min())
            raise DataError(
                f"{where}: the tokeniser gave token {wrong:,}; its vocabulary has "
                f"{len(self._lengths):,}, from 0"
            )
        return tokens


def _encode(
    passages: Passages,
    tokeniser: Tokeniser,
    length: int,
    sinks: tuple[Callable[[Windows], None], Callable[[Windows], None]],
    source: TextSource,
) -> TextIndex:
    """Send the windows of both parts to the sinks; leave out owners without training windows."""
    train, test = _Encoder(tokeniser), _Encoder(tokeniser)
    for encoder, part, sink in zip(
        (train, test), (passages.train, passages.test), sinks, strict=True
    ):
        for passage in part:
            encoder.write(passage, length, sink)
    for name, encoder, must_be in (("training", train, True), ("test", test, passages.test)):
        if must_be and not encoder.rows:
            raise DataError(f"{source.where}: too short: its {name} part has less than two tokens")
    has_some = [owner for owner, _ in train.rows if owner >= 0]
    number = {owner: place for place, owner in enumerate(has_some)}
    return TextIndex(
        tokens=tokeniser.to_json(),
        vocabulary=tokeniser.vocabulary,
        bytes_per_token=test.target_bytes / max(test.targets, 1),
        length=length,
        names=[passages.names[owner] for owner in has_some],
        train=[[number.get(owner, -1), rows] for owner, rows in train.rows],
        test=[[number.get(owner, -1), rows] for owner, rows in test.rows],
        left_out=passages.left_out + len(passages.names) - len(has_some),
    )


def _map_dataset(folder: Path, index: TextIndex, source: TextSource) -> Dataset:
    parts = [
        map_windows(folder, part, sum(count for _, count in rows), index.length)
        for part, rows in (("train", index.train), ("test", index.test))
    ]
    return _dataset(index, parts, source)


def _dataset(
    index: TextIndex, parts: Sequence[tuple[Tensor, Tensor]], source: TextSource
) -> Dataset:
    if index.left_out:
        _log.warning(
            "%s: %d of %d clients are left out, as they have too little text (data.least)",
            source.where,
            index.left_out,
            index.left_out + len(index.names),
        )
    owners = None
    if index.names:
        owners = Owners(tuple(index.names), _owners(index.train), _owners(index.test))
    facts = TextFacts(index.vocabulary, index.bytes_per_token, index.tokens)
    train, test = (Examples(*part) for part in parts)
    return Dataset(train, test, classes=None, text=facts, owners=owners)


def _owners(rows: list[list[int]]) -> NDArray[np.int64]:
    table = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return np.repeat(table[:, 0], table[:, 1])


_ADAPTER = TypeAdapter(TextIndex)


def text_key(source: TextSource, options: Any, tokens_json: str | None) -> str:
    """Hash everything that determines the encoded text; ``tokens_json`` of foreign tokenisers."""
    component = TOKENS.find(options.tokens)
    keys = (*source.keys, *component.options.model_fields)
    files = [*source.files]
    if component.argument:
        files.append(Path(component.argument).expanduser())
    content = {
        "version": _VERSION,
        "where": source.where,
        "files": [_identity(file) for file in files],
        "keys": {key: getattr(options, key) for key in keys},
        "tokens": tokens_json,
        **({"identity": source.identity} if source.identity else {}),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _identity(file: Path) -> list[Any]:
    try:
        status = file.stat()
    except OSError as error:
        raise DataError(f"{file}: {error.strerror or error}") from None
    return [str(file.resolve()), status.st_size, status.st_mtime_ns]


def text_folder(key: str) -> Path:
    """Return the cache folder of a text."""
    return cache_folder() / "text" / key


def read_index(folder: Path) -> TextIndex | None:
    """Read the index in a folder; None if the folder does not exist."""
    if not folder.is_dir():
        return None
    try:
        return read_typed(_ADAPTER, folder / _INDEX, _MOST_BYTES)
    except UnreadableError as error:
        raise DataError(f"{folder / _INDEX}: damaged ({error}); delete {folder}") from None


def keep_text(folder: Path, write: Callable[[Path], TextIndex]) -> TextIndex:
    """Let ``write`` fill a temporary folder, then rename it, so that none is seen incomplete."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    with keeping_in(folder.parent):
        try:
            partial.mkdir()
            index = write(partial)
            write_text(partial / _INDEX, index.model_dump_json())
            if not folder.exists():  # otherwise another process has written the same
                partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return index
