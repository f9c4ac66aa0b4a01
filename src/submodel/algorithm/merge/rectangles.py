"""What clients hold of a tensor, taken as rows and columns, and such parts of it in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from submodel.algorithm.merge.holding import Holding
from submodel.model.cut import FlatLayout

Integers = NDArray[np.int64]
"""Positions, in this order."""


@dataclass(frozen=True)
class Rectangle:
    """What a client holds: all values of these rows in these columns.

    Args:
        rows: of the tensor.
        columns: of the tensor, whose dimensions after the first are taken as one.
    """

    rows: Integers
    columns: Integers

    @property
    def size(self) -> int:
        """How many values it has."""
        return len(self.rows) * len(self.columns)


def rectangles(holdings: Sequence[Holding], name: str, shape: Sequence[int]) -> list[Rectangle]:
    """Those of all clients.

    Args:
        holdings: the clients, by positions.
        name: of the tensor.
        shape: of the tensor.
    """
    layout = FlatLayout({name: shape[1:]})
    parts = []
    for holding in holdings:
        places = dict(holding.cut.places(name))
        rows = places.pop(0, np.arange(shape[0]))
        plan = {name: [(d - 1, positions) for d, positions in places.items()]}
        parts.append(Rectangle(rows, layout.positions(plan if places else {})))
    return parts


class Region:
    """Some rows and columns of a tensor in memory.

    Args:
        rows: which.
        columns: which.
        width: how many columns the tensor has.

    >>> Region(np.array([0, 2]), torch.tensor([1]), 2).read(torch.arange(6).view(3, 2))
    tensor([[1],
            [5]])
    """

    def __init__(self, rows: Integers, columns: Tensor, width: int) -> None:
        self._columns, self._rows, self._count = columns, as_slice(rows), len(rows)
        self._where: Tensor | None = None  # of rows that are no neighbours
        if isinstance(self._rows, Tensor):
            self._where = ((self._rows * width)[:, None] + columns).view(-1)

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns it has."""
        return self._count, len(self._columns)

    def read(self, whole: Tensor) -> Tensor:
        """A copy of the values.

        Args:
            whole: the tensor, rows x columns.
        """
        if self._where is None:
            return whole[self._rows].index_select(1, self._columns)
        return whole.view(-1).index_select(0, self._where).view(self._count, -1)

    def write(self, whole: Tensor, values: Tensor) -> None:
        """Put values in their place.

        Args:
            whole: the tensor, rows x columns.
            values: as `read` gives them.
        """
        if self._where is None:
            whole[self._rows].scatter_(1, self._columns.expand(self._count, -1), values)
        else:
            whole.view(-1).scatter_(0, self._where, values.reshape(-1))


def as_slice(rows: Integers) -> slice | Tensor:
    """Neighbours as a slice.

    >>> as_slice(np.array([3, 4])), as_slice(np.array([3, 5]))
    (slice(3, 5, None), tensor([3, 5]))
    """
    first, count = int(rows[0]), len(rows)
    if int(rows[-1]) - first + 1 == count and (np.diff(rows) == 1).all():
        return slice(first, first + count)
    return torch.from_numpy(rows)


def width_of(shape: Sequence[int]) -> int:
    """How many columns a tensor has.

    >>> width_of((5, 3, 2)), width_of((5,))
    (6, 1)
    """
    return math.prod(shape[1:])
