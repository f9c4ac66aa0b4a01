"""The small tensors of a model merged as one vector: a few steps for each cut, not for each tensor.

Of a small model the calls take the time, not the arithmetic. The terms are those of `terms`, the
sums as exact, so nothing but the number of calls tells that tensors were merged together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

import torch
from torch import Tensor

from submodel.algorithm.merge.holding import Holding
from submodel.algorithm.merge.rules import MergeRule, average
from submodel.algorithm.merge.terms import chunk_slices, exact_terms
from submodel.model.cut import FlatLayout, Tensors, small_layout


class SmallTensors:
    """Those of a model that are merged as one.

    Args:
        whole: the model.
    """

    def __init__(self, whole: Tensors) -> None:
        self._whole = whole
        self._layout: FlatLayout = small_layout(whole)
        self._covered_count: int | None = None  # counted when they were merged

    def indices(self, holdings: Sequence[Holding]) -> list[Tensor] | None:
        """Where each holds its values; None where that cannot be told by positions."""
        if not self._layout.size:
            return None
        indices = [holding.cut.flat_index(self._layout) for holding in holdings]
        return None if any(index is None for index in indices) else indices  # type: ignore[return-value]

    @property
    def names(self) -> AbstractSet[str]:
        """Which they are."""
        return self._layout.shapes.keys()

    def merge(
        self, holdings: Sequence[Holding], indices: Sequence[Tensor], weight: float, rule: MergeRule
    ) -> dict[str, Tensor]:
        """The new tensors, side by side in memory.

        Args:
            holdings: the clients, whose updates wait as they came.
            indices: where they hold their values.
            weight: of all clients.
            rule: what sums are divided by.
        """
        whole = self._layout.join(self._whole)
        if len(holdings) == 1:
            return self._layout.split(self._merge_one(whole, holdings[0], indices[0], weight, rule))
        sums = torch.zeros((3, len(whole)), dtype=torch.float64)
        coarse_sum, fine_sum, holder_weight = sums
        for holding, index in zip(holdings, indices, strict=True):
            old = whole.index_select(0, index)
            terms = self._terms(holding)
            for piece in chunk_slices(len(index)):
                where = index[piece]
                coarse, fine = terms(piece, old[piece])
                coarse_sum.scatter_add_(0, where, coarse)
                fine_sum.scatter_add_(0, where, fine)
                holder_weight.scatter_add_(0, where, torch.full_like(fine, holding.weight))
        self._covered_count = int(holder_weight.count_nonzero())
        return self._layout.split(
            average(whole, coarse_sum.add_(fine_sum), holder_weight, weight, rule)
        )

    def _merge_one(
        self, whole: Tensor, holding: Holding, index: Tensor, weight: float, rule: MergeRule
    ) -> Tensor:
        """All hold the same: the rest stays."""
        old = whole.index_select(0, index)
        new = torch.empty_like(old)
        terms = self._terms(holding)
        for piece in chunk_slices(len(old)):
            coarse, fine = terms(piece, old[piece])
            holder_weight = torch.full_like(coarse, weight)
            new[piece] = average(old[piece], coarse.add_(fine), holder_weight, weight, rule)
        return whole.scatter_(0, index, new)

    def _terms(self, holding: Holding) -> Callable[[slice, Tensor], tuple[Tensor, Tensor]]:
        """What gives the coarse and the fine sum of some values, and the old ones."""
        weights = [weight for _, weight in holding.updates]
        new = [self._layout.join(tensors) for tensors, _ in holding.updates]
        sums = None
        if holding.is_folded:
            sums = torch.cat([holding.sums[name] for name in self._layout.shapes], 1)

        def terms(piece: slice, old: Tensor) -> tuple[Tensor, Tensor]:
            if not new:
                assert sums is not None
                return sums[0, piece].clone(), sums[1, piece]
            coarse, fine = exact_terms([values[piece] for values in new], old, None, weights)
            if sums is not None:
                coarse += sums[0, piece]
                fine += sums[1, piece]
            return coarse, fine

        return terms

    def count_covered(self, indices: Sequence[Tensor]) -> int:
        """How many of their values are in at least one of the indices."""
        if len(indices) == 1:
            return len(indices[0])
        if self._covered_count is not None:
            return self._covered_count
        mask = torch.zeros(self._layout.size)
        for index in indices:
            mask.scatter_(0, index, 1.0)
        return int(mask.count_nonzero())
