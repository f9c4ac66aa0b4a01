"""Text as a dataset: read, divided, encoded, cut, or taken from the cache."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from submodel.data.examples import Dataset
from submodel.data.registry import TOKENS
from submodel.data.sources import Encoding
from submodel.data.text.dataset import TensorPair, text_dataset
from submodel.data.text.encoding import (
    EncodedPart,
    encode_passages,
    make_tokeniser,
    run_tokeniser,
)
from submodel.data.text.plan import Passages, TextPlan, divide_text
from submodel.data.text.store import LARGE, FileSink, MemorySink, Sink, map_windows
from submodel.data.text.text_cache import TextIndex, keep_text, read_index, text_folder, text_key
from submodel.data.text.tokens import Tokeniser
from submodel.errors import ConfigError, DataError

_log = logging.getLogger(__name__)


def build_text(plan: TextPlan, options: Any, encoding: Encoding | None = None) -> Dataset:
    """The dataset of a text.

    Args:
        plan: where the text is.
        options: the section of the configuration, with the keys of `TextOptions`, of the source
            and of the tokeniser.
        encoding: of the run, where the text is a device's own.
    """
    if encoding is not None and encoding.tokens is None:
        raise ConfigError([f"--data: {plan.where}: the run's own data is no text, without tokens"])
    ours = TOKENS.is_ours(options.tokens) and encoding is None
    if ours and (index := read_index(folder := text_folder(text_key(plan, options, None)))):
        return _map_dataset(folder, index, plan)
    passages = divide_text(*plan.read(), options, plan.where)
    if encoding is None or encoding.tokens is None:
        tokeniser = make_tokeniser(options, passages.train)
    else:
        tokeniser = run_tokeniser(options, passages.train, encoding.tokens)
    if passages.windows_size(options.length) <= LARGE:
        sinks = MemorySink(options.length), MemorySink(options.length)
        index = _write(passages, tokeniser, options.length, sinks, plan)
        _say_left_out(index, plan)
        train, test = (sink.tensors() for sink in sinks)
        return text_dataset(index, train, test)
    if not ours:
        whole = " all for training" * (encoding is not None)
        folder = text_folder(text_key(plan, options, tokeniser.to_json() + whole))

    def write(place: Path) -> TextIndex:
        with (
            FileSink(place, "train", options.length) as train,
            FileSink(place, "test", options.length) as test,
        ):
            return _write(passages, tokeniser, options.length, (train, test), plan)

    index = read_index(folder) or keep_text(folder, write)
    return _map_dataset(folder, index, plan)


def _write(
    passages: Passages,
    tokeniser: Tokeniser,
    length: int,
    sinks: tuple[Sink, Sink],
    plan: TextPlan,
) -> TextIndex:
    train = encode_passages(passages.train, tokeniser, length, sinks[0])
    test = encode_passages(passages.test, tokeniser, length, sinks[1])
    for name, part, must_be in (("training", train, True), ("test", test, passages.test)):
        if must_be and not part.total:
            raise DataError(f"{plan.where}: too short: its {name} part has less than two tokens")
    return _index(passages, tokeniser, length, train, test)


def _index(
    passages: Passages, tokeniser: Tokeniser, length: int, train: EncodedPart, test: EncodedPart
) -> TextIndex:
    """What is known of the windows; owners without any for training are left out, too."""
    has_some = [owner for owner, rows in train.rows if rows and owner >= 0]
    number = {owner: place for place, owner in enumerate(has_some)}
    return TextIndex(
        tokens=tokeniser.to_json(),
        vocabulary=tokeniser.vocabulary,
        bytes_per_token=test.target_bytes / max(test.targets, 1),
        length=length,
        names=[passages.names[owner] for owner in has_some],
        train=[[number.get(owner, -1), rows] for owner, rows in train.rows if rows],
        test=[[number.get(owner, -1), rows] for owner, rows in test.rows if rows],
        left_out=passages.left_out + len(passages.names) - len(has_some),
    )


def _map_dataset(folder: Path, index: TextIndex, plan: TextPlan) -> Dataset:
    _say_left_out(index, plan)
    train, test = (_map(folder, part, index) for part in ("train", "test"))
    return text_dataset(index, train, test)


def _map(folder: Path, part: str, index: TextIndex) -> TensorPair:
    rows = sum(count for _, count in (index.train if part == "train" else index.test))
    return map_windows(folder, part, rows, index.length)


def _say_left_out(index: TextIndex, plan: TextPlan) -> None:
    if index.left_out:
        _log.warning(
            "%s: %d of %d clients are left out, as they have too little text (data.least)",
            plan.where,
            index.left_out,
            index.left_out + len(index.names),
        )
