"""One streaming accumulator whose sums have no order.

    delta_j = sum_i a_i m_i[j] (w_i[j] - w[j]) / D_j,
    D_j = sum_i a_i (``fill_in``, the paper) or sum_i a_i m_i[j] (``selective``, HeteroFL).

Floating-point sums depend on the order of their terms; ours do not (see `exact`). So updates may
arrive in any order, from any number of workers, and the result has the same bits.

Updates wait in the shapes of their own cuts (see `waiting`); they meet when they are merged, one
tensor after another, some rows at a time (see `sums`). So beside the model before and after the
round there is what clients hold of it, up to the size of the model once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from submodel.algorithm.merge.exact import LARGEST_WEIGHT_SUM, LargeStatistics, misfit, unsound
from submodel.algorithm.merge.exchange import (
    Exchange,
    SharedBytes,
    describe_updates,
    fill,
    read_updates,
)
from submodel.algorithm.merge.rules import MergeRule, average
from submodel.algorithm.merge.sums import FLAT, TensorSums, flat_holdings, run_jobs
from submodel.algorithm.merge.waiting import WaitingUpdates
from submodel.model.cut import Cut, LastCut, Tensors, cut_digest, small_layout


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
        self._small = small_layout(whole)
        self._covered: dict[str, int] = {}  # counted when a tensor was merged
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
        digests = [cut_digest(holding.cut) for holding in self._waiting.holdings]
        is_alone = len(digests) == 1 and self._waiting.more is None
        everyones = exchange.gather(digests[0] if is_alone else None)
        self._have_one_cut = everyones[0] is not None and len(set(everyones)) == 1

    def offer(self) -> dict[str, Any] | None:
        """What other processes must know to merge what is here; None where only sums can travel."""
        if self._waiting.more is not None:
            return None
        self._waiting.fold()
        description = describe_updates(self._whole, self._waiting.holdings)
        return description and {"weight": self.weight, "count": self.count, **description}

    def hand_over(self, offer: Mapping[str, Any], memory: SharedBytes, start: int) -> None:
        """Put what was offered into memory that other processes see, and keep it nowhere else.

        Args:
            offer: what `offer` said.
            memory: of this process.
            start: the first byte.
        """
        fill(self._whole, self._waiting.holdings, offer["parcels"], memory, start)
        self._waiting.by_cut.clear()

    def adopt(
        self, offers: Sequence[tuple[Mapping[str, Any], SharedBytes, int]], exchange: Exchange
    ) -> None:
        """Take everyone's updates for one's own.

        Args:
            offers: of every process, what it offered, in which memory, and where it begins.
            exchange: with the other processes.
        """
        waiting = self._waiting
        waiting.weight = sum(offer["weight"] for offer, *_ in offers)
        waiting.count = sum(offer["count"] for offer, *_ in offers)
        parcels = [(offer["parcels"], memory, start) for offer, memory, start in offers]
        waiting.by_cut = read_updates(self._whole, parcels)
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
            self._waiting.more.add_weights(name, weight)
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
        count, small = 0, self._small.shapes.keys()
        if FLAT in self._covered and names >= small:
            count, names = self._covered[FLAT], names - small
        for name in names:
            known_count = self._covered.get(name)
            count += int(self._coverage_mask(name).sum()) if known_count is None else known_count
        return count

    def coverage_masks(self) -> Mapping[str, Tensor]:
        """Which weights at least one client held; computed when a tensor's is looked up."""
        return _LazyMasks(list(self._whole), self._coverage_mask)

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
        holdings, weight, exchange = self._waiting.holdings, self.weight, self._exchange
        if not writes and exchange is None:
            tensors = dict(self._whole)  # another process merges what all have
        elif self._waiting.more is None and exchange is None:
            tensors = self._merge_small(in_place)
        sums = TensorSums(
            self._whole,
            holdings,
            weight,
            self.count,
            self._rule,
            in_place,
            writes,
            self._waiting.more,
            exchange is not None,
            self._have_one_cut,
            self._covered,
        )
        names = [name for name in self._whole if name not in tensors]
        jobs = (job for name in names for job in sums.jobs(name, tensors))
        run_jobs(jobs, exchange)
        for name, change in self._large.changes().items():
            holder_weight = self._holder_weight(name)
            if writes:
                rest = tensors[name].double()
                new = average(rest, change, holder_weight, self.weight, self._rule)
                tensors[name].copy_(new)
        if in_place and (exchange := self._others or self._exchange) is not None:
            exchange.gather(None)  # whoever reads it from here on reads what is merged
            exchange.release()
        return {name: tensors.get(name, old) for name, old in self._whole.items()}

    def _merge_small(self, in_place: bool) -> dict[str, Tensor]:
        """The small tensors, merged as one; none where each is merged like others."""
        holdings = self._waiting.holdings
        if (vectors := flat_holdings(self._small, holdings)) is None:
            return {}
        whole = {FLAT: self._small.join(self._whole)}
        sums = TensorSums(
            whole,
            vectors,
            self.weight,
            self.count,
            self._rule,
            in_place=True,
            covered=self._covered,
        )
        run_jobs(sums.jobs(FLAT, whole), None)
        tensors = {}
        for name, tensor in self._small.split(whole[FLAT]).items():
            tensors[name] = self._whole[name].copy_(tensor) if in_place else tensor.clone()
            for holding in holdings if in_place else ():
                holding.forget(name)
        return tensors


class _LazyMasks(Mapping[str, Tensor]):
    """Masks that are made when they are looked up, as few server steps do."""

    def __init__(self, names: Sequence[str], make: Callable[[str], Tensor]) -> None:
        self._names, self._make = names, make

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def coverage(accumulators: Sequence[Accumulator]) -> float:
    """The share of the weights that at least one client held, whichever sums it went into."""
    (first, *others) = accumulators
    total = sum(tensor.numel() for tensor in first.everything.values())
    if not others:
        return first.count_covered(first.everything.keys()) / total
    masks = [one.coverage_masks() for one in accumulators]
    unions = (reduce(torch.logical_or, [one[name] for one in masks]) for name in first.everything)
    return sum(int(union.sum()) for union in unions) / total
