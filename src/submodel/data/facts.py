"""What is known of data beside its tensors: natural clients, tokens, how columns became numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from submodel.errors import DataError


@dataclass(frozen=True)
class Owners:
    """Who has every example: a role of a play, a file, a value of a column.

    Args:
        names: of the clients, by number.
        train: the number of the client that has each training example.
        test: likewise of the test part; None: test examples are nobody's.
    """

    names: tuple[str, ...]
    train: NDArray[np.int64]
    test: NDArray[np.int64] | None = None

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

    def test_positions(self, client: int) -> NDArray[np.int64]:
        """The places of a client's test examples, ascending; none where they are nobody's."""
        if self.test is None:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(self.test == client)

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

    def check(self, total: int) -> None:
        """Raise unless everyone has something, and everything is somebody's."""
        if len(self.train) != total:
            raise DataError(f"owners of {len(self.train)} examples, but there are {total}")
        counts = np.bincount(self.train, minlength=len(self.names))
        if len(counts) > len(self.names):
            raise DataError(f"an example of client {len(counts) - 1}, but there is no such client")
        if (empty := np.flatnonzero(counts == 0)).size:
            raise DataError(f"client {self.names[empty[0]]!r} has no training examples")


def owners_of(
    train: Sequence[str], test: Sequence[str] | None = None
) -> tuple[Owners, NDArray[np.bool_] | None]:
    """Owners from the name beside every example; clients are numbered in the order of names.

    Returns them, and which test examples are of somebody who trains (None: no test names): others
    belong to nobody and have the owner -1.

    >>> owners, _ = owners_of(["b", "a", "b"])
    >>> owners.names, owners.train.tolist()
    (('a', 'b'), [1, 0, 1])
    """
    names, numbers = np.unique(np.asarray(train, dtype=str), return_inverse=True)
    place = {name: number for number, name in enumerate(names.tolist())}
    train_numbers = numbers.astype(np.int64).reshape(-1)
    if test is None:
        return Owners(tuple(names.tolist()), train_numbers), None
    test_numbers = np.array([place.get(name, -1) for name in test], dtype=np.int64)
    return Owners(tuple(names.tolist()), train_numbers, test_numbers), test_numbers >= 0


@dataclass(frozen=True)
class TextFacts:
    """Of the sequences of a dataset.

    Args:
        vocabulary: how many different tokens there are.
        bytes_per_token: of the text that the test part's targets stand for, on average.
        tokens: the tokeniser, as `submodel.data.text.tokens.read_tokens` reads it.
    """

    vocabulary: int
    bytes_per_token: float
    tokens: str


Missing = Literal["mean", "category", "drop"] | None
"""What stands for missing cells; None: they are refused."""


@dataclass(frozen=True)
class ColumnCode:
    """How a column becomes numbers.

    Args:
        name: of the column.
        mean: what is taken from a number.
        deviation: what that is divided by.
        words: each a column of 0 and 1; None: the column holds numbers.
        fill: what these columns hold where the word is missing; empty: 0, or 1 for the word "".
        marks_missing: whether a further column of 0 and 1 says where a number is missing.
    """

    name: str
    mean: float = 0.0
    deviation: float = 1.0
    words: tuple[str, ...] | None = None
    fill: tuple[float, ...] = ()
    marks_missing: bool = False


@dataclass(frozen=True)
class TableFacts:
    """Of the columns of a table.

    Args:
        columns: those that the target is told from, in their order.
        labels: the entries of the target that are classes, by number; None: it holds numbers.
        target: how a target of numbers was standardised; None: it was not.
    """

    columns: tuple[ColumnCode, ...]
    labels: tuple[str, ...] | tuple[float, ...] | None = None
    target: ColumnCode | None = None

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
