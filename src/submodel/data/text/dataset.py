"""The dataset of a text: its sequences, its tokens, its owners."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from submodel.data.examples import Dataset, Examples
from submodel.data.owners import Owners
from submodel.data.text.facts import TextFacts
from submodel.data.text.text_cache import TextIndex

TensorPair = tuple[Tensor, Tensor]


def text_dataset(index: TextIndex, train: TensorPair, test: TensorPair) -> Dataset:
    """The dataset of windows.

    Args:
        index: what is known of them.
        train: inputs and targets for training.
        test: those for testing.
    """
    owners = None
    if index.names:
        owners = Owners(tuple(index.names), _owners(index.train), _owners(index.test))
    facts = TextFacts(index.vocabulary, index.bytes_per_token, index.tokens)
    return Dataset(Examples(*train), Examples(*test), classes=None, text=facts, owners=owners)


def _owners(rows: list[list[int]]) -> NDArray[np.int64]:
    """The owner of every window."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return np.repeat(table[:, 0], table[:, 1])
