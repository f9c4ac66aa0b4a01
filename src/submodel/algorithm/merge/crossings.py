"""A large tensor of which most values have one holder: only where cuts cross is anything summed.

Rows that several clients hold and columns that several hold cross in a part of the tensor that is
small where cuts are. Outside of it, each value has at most one holder and becomes that client's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from submodel.algorithm.merge.holding import Holding
from submodel.algorithm.merge.rectangles import (
    Integers,
    Rectangle,
    Region,
    as_slice,
    width_of,
)
from submodel.algorithm.merge.rules import MergeRule, average
from submodel.algorithm.merge.terms import (
    client_term,
    is_restored,
    lone_change,
    round_small,
    split_term,
)

_PIECE = 1 << 18  # values at a time: where there are few in a piece, calls cost more than they do
_LEAST_OUTSIDE = 1 / 3  # of the clients' values; summing costs more where more of them cross


@dataclass(frozen=True)
class _Share:
    """A client's part in the crossing: which of its own rows and columns, and where they lie."""

    own_rows: Integers
    rows: Integers  # among the rows of the crossing, in ascending order
    own_columns: Tensor | None  # None: all
    columns: Tensor  # among the columns of the crossing


class SparselyHeldTensor:
    """One tensor.

    Args:
        name: of the tensor.
        whole: the tensor.
        holdings: all clients, by positions.
        weight: of all clients.
        rule: what sums are divided by.
        parts: what every client holds of it.
    """

    def __init__(
        self,
        name: str,
        whole: Tensor,
        holdings: Sequence[Holding],
        weight: float,
        rule: MergeRule,
        parts: Sequence[Rectangle],
    ) -> None:
        self._name, self._holdings, self._weight, self._rule = name, holdings, weight, rule
        self._width = width_of(whole.shape)
        self._whole = whole.view(-1, self._width)
        self._count = sum(len(holding.updates) for holding in holdings)
        self._parts = parts
        self._largest = float("inf")  # of the old values, once it is needed
        self._is_met_row = _several(len(whole), [part.rows for part in self._parts])
        self._is_met_column = _several(self._width, [part.columns for part in self._parts])

    @property
    def is_sparse(self) -> bool:
        """Whether so much lies outside the crossing that this is the quickest way to merge."""
        inside = sum(
            int(np.count_nonzero(self._is_met_row[part.rows]))
            * int(np.count_nonzero(self._is_met_column[part.columns]))
            for part in self._parts
        )
        total = sum(part.size for part in self._parts)
        return total - inside >= _LEAST_OUTSIDE * total

    def merge(self, new: Tensor) -> None:
        """Write the new values where somebody holds them.

        Args:
            new: of the tensor's shape, with the old values; may be the tensor itself.
        """
        new = new.view(-1, self._width)
        if self._whole.dtype == torch.float32:
            self._largest = max(map(abs, map(float, torch.aminmax(self._whole))))
        for region, values in self._crossing():
            region.write(new, values)
        for number, part in enumerate(self._parts):
            is_met_row = self._is_met_row[part.rows]
            own_columns = np.flatnonzero(~self._is_met_column[part.columns])
            outside = [(np.flatnonzero(~is_met_row), np.arange(len(part.columns)))]
            outside += [(np.flatnonzero(is_met_row), own_columns)]
            for rows, columns in outside:
                for region, values in self._lone(number, part, rows, columns):
                    region.write(new, values)

    def _lone(
        self, number: int, part: Rectangle, every_row: Integers, columns: Integers
    ) -> Iterator[tuple[Region, Tensor]]:
        """The new values of some of a client's own rows and columns that nobody else holds."""
        if not len(columns):
            return
        own_columns = None if len(columns) == len(part.columns) else torch.from_numpy(columns)
        where = torch.from_numpy(part.columns[columns])
        step = max(1, _PIECE // len(columns))
        for start in range(0, len(every_row), step):
            rows = every_row[start : start + step]
            region = Region(part.rows[rows], where, self._width)
            yield region, self._lone_values(number, as_slice(rows), region, own_columns)

    def _lone_values(
        self, number: int, own_rows: slice | Tensor, region: Region, own_columns: Tensor | None
    ) -> Tensor:
        """What becomes of values that one client, or clients of one cut, hold."""
        holding, width = self._holdings[number], len(self._parts[number].columns)
        holder_weight = torch.tensor(holding.weight, dtype=torch.float64).expand(region.shape)
        new = holding.lone_values(self._name, own_rows, width, own_columns)
        if (
            new is not None
            and new.dtype == self._whole.dtype
            and self._rule.divisor(holder_weight, self._weight) is holder_weight
            and is_restored(new, self._largest, holding.weight)
        ):
            return new
        old = region.read(self._whole)
        if new is None:
            coarse, fine = holding.terms(
                self._name, own_rows, old.view(-1), None, width, own_columns
            )
            change = coarse.add_(fine).view(old.shape)
        else:
            change = lone_change(client_term(new, old, None, holding.weight))
        return average(old, change, holder_weight, self._weight, self._rule, is_held=True)

    def _crossing(self) -> Iterator[tuple[Region, Tensor]]:
        """The new values where cuts cross; some of these have one holder, or none."""
        every_row = np.flatnonzero(self._is_met_row)
        columns = np.flatnonzero(self._is_met_column)
        if not len(every_row) or not len(columns):
            return
        shares = [self._share(part) for part in self._parts]
        where = torch.from_numpy(columns)
        step = max(1, _PIECE // len(columns))
        for start in range(0, len(every_row), step):
            rows = every_row[start : start + step]
            region = Region(rows, where, self._width)
            old = region.read(self._whole)
            change, holder_weight = self._sum(start, old, shares)
            yield (
                region,
                average(old, change, holder_weight, self._weight, self._rule, is_held=True),
            )

    def _share(self, part: Rectangle) -> _Share:
        """What a client has in the crossing."""
        row_places = (np.cumsum(self._is_met_row) - 1)[part.rows]
        own_rows = np.flatnonzero(self._is_met_row[part.rows])
        own_rows = own_rows[np.argsort(row_places[own_rows], kind="stable")]
        column_places = (np.cumsum(self._is_met_column) - 1)[part.columns]
        own_columns = np.flatnonzero(self._is_met_column[part.columns])
        is_all = len(own_columns) == len(part.columns)
        return _Share(
            own_rows,
            row_places[own_rows],
            None if is_all else torch.from_numpy(own_columns),
            torch.from_numpy(column_places[own_columns]),
        )

    def _sum(self, start: int, old: Tensor, shares: Sequence[_Share]) -> tuple[Tensor, Tensor]:
        """What clients change of some rows of the crossing, in all, and the weight of holders.

        Where nobody holds a value the weight is that of some client, to have a divisor.
        """
        fine = torch.zeros(old.shape, dtype=torch.float64)
        coarse: Tensor | None = None
        is_held_row = np.zeros((len(shares), len(old)))
        weights = np.zeros((len(shares), old.shape[1]))
        for number, share in enumerate(shares):
            first, last = np.searchsorted(share.rows, (start, start + len(old)))
            if first == last or not len(share.columns):
                continue
            rows = share.rows[first:last] - start
            is_held_row[number, rows] = 1
            weights[number, share.columns.numpy()] = self._holdings[number].weight
            place = _Place(rows, share.columns, old)
            parts = self._terms(
                number, share, as_slice(share.own_rows[first:last]), place.read(old)
            )
            place.add(fine, parts[1])
            if parts[0] is not None:
                coarse = torch.zeros_like(fine) if coarse is None else coarse
                place.add(coarse, parts[0])
        least = min(holding.weight for holding in self._holdings)
        holder_weight = torch.from_numpy(is_held_row.T @ weights).clamp_(min=least)  # exact sums
        return (fine if coarse is None else coarse.add_(fine)), holder_weight

    def _terms(
        self, number: int, share: _Share, own_rows: slice | Tensor, old: Tensor
    ) -> tuple[Tensor | None, Tensor]:
        """The coarse part of what a client changes, if there is any, and the fine part."""
        holding, width = self._holdings[number], len(self._parts[number].columns)
        new = holding.lone_values(self._name, own_rows, width, share.own_columns)
        if new is None:
            coarse, fine = holding.terms(
                self._name, own_rows, old.view(-1), None, width, share.own_columns
            )
            return coarse.view(old.shape), fine.view(old.shape)
        term = client_term(new, old, None, holding.weight)
        return (None, term) if round_small(term, self._count) else split_term(term)


class _Place:
    """Some rows and columns of a piece: by columns alone where all of its rows are meant."""

    def __init__(self, rows: Integers, columns: Tensor, piece: Tensor) -> None:
        self._columns, self._count = columns, len(rows)
        self._where: Tensor | None = None
        if len(rows) < len(piece):
            self._where = (torch.from_numpy(rows * piece.shape[1])[:, None] + columns).view(-1)

    def read(self, piece: Tensor) -> Tensor:
        if self._where is None:
            return piece.index_select(1, self._columns)
        return piece.view(-1).index_select(0, self._where).view(self._count, -1)

    def add(self, piece: Tensor, values: Tensor) -> None:
        if self._where is None:
            piece.scatter_add_(1, self._columns.expand(self._count, -1), values)
        else:
            piece.view(-1).scatter_add_(0, self._where, values.reshape(-1))


def _several(count: int, positions: Sequence[Integers]) -> NDArray[np.bool_]:
    """Which of so many positions are in more than one of the lists."""
    holders = np.zeros(count, np.int64)
    for one in positions:
        holders[one] += 1
    return holders > 1
