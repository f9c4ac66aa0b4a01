"""What is known of data that is a table: how its columns became numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
