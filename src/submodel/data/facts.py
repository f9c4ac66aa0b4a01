"""What is known of data beside its tensors: natural clients, tokens, how columns became numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Missing = Literal["mean", "category", "drop"] | None
"""What stands for missing cells; None: they are refused."""


@dataclass(frozen=True)
class Owners:
    """Who has every example: a role of a play, a file, a value of a column."""

    names: tuple[str, ...]  # of the clients, by number
    train: NDArray[np.int64]  # the number of the client that has each training example
    test: NDArray[np.int64] | None = None  # None: test examples are nobody's

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _by_client(self) -> list[NDArray[np.int64]]:
        order = np.argsort(self.train, kind="stable")
        borders = np.searchsorted(self.train[order], np.arange(1, len(self.names)))
        return np.split(order, borders)

    def positions(self, client: int) -> NDArray[np.int64]:
        """The places of a client's training examples, ascending."""
        return self._by_client[client]

    def of_part(self, train: NDArray[np.int64] | None, test: NDArray[np.int64] | None) -> Owners:
        """The owners of some of the examples; clients who have none of them are left out."""
        numbers = self.train if train is None else self.train[train]
        names, train_numbers = np.unique(numbers, return_inverse=True)
        of_test = self.test if self.test is None or test is None else self.test[test]
        if of_test is not None:
            place = np.full(len(self.names) + 1, -1)
            place[names] = np.arange(len(names))
            of_test = place[of_test]  # the last place is of -1, nobody
        return Owners(tuple(self.names[n] for n in names), train_numbers.astype(np.int64), of_test)


def owners_of(train: Sequence[str], test: Sequence[str] | None = None) -> Owners:
    """Owners from the name beside every example; clients are numbered in the order of names.

    Test examples of somebody who does not train belong to nobody and have the owner -1.

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
    """What is known of data that is text: its tokens, and how many bytes they stand for."""

    vocabulary: int
    bytes_per_token: float  # of the text that the test part's targets stand for, on average
    tokens: str  # the tokeniser, as `submodel.data.text.tokens.read_tokens` reads it


@dataclass(frozen=True)
class ColumnCode:
    """How a column becomes numbers: less the mean, divided by the deviation."""

    name: str
    mean: float = 0.0
    deviation: float = 1.0
    words: tuple[str, ...] | None = None  # each a column of 0 and 1; None: it holds numbers
    fill: tuple[float, ...] = ()  # these columns without a word; empty: 0, or 1 for the word ""
    marks_missing: bool = False  # whether one more column says where a number is missing


@dataclass(frozen=True)
class TableFacts:
    """What is known of data that is a table: how its columns became numbers."""

    columns: tuple[ColumnCode, ...]  # those that the target is told from, in their order
    labels: tuple[str, ...] | tuple[float, ...] | None = None  # classes by number, if they are
    target: ColumnCode | None = None  # how a target of numbers was standardised, if it was

    @property
    def has_word_labels(self) -> bool:
        """Whether the target holds words."""
        return any(isinstance(label, str) for label in self.labels or ())

    @property
    def word_columns(self) -> set[str]:
        """The names of columns that hold words.

        >>> TableFacts((ColumnCode("a"), ColumnCode("b", words=("x", "y")))).word_columns
        {'b'}
        """
        return {code.name for code in self.columns if code.words is not None}
