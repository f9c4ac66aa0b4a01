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
from numpy.typing import NDArray
from torch import Tensor

from submodel.algorithm.merge.holding import Holding
from submodel.algorithm.merge.rules import MergeRule, average
from submodel.algorithm.merge.terms import lone_change, round_small, split_term
from submodel.model.cut import FlatLayout

_PIECE = 1 << 16  # values at a time, with their positions: as many as stay in the cache
_LEAST = (
    1 << 14
)  # values of the tensor for each group; where there are more groups, calls cost more
_MOST_HOLDINGS = 62  # bits of a whole number
_Integers = NDArray[np.int64]


@dataclass(frozen=True)
class RowGroup:
    """Rows of a tensor that the same clients hold.

    Args:
        rows: which.
        members: the holdings, by number.
    """

    rows: _Integers
    members: Sequence[int]


def row_groups(
    holdings: Sequence[Holding], name: str, shape: Sequence[int]
) -> list[RowGroup] | None:
    """The rows of a tensor by who holds them; rows that nobody holds are in none.

    Args:
        holdings: by positions, if they are to be grouped.
        name: of the tensor.
        shape: of the tensor.

    Returns:
        None where there are masks, or so many groups that they do not pay.
    """
    if len(holdings) > _MOST_HOLDINGS or any(h.cut.mask(name) is not None for h in holdings):
        return None
    codes = np.zeros(shape[0], np.int64)
    for number, holding in enumerate(holdings):
        codes[dict(holding.cut.places(name)).get(0, slice(None))] |= 1 << number
    order = np.argsort(codes, kind="stable")
    values, starts = np.unique(codes[order], return_index=True)
    if len(values) * _LEAST > math.prod(shape):
        return None
    return [
        RowGroup(rows, [n for n in range(len(holdings)) if code >> n & 1])
        for code, rows in zip(values.tolist(), np.split(order, starts[1:]), strict=True)
        if code
    ]


class GroupedTensor:
    """One tensor, merged group by group.

    Args:
        name: of the tensor.
        whole: the tensor.
        holdings: all clients.
    """

    def __init__(self, name: str, whole: Tensor, holdings: Sequence[Holding]) -> None:
        self._name, self._whole, self._holdings = name, whole.reshape(-1), holdings
        self._width = math.prod(whole.shape[1:])
        self._count = sum(len(holding.updates) for holding in holdings)
        columns = FlatLayout({name: whole.shape[1:]})
        self._columns, self._own_rows = [], []
        for holding in holdings:
            places = dict(holding.cut.places(name))
            rows = places.pop(0, np.arange(len(whole)))
            plan = {name: [(d - 1, positions) for d, positions in places.items()]}
            self._columns.append(columns.positions(plan if places else {}))
            own_rows = np.zeros(len(whole), np.int64)
            own_rows[rows] = np.arange(len(rows))
            self._own_rows.append(own_rows)

    def merge(self, group: RowGroup, new: Tensor, weight: float, rule: MergeRule) -> None:
        """Write the new values of a group's rows where somebody holds them.

        Args:
            group: which rows.
            new: of the tensor's shape, with the old values; may be the tensor itself.
            weight: of all clients.
            rule: what sums are divided by.
        """
        columns, places = self._join_columns(group.members)
        holder_weight = torch.zeros(len(columns), dtype=torch.float64)
        for number, place in zip(group.members, places, strict=True):
            holder_weight[slice(None) if place is None else place] += self._holdings[number].weight
        step = min(len(group.rows), max(1, _PIECE // max(1, len(columns))))
        local = [
            None if place is None else _positions(np.arange(step), len(columns), place)
            for place in places
        ]
        flat_new = new.view(-1)
        run = _as_slice(group.rows)
        where = _positions(
            np.arange(step) if isinstance(run, slice) else group.rows[:step], self._width, columns
        )
        for start in range(0, len(group.rows), step):
            rows = group.rows[start : start + step]
            first = int(rows[0]) * self._width if isinstance(run, slice) else 0
            if start and not isinstance(run, slice):
                where = _positions(rows, self._width, columns)
            elif len(rows) < step:
                where = where[: len(rows) * len(columns)]
            old = self._whole[first:].index_select(0, where)
            change = self._sum(rows, old, group.members, local)
            shape = (len(rows), len(columns))
            averages = average(
                old.view(shape), change.view(shape), holder_weight.expand(shape), weight, rule
            )
            flat_new[first:].scatter_(0, where, averages.view(-1))

    def _join_columns(self, members: Sequence[int]) -> tuple[_Integers, list[_Integers | None]]:
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
        self, rows: _Integers, old: Tensor, members: Sequence[int], local: Sequence[Tensor | None]
    ) -> Tensor:
        """What clients change of some rows, in all; ``local``: where each has its values in it."""
        sums: list[Tensor | None] = [None, None]  # coarse and fine
        for number, everywhere in zip(members, local, strict=True):
            holding, width = self._holdings[number], self._columns[number].size
            place = None if everywhere is None else everywhere[: rows.size * width]
            own_old = old if place is None else old.index_select(0, place)
            own_rows = _as_slice(self._own_rows[number][rows])
            parts: tuple[Tensor | None, Tensor]
            term = holding.lone_term(self._name, own_rows, own_old, width)
            if term is None:
                parts = holding.terms(self._name, own_rows, own_old, None, width)
            elif len(members) == 1:
                return lone_change(term)
            else:
                parts = (None, term) if round_small(term, self._count) else split_term(term)
            for which, part in enumerate(parts):
                if part is not None:
                    sums[which] = _add(sums[which], part, place, old.numel())
        coarse, fine = sums
        assert fine is not None
        return fine if coarse is None else coarse.add_(fine)


def _add(total: Tensor | None, part: Tensor, place: Tensor | None, size: int) -> Tensor:
    """The total with a part of it added, in place."""
    if place is None:
        return part if total is None else total.add_(part)
    if total is None:
        total = torch.zeros(size, dtype=torch.float64)
    return total.scatter_add_(0, place, part)


def _positions(rows: _Integers, width: int, columns: _Integers) -> Tensor:
    """Where rows of so many values have these columns, in memory."""
    return torch.from_numpy(((rows * width)[:, None] + columns).reshape(-1))


def _as_slice(rows: _Integers) -> slice | Tensor:
    """Neighbours as a slice."""
    first, count = int(rows[0]), len(rows)
    if int(rows[-1]) - first + 1 == count and (np.diff(rows) == 1).all():
        return slice(first, first + count)
    return torch.from_numpy(rows)
