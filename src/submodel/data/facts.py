"""Facts about data beside its tensors: natural clients, tokens, conversion of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Missing = Literal["mean", "category", "drop"] | None
"""Treatment of missing cells; None means they are refused."""


@dataclass(frozen=True)
class Owners:
    """The owner of every example: a role of a play, a file, a value of a column."""

    names: tuple[str, ...]  # of the clients, by number
    train: NDArray[np.int64]  # the number of the client that has each training example
    test: NDArray[np.int64] | None = None  # None: test examples have no owners

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _by_client(self) -> list[NDArray[np.int64]]:
        order = np.argsort(self.train, kind="stable")
        borders = np.searchsorted(self.train[order], np.arange(1, len(self.names)))
        return np.split(order, borders)

    def positions(self, client: int) -> NDArray[np.int64]:
        """Return the positions of a client's training examples, ascending."""
        return self._by_client[client]

    def of_part(self, train: NDArray[np.int64] | None, test: NDArray[np.int64] | None) -> Owners:
        """Return the owners of some of the examples, without clients that have none of them."""
        numbers = self.train if train is None else self.train[train]
        names, train_numbers = np.unique(numbers, return_inverse=True)
        of_test = self.test if self.test is None or test is None else self.test[test]
        if of_test is not None:
            place = np.full(len(self.names) + 1, -1)
            place[names] = np.arange(len(names))
            of_test = place[of_test]  # the last entry is for -1, no owner
        return Owners(tuple(self.names[n] for n in names), train_numbers.astype(np.int64), of_test)


def owners_of(train: Sequence[str], test: Sequence[str] | None = None) -> Owners:
    """Make owners from a name per example; clients are numbered in the order of names.

    Test examples of a client without training examples have no owner: -1.

    >>> owners = owners_of(["b", "a", "b"], ["a", "c"])
    >>> owners.names, owners.train.tolist(), owners.test.tolist()
    (('a', 'b'), [1, 0, 1], [0, -1])
    """
    names, numbers = np.unique(np.asarray(train, dtype=str), return_inverse=True)
    place = {name: number for number, name in enumerate(names.tolist())}
    train_numbers = numbers.astype(np.int64).reshape(-1)
    test_numbers = (
        None if test is None else np.array([place.get(name, -1) for name in test], dtype=np.int64)
    )
    return Owners(tuple(place), train_numbers, test_numbers)


@dataclass(frozen=True)
class TextFacts:
    """Facts about text: its tokens, and their number of bytes."""

    vocabulary: int
    bytes_per_token: float  # mean over the test part's targets
    tokens: str  # the tokeniser, as JSON for `submodel.data.text.tokens.read_tokens`


@dataclass(frozen=True)
class ColumnCode:
    """The conversion of a column to numbers: subtract the mean, divide by the deviation."""

    name: str
    mean: float = 0.0
    deviation: float = 1.0
    words: tuple[str, ...] | None = None  # one column of 0 and 1 per word; None: numbers
    fill: tuple[float, ...] = ()  # values of a missing word's columns; empty: 0, or 1 for ""
    marks_missing: bool = False  # whether another column marks missing numbers


@dataclass(frozen=True)
class TableFacts:
    """Facts about a table: the conversion of its columns to numbers."""

    columns: tuple[ColumnCode, ...]  # the features, in order
    labels: tuple[str, ...] | tuple[float, ...] | None = None  # of classes by number
    target: ColumnCode | None = None  # standardisation of a numeric target

    @property
    def has_word_labels(self) -> bool:
        """Whether the target holds words."""
        return any(isinstance(label, str) for label in self.labels or ())

    @property
    def word_columns(self) -> set[str]:
        """Names of columns that hold words.

        >>> TableFacts((ColumnCode("a"), ColumnCode("b", words=("x", "y")))).word_columns
        {'b'}
        """
        return {code.name for code in self.columns if code.words is not None}
