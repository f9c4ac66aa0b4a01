"""The updates of clients who hold the same, in their own small shapes until they are merged."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from submodel.algorithm.merge.terms import chunk_slices, exact_terms
from submodel.model.cut import CoordinateCut, Cut, PlannedCut, Tensors, cut_digest

_SUM_BYTES = 16  # bytes of a value's two sums in float64


class Holding:
    """Clients of one cut: their tensors, or the sums of those, of one size however many they are.

    Args:
        cut: what they hold.
    """

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.weight = 0.0
        self._updates: list[tuple[dict[str, Tensor], float]] = []
        self._sums: dict[str, Tensor] = {}  # name -> coarse and fine, flat

    def add(self, tensors: Tensors, weight: float) -> None:
        """One more client."""
        self._updates.append((dict(tensors), weight))
        self.weight += weight

    def forget(self, name: str) -> None:
        """Let go of what clients made of a tensor."""
        for tensors, _ in self._updates:
            tensors.pop(name, None)
        self._sums.pop(name, None)

    @property
    def updates(self) -> Sequence[tuple[Tensors, float]]:
        """The clients' tensors as they came, with their weights; those that are sums have none."""
        return self._updates

    @property
    def is_folded(self) -> bool:
        """Whether there are sums."""
        return bool(self._sums)

    @property
    def sums(self) -> Tensors:
        """Coarse and fine, of clients who wait no longer."""
        return self._sums

    @property
    def summed_weight(self) -> float:
        """Their weight."""
        return self.weight - sum(weight for _, weight in self._updates)

    def add_sums(self, sums: Tensors, weight: float) -> None:
        """Clients whose terms are summed already.

        Args:
            sums: of every tensor, coarse and fine, flat.
            weight: of these clients.
        """
        for name, one in sums.items():
            before = self._sums.get(name)
            self._sums[name] = one if before is None else before + one
        self.weight += weight

    @property
    def size(self) -> int:
        """How many bytes they take."""
        return sum(_bytes(tensors) for tensors, _ in self._updates) + _bytes(self._sums)

    @property
    def is_worth_folding(self) -> bool:
        """Whether the sums take less memory than what they would be made of."""
        # those of one cut are of one size
        waiting = len(self._updates) * _bytes(self._updates[0][0]) if self._updates else 0
        if self._sums or not waiting:
            return bool(waiting)
        values = sum(tensor.numel() for tensor in self._updates[0][0].values())
        return waiting > _SUM_BYTES * values

    def fold(self, whole: Tensors) -> None:
        """Keep the sums, and not the clients' tensors."""
        for name, tensor in whole.items():
            old = self.cut.part(name, tensor).reshape(-1)
            mask = self.cut.mask(name)
            sums = torch.empty((2, len(old)), dtype=torch.float64, device=old.device)
            flat = None if mask is None else mask.reshape(-1)
            for piece in chunk_slices(len(old)):
                part = None if flat is None else flat[piece]
                sums[0, piece], sums[1, piece] = self.terms(name, piece, old[piece], part)
            self._sums[name] = sums
        self._updates.clear()

    def terms(
        self,
        name: str,
        rows: slice | Tensor,
        old: Tensor,
        mask: Tensor | None,
        width: int = 1,
        columns: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The coarse and the fine sum of some of a tensor's values, flat.

        Args:
            name: of the tensor.
            rows: which of the values, in stretches of ``width``.
            old: the global model's.
            mask: 0 where they are not held; None: all are.
            width: how many values are in a row.
            columns: which values of a row; None: all.
        """
        coarse = fine = None
        if self._updates:
            new = [_pick(t[name], rows, width, columns).reshape(-1) for t, _ in self._updates]
            coarse, fine = exact_terms(new, old, mask, [weight for _, weight in self._updates])
        if (sums := self._sums.get(name)) is not None:
            part = sums.view(2, -1, width)[:, rows]
            part = (part if columns is None else part.index_select(2, columns)).reshape(2, -1)
            coarse = part[0].clone() if coarse is None else coarse.add_(part[0])
            fine = part[1].clone() if fine is None else fine.add_(part[1])
        assert coarse is not None
        assert fine is not None
        return coarse, fine

    def lone_values(
        self, name: str, rows: slice | Tensor, width: int, columns: Tensor | None = None
    ) -> Tensor | None:
        """Some of a tensor's rows where there is one client; None where there are more.

        Args:
            name: of the tensor.
            rows: which of them.
            width: how many values are in a row.
            columns: which values of a row; None: all.
        """
        if self._sums or len(self._updates) > 1:
            return None
        ((tensors, _),) = self._updates
        return _pick(tensors[name], rows, width, columns)

    def region(self, name: str) -> Hashable:
        """Equal for those who hold the same of a tensor."""
        if (mask := self.cut.mask(name)) is not None:
            return id(mask)
        return tuple((d, places.tobytes()) for d, places in self.cut.places(name))

    @property
    def digest(self) -> str | None:
        """Equal in all processes for the same cut; None if that is not known."""
        return cut_digest(self.cut)

    def rows_between(self, name: str, start: int, stop: int) -> tuple[Cut, slice | Tensor] | None:
        """What is held of some rows of a tensor, as a cut of those, and which rows of one's own."""
        if (mask := self.cut.mask(name)) is not None:
            rows_of_mask = mask if mask.dim() else mask.view(1)
            return CoordinateCut({name: rows_of_mask[start:stop]}), slice(start, stop)
        places = dict(self.cut.places(name))
        if (held_rows := places.get(0)) is None:
            return PlannedCut({name: tuple(places.items())}), slice(start, stop)
        own_rows = np.flatnonzero((held_rows >= start) & (held_rows < stop))
        if not len(own_rows):
            return None
        places[0] = held_rows[own_rows] - start
        first, last = int(own_rows[0]), int(own_rows[-1])
        rows: slice | Tensor = slice(first, last + 1)
        if last - first + 1 != len(own_rows):  # positions may come in any order
            rows = torch.from_numpy(own_rows)
        return PlannedCut({name: tuple(places.items())}), rows


def _pick(
    tensor: Tensor, rows: slice | Tensor, width: int, columns: Tensor | None = None
) -> Tensor:
    """Some rows of so many values, and of these some columns."""
    values = tensor.reshape(-1, width)
    part = values[rows] if isinstance(rows, slice) else values.index_select(0, rows)
    return part if columns is None else part.index_select(1, columns)


def _bytes(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def total_size(holdings: Sequence[Holding]) -> int:
    """How many bytes they take together."""
    return sum(holding.size for holding in holdings)
