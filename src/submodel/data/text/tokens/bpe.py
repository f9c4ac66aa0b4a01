"""Byte pairs as tokens: the commonest sequences of bytes in the training part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

from pydantic import Field

from submodel.data.text.tokens.base import TokensContext
from submodel.data.text.tokens.library import LibraryTokens, refusing, tokenizers_package
from submodel.options import Section

_BYTES = 256
_PARALLELISM = "TOKENIZERS_PARALLELISM"


@dataclass(frozen=True)
class BpeTokens(LibraryTokens):
    """Byte-level byte-pair encoding, as GPT-2's: 256 bytes, and pairs of tokens that are common.

    Every text has tokens, and decoding gives the same text.
    """

    name: ClassVar[str] = "bpe"
    has_every_byte: ClassVar[bool] = True

    class Options(Section):
        """The keys of ``bpe``."""

        vocabulary: Annotated[int, Field(ge=_BYTES, le=1_000_000)] = Field(
            1024, description="bpe: the most tokens; fewer where the text has no more pairs"
        )

    @classmethod
    def configured(cls, options: Options, context: TokensContext) -> Self:
        """Trained on the training part."""
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
    """Without threads of the package, which warns of them in processes that are forked later."""
    before = os.environ.get(_PARALLELISM)
    os.environ[_PARALLELISM] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PARALLELISM]
        else:
            os.environ[_PARALLELISM] = before
