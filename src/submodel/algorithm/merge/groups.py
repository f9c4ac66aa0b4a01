"""A large tensor, rows of the same holders at a time: nothing is done to what nobody holds.

Of the rows that the same clients hold, the same columns are held, each by the same clients: their
weights are known by column, and only those columns that somebody holds are read, summed and
written. So the work is that of the clients' own values, however large the tensor is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from submodel.algorithm.merge.holding import Holding
from submodel.algorithm.merge.rectangles import Integers, Rectangle, Region, as_slice, width_of
from submodel.algorithm.merge.rules import MergeRule, average
from submodel.algorithm.merge.terms import client_term, lone_change, round_small, split_term

_PIECE = 1 << 16  # values at a time, with their positions: as many as stay in the cache
_LEAST = (
    1 << 14
)  # values of the tensor for each group; where there are more groups, calls cost more


@dataclass(frozen=True)
class RowGroup:
    """Rows of a tensor that the same clients hold.

    Args:
        rows: which.
        members: the holdings, by number.
    """

    rows: Integers
    members: Sequence[int]


def row_groups(parts: Sequence[Rectangle], shape: Sequence[int]) -> list[RowGroup] | None:
    """The rows of a tensor by who holds them; rows that nobody holds are in none.

    Args:
        parts: what every client holds.
        shape: of the tensor.

    Returns:
        None where there are so many groups that they do not pay.
    """
    codes = np.zeros(shape[0], np.int64)
    for number, part in enumerate(parts):
        codes[part.rows] |= 1 << number
    order = np.argsort(codes, kind="stable")
    values, starts = np.unique(codes[order], return_index=True)
    if len(values) * _LEAST > math.prod(shape):
        return None
    return [
        RowGroup(rows, [n for n in range(len(parts)) if code >> n & 1])
        for code, rows in zip(values.tolist(), np.split(order, starts[1:]), strict=True)
        if code
    ]


class GroupedTensor:
    """One tensor, merged group by group.

    Args:
        name: of the tensor.
        whole: the tensor.
        holdings: all clients.
        weight: of all clients.
        rule: what sums are divided by.
        parts: what every client holds of it.
        groups: the tensor's rows by who holds them.
    """

    def __init__(
        self,
        name: str,
        whole: Tensor,
        holdings: Sequence[Holding],
        weight: float,
        rule: MergeRule,
        parts: Sequence[Rectangle],
        groups: Sequence[RowGroup],
    ) -> None:
        self._weight, self._rule, self._groups = weight, rule, groups
        self._name, self._holdings = name, holdings
        self._width = width_of(whole.shape)
        self._whole = whole.view(-1, self._width)
        self._count = sum(len(holding.updates) for holding in holdings)
        self._columns, self._own_rows = [], []
        for part in parts:
            self._columns.append(part.columns)
            own_rows = np.zeros(len(whole), np.int64)
            own_rows[part.rows] = np.arange(len(part.rows))
            self._own_rows.append(own_rows)

    def merge(self, new: Tensor) -> None:
        """Write the new values where somebody holds them.

        Args:
            new: of the tensor's shape, with the old values; may be the tensor itself.
        """
        for group in self._groups:
            self._merge_group(group, new.view(-1, self._width))

    def _merge_group(self, group: RowGroup, new: Tensor) -> None:
        """Write the new values of a group's rows."""
        columns, places = self._join_columns(group.members)
        weights = np.zeros(len(columns))
        for number, place in zip(group.members, places, strict=True):
            weights[slice(None) if place is None else place] += self._holdings[number].weight
        holder_weight = torch.from_numpy(weights)
        where = torch.from_numpy(columns)
        local = [None if place is None else torch.from_numpy(place) for place in places]
        step = max(1, _PIECE // max(1, len(columns)))
        for start in range(0, len(group.rows), step):
            rows = group.rows[start : start + step]
            region = Region(rows, where, self._width)
            old = region.read(self._whole)
            change = self._sum(rows, old, group.members, local)
            weights_here = holder_weight.expand(old.shape)
            averages = average(old, change, weights_here, self._weight, self._rule, is_held=True)
            region.write(new, averages)

    def _join_columns(self, members: Sequence[int]) -> tuple[Integers, list[Integers | None]]:
        """The columns that any of them holds, and where each has its own among these."""
        if len(members) == 1:
            return self._columns[members[0]], [None]
        is_held = np.zeros(self._width, np.bool_)
        for number in members:
            is_held[self._columns[number]] = True
        columns = np.flatnonzero(is_held)
        place_of_column = np.cumsum(is_held) - 1
        places = [place_of_column[self._columns[number]] for number in members]
        everything = np.arange(len(columns))
        return columns, [None if np.array_equal(p, everything) else p for p in places]

    def _sum(
        self, rows: Integers, old: Tensor, members: Sequence[int], local: Sequence[Tensor | None]
    ) -> Tensor:
        """What clients change of some rows, in all; ``local``: where each has its values in it."""
        sums: list[Tensor | None] = [None, None]  # coarse and fine
        for number, place in zip(members, local, strict=True):
            holding, width = self._holdings[number], self._columns[number].size
            own_old = old if place is None else old.index_select(1, place)
            own_rows = as_slice(self._own_rows[number][rows])
            parts: tuple[Tensor | None, Tensor]
            new = holding.lone_values(self._name, own_rows, width)
            if new is None:
                coarse, fine = holding.terms(self._name, own_rows, own_old.view(-1), None, width)
                parts = coarse.view(own_old.shape), fine.view(own_old.shape)
            else:
                term = client_term(new, own_old, None, holding.weight)
                if len(members) == 1:
                    return lone_change(term)
                parts = (None, term) if round_small(term, self._count) else split_term(term)
            for which, part in enumerate(parts):
                if part is not None:
                    sums[which] = _add(sums[which], part, place, old)
        coarse_sum, fine_sum = sums
        assert fine_sum is not None
        return fine_sum if coarse_sum is None else coarse_sum.add_(fine_sum)


def _add(total: Tensor | None, part: Tensor, place: Tensor | None, like: Tensor) -> Tensor:
    """The total with a part of its columns added, in place."""
    if place is None:
        return part if total is None else total.add_(part)
    if total is None:
        total = torch.zeros(like.shape, dtype=torch.float64)
    return total.scatter_add_(1, place.expand(len(part), -1), part)
