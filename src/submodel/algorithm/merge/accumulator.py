"""One streaming accumulator whose sums have no order.

    delta_j = sum_i a_i m_i[j] (w_i[j] - w[j]) / D_j,
    D_j = sum_i a_i (``fill_in``, the paper) or sum_i a_i m_i[j] (``selective``, HeteroFL).

Floating-point sums depend on the order of their terms; ours do not (see `terms`). So updates may
arrive in any order, from any number of workers, and the result has the same bits.

Updates wait in the shapes of their own cuts (see `waiting`); they meet when they are merged, one
tensor after another, some rows at a time (see `one_tensor`). So beside the model before and after
the round there is what clients hold of it, up to the size of the model once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from submodel.algorithm.merge.blocks import blocks_of
from submodel.algorithm.merge.covering import LazyMasks, count_union
from submodel.algorithm.merge.exchange import Exchange, run_jobs
from submodel.algorithm.merge.guards import misfit, unsound
from submodel.algorithm.merge.large import LargeStatistics
from submodel.algorithm.merge.one_tensor import MergePlan
from submodel.algorithm.merge.parcels import SharedBytes
from submodel.algorithm.merge.rules import MergeRule, average
from submodel.algorithm.merge.small import SmallTensors
from submodel.algorithm.merge.waiting import WaitingUpdates, as_rows
from submodel.model.cut import Cut, LastCut, Tensors

LARGEST_WEIGHT_SUM = 2.0**14
"""The most that the client weights of one round may sum to, and the most clients it may have."""
_WEIGHT_STEP = 2.0**-20


def exact_weight(weight: float) -> float:
    """A client weight rounded to a multiple of 2^-20, so that sums of weights are exact.

    >>> exact_weight(1.0), exact_weight(0.1) * 2**20
    (1.0, 104858.0)
    """
    return max(1, round(weight / _WEIGHT_STEP)) * _WEIGHT_STEP


class Accumulator:
    """The sums of one round, coordinate by coordinate; the order of additions leaves no trace.

    Args:
        whole: the global tensors that come back from clients.
        rule: what sums are divided by.
    """

    def __init__(self, whole: Tensors, rule: MergeRule) -> None:
        self._whole = whole
        self._rule = rule
        self._waiting = WaitingUpdates(whole)
        self._exchange: Exchange | None = None
        self._others: Exchange | None = None  # those whose updates are here, too
        self._have_one_cut = False  # all processes the same
        self._small = SmallTensors(whole)
        self._shapes = LastCut(lambda cut: {n: cut.shape(n, t.shape) for n, t in whole.items()})
        self._statistics: AbstractSet[str] = frozenset()
        self._large = LargeStatistics(whole, self._statistics)
        self.notes: dict[str, float] = {}  # what `merge` has to tell, for the round's metrics

    def expect_statistics(self, names: AbstractSet[str]) -> None:
        """Before the first update: these tensors are no weights, and bounded by another scale.

        Args:
            names: of buffers, which have the scale of the data.
        """
        self._statistics = names
        self._large = LargeStatistics(self._whole, names)

    def refusal(self, cut: Cut, tensors: Tensors, weight: float = 1.0) -> str | None:
        """Why an update must not be merged, in words; None if it may."""
        reason = self.weight_refusal(weight) or misfit(self._shapes(cut), tensors)
        return reason or self._unsound(cut, tensors)

    def _unsound(self, cut: Cut, tensors: Tensors) -> str | None:
        """Which tensor of an update holds a value that no sane model has; None if none does."""
        everything = self.everything
        return unsound(tensors, self._statistics, lambda name: cut.part(name, everything[name]))

    def weight_refusal(self, weight: float) -> str | None:
        """Why nobody of such a weight can be added any more; None if one can."""
        if max(self.weight + weight, self.count + 1) > LARGEST_WEIGHT_SUM:
            return f"a round takes clients up to a total weight of {LARGEST_WEIGHT_SUM:g}"
        return None

    def add(self, cut: Cut, tensors: Tensors, weight: float = 1.0) -> None:
        """Add one client's tensors, as they came back; they are kept, and must not change."""
        self._waiting.add(cut, self._large.take(cut, tensors, weight), weight)

    def join(self, exchange: Exchange) -> None:
        """From here on the sums are those of all processes; each must ask the same of them.

        Args:
            exchange: with the other processes.
        """
        counts = torch.tensor([self.weight, self.count], dtype=torch.float64)
        exchange.add(counts)
        self._waiting.weight, self._waiting.count = float(counts[0]), int(counts[1])
        self._exchange = exchange
        self._large.join(exchange)
        digests = [holding.digest for holding in self._waiting.holdings]
        is_alone = len(digests) == 1 and self._waiting.more is None
        everyones = exchange.gather(digests[0] if is_alone else None)
        self._have_one_cut = everyones[0] is not None and len(set(everyones)) == 1

    def offer(self) -> dict[str, Any] | None:
        """What other processes must know to merge what is here; None where only sums can travel."""
        return self._waiting.offer()

    def hand_over(self, offer: Mapping[str, Any], memory: SharedBytes, start: int) -> None:
        """Put what was offered into memory that other processes see, and keep it nowhere else.

        Args:
            offer: what `offer` said.
            memory: of this process.
            start: the first byte.
        """
        self._waiting.hand_over(offer, memory, start)

    def adopt(
        self, offers: Sequence[tuple[Mapping[str, Any], SharedBytes, int]], exchange: Exchange
    ) -> None:
        """Take everyone's updates for one's own.

        Args:
            offers: of every process, what it offered, in which memory, and where it begins.
            exchange: with the other processes.
        """
        self._waiting.adopt(offers)
        self._large.join(exchange)
        self._others = exchange

    @property
    def size(self) -> int:
        """How many bytes updates take that wait to be merged."""
        return self._waiting.size

    @property
    def count(self) -> int:
        """How many updates were added."""
        return self._waiting.count

    @property
    def weight(self) -> float:
        """Their total weight."""
        return self._waiting.weight

    def holder_weights(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The weight of the clients who held each weight of these tensors."""
        return {name: self._holder_weight(name) for name in names}

    def _holder_weight(self, name: str) -> Tensor:
        whole = self._whole[name]
        weight = torch.zeros(whole.shape, dtype=torch.float64, device=whole.device)
        for holding in self._waiting.holdings:
            holding.cut.add(name, weight, holding.weight)
        if self._waiting.more is not None:
            rows = as_rows(weight)
            for start, stop in blocks_of(rows.shape):
                rows[start:stop] += self._waiting.more.read(name, start, rows[start:stop].shape)[2]
        if self._exchange is not None:
            self._exchange.add(weight)
        return weight

    @property
    def everything(self) -> Tensors:
        """The global tensors that come back from clients."""
        return self._whole

    def count_covered(self, names: AbstractSet[str]) -> int:
        """How many weights of these tensors at least one client held.

        Args:
            names: of the tensors.
        """
        count = 0
        if (indices := self._small_indices()) is not None and names >= self._small.names:
            count = self._small.count_covered(indices)
            names = names - self._small.names
        cuts = [holding.cut for holding in self._waiting.holdings]
        is_known = self._waiting.more is None and (self._exchange is None or self._have_one_cut)
        for name in names:
            shape = self._whole[name].shape
            union_count = count_union(cuts, name, shape) if is_known else None
            count += int(self._coverage_mask(name).sum()) if union_count is None else union_count
        return count

    def _small_indices(self) -> list[Tensor] | None:
        """Where clients hold values of small tensors; None where these are merged like others."""
        holdings = self._waiting.holdings
        if self._waiting.more is not None or self._exchange is not None or not holdings:
            return None
        return self._small.indices(holdings)

    def coverage_masks(self) -> Mapping[str, Tensor]:
        """Which weights at least one client held; of every tensor when it is asked for."""
        return LazyMasks(list(self._whole), self._coverage_mask)

    def _coverage_mask(self, name: str) -> Tensor:
        if self._waiting.more is not None or (
            self._exchange is not None and not self._have_one_cut
        ):
            return self._holder_weight(name) > 0
        whole = self._whole[name]
        mask = torch.zeros(whole.shape, dtype=torch.bool, device=whole.device)
        for holding in self._waiting.holdings:
            holding.cut.put(name, mask, True)
        return mask

    @property
    def can_overwrite(self) -> bool:
        """Whether `merge` needs nothing of a tensor once it is merged."""
        return True

    def merge(self, *, in_place: bool = False, writes: bool = True) -> dict[str, Tensor]:
        """The new tensors; what nobody held, or nobody moved, keeps its bits.

        Args:
            in_place: write them over the old ones, and forget updates on the way; once.
            writes: whether this process does so; False: another one does, in the same memory.
        """
        tensors: dict[str, Tensor] = {}
        if not writes and self._exchange is None:
            tensors = dict(self._whole)  # another process merges what all have
        elif (indices := self._small_indices()) is not None:
            holdings = self._waiting.holdings
            small = self._small.merge(holdings, indices, self.weight, self._rule)
            for name, tensor in small.items():
                old = self._whole[name]
                tensors[name] = old.copy_(tensor) if in_place else tensor.clone()
                for holding in holdings if in_place else ():
                    holding.forget(name)
        plan = MergePlan(
            self._whole,
            self._waiting.holdings,
            self._waiting.more,
            self.weight,
            self._rule,
            is_shared=self._exchange is not None,
            have_one_cut=self._have_one_cut,
            in_place=in_place,
        )
        others = [name for name in self._whole if name not in tensors]
        jobs = (job for name in others for job in plan.jobs(name, tensors, writes=writes))
        run_jobs(jobs, self._exchange)
        for name, change in self._large.changes().items():
            holder_weight = self._holder_weight(name)
            if writes:
                rest = tensors[name].double()
                new = average(rest, change, holder_weight, self.weight, self._rule)
                tensors[name].copy_(new)
        if in_place and (exchange := self._others or self._exchange) is not None:
            exchange.gather(None)  # whoever reads it from here on reads what is merged
            exchange.release()
        return {name: tensors[name] for name in self._whole}


def coverage(accumulators: Sequence[Accumulator]) -> float:
    """The share of the weights that at least one client held, whichever sums it went into."""
    (first, *others) = accumulators
    total = sum(tensor.numel() for tensor in first.everything.values())
    if not others:
        return first.count_covered(first.everything.keys()) / total
    masks = [one.coverage_masks() for one in accumulators]
    unions = (reduce(torch.logical_or, [one[name] for one in masks]) for name in first.everything)
    return sum(int(union.sum()) for union in unions) / total
