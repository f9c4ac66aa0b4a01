"""Sums of values that are too large for those of weights: statistics of raw features.

Sums are exact as long as values are below 2^14 (see `terms`). Where a statistic is larger, or was,
its term is divided by 2^46 and added up here, just as exactly, in the shape of the global tensor;
the sums of weights take the value as unchanged. Both are put together when they are merged.
"""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet

import torch
from torch import Tensor

from submodel.algorithm.merge.exchange import Exchange
from submodel.algorithm.merge.guards import LARGEST_STATISTIC, LARGEST_VALUE
from submodel.algorithm.merge.terms import client_term, split_term
from submodel.model.cut import Cut, Tensors

_SCALE = LARGEST_STATISTIC / LARGEST_VALUE


class LargeStatistics:
    """The large values of a round's updates.

    Args:
        whole: the global tensors.
        names: of the statistics among them.
    """

    def __init__(self, whole: Tensors, names: AbstractSet[str]) -> None:
        self._whole = {name: tensor for name, tensor in whole.items() if name in names}
        self._were_large = not _are_small(self._whole)
        self._sums: dict[str, Tensor] = {}  # coarse and fine

    def take(self, cut: Cut, tensors: Tensors, weight: float) -> Tensors:
        """The tensors of an update without what is added here: there they are as they were."""
        updated = {name: tensors[name] for name in self._whole}
        if not self._were_large and _are_small(updated):
            return tensors
        taken = {}
        for name, whole in self._whole.items():
            new, old = tensors[name], cut.part(name, whole)
            is_large = (new.abs() > LARGEST_VALUE) | (old.abs() > LARGEST_VALUE)
            if torch.equal(new, old) or not bool(is_large.any()):
                continue
            term = client_term(new, old, is_large, weight)
            term /= _SCALE
            sums = self._sums.setdefault(
                name, torch.zeros((2, *whole.shape), dtype=torch.float64, device=whole.device)
            )
            for total, part in zip(sums, split_term(term), strict=True):
                cut.add(name, total, part)
            taken[name] = torch.where(is_large, old, new)
        return {**tensors, **taken}

    def join(self, exchange: Exchange) -> None:
        """From here on the sums are those of all processes."""
        if not self._whole:
            return
        words = exchange.gather(json.dumps(sorted(self._sums)))
        for name in sorted({name for word in words for name in json.loads(word or "[]")}):
            shape = (2, *self._whole[name].shape)
            sums = self._sums.get(name, torch.zeros(shape, dtype=torch.float64))
            exchange.add(sums)
            self._sums[name] = sums

    def changes(self) -> dict[str, Tensor]:
        """The sums of the large terms, by name of the tensor."""
        return {name: (coarse + fine) * _SCALE for name, (coarse, fine) in self._sums.items()}


def _are_small(tensors: Tensors) -> bool:
    """Whether no value is large, as no norm is."""
    norms = torch._foreach_norm(list(tensors.values())) if tensors else []
    return all(norm <= LARGEST_VALUE for norm in norms)
