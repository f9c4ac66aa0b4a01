"""One streaming accumulator whose sums have no order.

    delta_j = sum_i a_i m_i[j] (w_i[j] - w[j]) / D_j,
    D_j = sum_i a_i (``fill_in``, the paper) or sum_i a_i m_i[j] (``selective``, HeteroFL).

Floating-point sums depend on the order of their terms; ours do not (see `exact`). So updates may
arrive in any order, from any number of workers, and the result has the same bits.

Updates wait in the shapes of their own cuts (see `waiting`); they meet when they are merged, some
rows of one tensor at a time. So beside the model before and after the round there is what clients
hold of it, up to the size of the model once. What all clients hold alike (in most rounds all of it)
is taken out of the tensor first and merged as if it were all there is. Of a small model calls take
the time, not arithmetic: its small tensors are merged as one vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from submodel.algorithm.merge.exact import LARGEST_WEIGHT_SUM, LargeStatistics, misfit, unsound
from submodel.algorithm.merge.rules import MergeRule, average
from submodel.algorithm.merge.waiting import (
    Exchange,
    Holding,
    Places,
    Share,
    SharedBytes,
    WholeSums,
    as_rows,
    blocks_of,
    describe_updates,
    fill,
    read_updates,
    tensor_bytes,
)
from submodel.core.heap import large_blocks_apart
from submodel.model.cut import (
    Cut,
    FlatLayout,
    LastCut,
    PlannedCut,
    Tensors,
    cut_digest,
    small_layout,
)

_LEAST_WEIGHT = 2.0**-60  # no client has less
_LEAST_WAITING = 1 << 24  # bytes that updates may take before they are added up, in any model
_AT_ONCE = 1 << 20  # values that are exchanged together
_MOST_HELD = 0.8  # of a dimension: where more is held, what is left out does not pay
_FEW = 6  # cuts, of which all sets are counted
FLAT = ""
"""The name of the vector of all small tensors."""


SumJob = tuple[Tensor, Callable[[Tensor], None]]
"""Sums of this process in float64, and what takes the sums of all, in the same shape."""


def run_jobs(jobs: Iterable[SumJob], exchange: Exchange | None) -> None:
    """Finish every job, in their order."""
    waiting: list[SumJob] = []
    values = 0
    for sums, finish in jobs:
        if exchange is None:
            finish(sums)
            continue
        waiting.append((sums, finish))
        values += sums.numel()
        if values >= _AT_ONCE:
            _finish_together(waiting, exchange)
            waiting, values = [], 0
    if exchange is not None and waiting:
        _finish_together(waiting, exchange)


def _finish_together(jobs: list[SumJob], exchange: Exchange) -> None:
    """One exchange for all of them."""
    together = torch.cat([sums.reshape(-1) for sums, _ in jobs])
    exchange.add(together)
    parts = torch.split(together, [sums.numel() for sums, _ in jobs])
    for (sums, finish), part in zip(jobs, parts, strict=True):
        finish(part.view(sums.shape))


def shares_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors lie in one storage."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def flat_holdings(layout: FlatLayout, holdings: Sequence[Holding]) -> list[Holding] | None:
    """What clients hold of the vector of small tensors; None where positions cannot tell it."""
    vectors = []
    for holding in holdings:
        if not layout.size or (index := holding.cut.flat_index(layout)) is None:
            return None
        cut = PlannedCut({FLAT: ((0, index.numpy()),)})
        updates = [({FLAT: layout.join(tensors)}, weight) for tensors, weight in holding.updates]
        sums = [holding.sums[name] for name in layout.shapes] if holding.sums else []
        flat_sums = {FLAT: torch.cat(sums, 1)} if sums else {}
        vectors.append(Holding(cut, updates, flat_sums, holding.weight))
    return vectors or None


class Accumulator:
    """The sums of one round, coordinate by coordinate; the order of additions leaves no trace.

    Args:
        whole: the global tensors that come back from clients.
        rule: what sums are divided by.
    """

    can_overwrite = True
    """Whether `merge` needs nothing of a tensor once it is merged."""

    def __init__(self, whole: Tensors, rule: MergeRule) -> None:
        self._whole = whole
        self._rule = rule
        self.weight, self.count = 0.0, 0  # of all updates that were added
        self._by_cut: dict[Hashable, Holding] = {}  # the clients whose updates wait
        self._bytes, self._most_bytes = 0, max(_LEAST_WAITING, tensor_bytes(whole))
        self._more: WholeSums | None = None  # of those who wait no longer
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

        They are buffers, which have the scale of the data.
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
        tensors = self._large.take(cut, tensors, weight)
        self.weight += weight
        self.count += 1
        self._by_cut.setdefault(cut.same_key, Holding(cut)).add(tensors, weight)
        self._bytes += tensor_bytes(tensors)
        if self._bytes > self._most_bytes:
            self._make_room()

    @property
    def _holdings(self) -> list[Holding]:
        """The clients who wait, by what they hold."""
        return list(self._by_cut.values())

    def _make_room(self) -> None:
        """Add up what waits: cut by cut where that is enough, else in the shape of the model."""
        self._fold()
        self._bytes = self.size
        if 2 * self._bytes > self._most_bytes:
            self._more = self._more or WholeSums(self._whole)
            self._more.add(self._holdings)
            self._by_cut.clear()
            self._bytes = 0

    def _fold(self) -> None:
        """Keep sums instead of updates where they take less memory."""
        for holding in self._holdings:
            holding.fold(self._whole)

    def join(self, exchange: Exchange) -> None:
        """From here on the sums are those of all processes; each must ask the same of them."""
        counts = torch.tensor([self.weight, self.count], dtype=torch.float64)
        exchange.add(counts)
        self.weight, self.count = float(counts[0]), int(counts[1])
        self._exchange = exchange
        self._large.join(exchange)
        digests = [cut_digest(holding.cut) for holding in self._holdings]
        is_alone = len(digests) == 1 and self._more is None
        everyones = exchange.gather(digests[0] if is_alone else None)
        self._have_one_cut = everyones[0] is not None and len(set(everyones)) == 1

    def offer(self) -> dict[str, Any] | None:
        """What other processes must know to merge what is here; None where only sums can travel."""
        if self._more is not None:
            return None
        self._fold()
        description = describe_updates(self._whole, self._holdings)
        return description and {"weight": self.weight, "count": self.count, **description}

    def hand_over(self, offer: Mapping[str, Any], memory: SharedBytes, start: int) -> None:
        """Put what was offered into memory that other processes see, and keep it nowhere else."""
        fill(self._whole, self._holdings, offer["parcels"], memory, start)
        self._by_cut.clear()

    def adopt(
        self, offers: Sequence[tuple[Mapping[str, Any], SharedBytes, int]], exchange: Exchange
    ) -> None:
        """Take everyone's updates for one's own.

        Of every process there is what it offered, in which memory, and where it begins.
        """
        self.weight = sum(offer["weight"] for offer, *_ in offers)
        self.count = sum(offer["count"] for offer, *_ in offers)
        parcels = [(offer["parcels"], memory, start) for offer, memory, start in offers]
        self._by_cut = read_updates(self._whole, parcels)
        self._large.join(exchange)
        self._others = exchange

    @property
    def size(self) -> int:
        """How many bytes updates take that wait to be merged."""
        return sum(holding.size for holding in self._holdings)

    def holder_weights(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The weight of the clients who held each weight of these tensors."""
        return {name: self._holder_weight(name) for name in names}

    def _holder_weight(self, name: str) -> Tensor:
        whole = self._whole[name]
        weight = torch.zeros(whole.shape, dtype=torch.float64, device=whole.device)
        for holding in self._holdings:
            holding.cut.add(name, weight, holding.weight)
        if self._more is not None:
            self._more.add_weights(name, weight)
        if self._exchange is not None:
            self._exchange.add(weight)
        return weight

    @property
    def everything(self) -> Tensors:
        """The global tensors that come back from clients."""
        return self._whole

    def count_covered(self, names: AbstractSet[str]) -> int:
        """How many weights of these tensors at least one client held."""
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
        if self._more is not None or (self._exchange is not None and not self._have_one_cut):
            return self._holder_weight(name) > 0
        whole = self._whole[name]
        mask = torch.zeros(whole.shape, dtype=torch.bool, device=whole.device)
        for holding in self._holdings:
            holding.cut.put(name, mask, True)
        return mask

    def merge(self, *, in_place: bool = False, writes: bool = True) -> dict[str, Tensor]:
        """The new tensors; what nobody held, or nobody moved, keeps its bits.

        Args:
            in_place: write them over the old ones, and forget updates on the way; once.
            writes: whether this process does so; False: another one does, in the same memory.
        """
        tensors: dict[str, Tensor] = {}
        holdings, exchange = self._holdings, self._exchange
        if not writes and exchange is None:
            tensors = dict(self._whole)  # another process merges what all have
        elif self._more is None and exchange is None:
            tensors = self._merge_small(in_place)
        names = [name for name in self._whole if name not in tensors]
        jobs = (
            job
            for name in names
            for job in self._jobs(name, tensors, self._whole, holdings, in_place, writes)
        )
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
        holdings = self._holdings
        if (vectors := flat_holdings(self._small, holdings)) is None:
            return {}
        whole = {FLAT: self._small.join(self._whole)}
        run_jobs(self._jobs(FLAT, whole, whole, vectors, in_place=True, writes=True), None)
        tensors = {}
        for name, tensor in self._small.split(whole[FLAT]).items():
            tensors[name] = self._whole[name].copy_(tensor) if in_place else tensor.clone()
            for holding in holdings if in_place else ():
                holding.forget(name)
        return tensors

    def _jobs(
        self,
        name: str,
        tensors: dict[str, Tensor],
        wholes: Tensors,
        holdings: Sequence[Holding],
        in_place: bool,
        writes: bool,
    ) -> Iterator[SumJob]:
        """What merges one of the ``wholes`` into ``tensors``, of what clients hold of them."""
        whole = as_rows(wholes[name])
        held, places = self._places(name, wholes[name].shape, holdings)
        hull = PlannedCut({name: tuple(held.items())})
        part = hull.part(name, whole)
        old = part.reshape(len(part), math.prod(part.shape[1:]))
        is_same = self._have_same(name, places, holdings)
        shares = [
            Share(h, name, p, part.shape, self.count) for h, p in zip(holdings, places, strict=True)
        ]
        new = old  # a block is read before it is written
        if writes and not in_place and shares_memory(old, whole):
            with large_blocks_apart():  # or what is made on the way leaves holes between them
                new = torch.empty(old.shape, dtype=old.dtype, device=old.device)
        known_count = (
            old.numel() if is_same else self._count_held(name, places, part.shape, holdings)
        )
        self._covered[name] = known_count or 0
        is_shared = self._exchange is not None or self._more is not None

        def finish(sums: Tensor, start: int) -> None:
            fine, coarse, *others = sums
            weight = others[0] if others else torch.full_like(fine, self.weight)
            if not is_same:
                if known_count is None:
                    self._covered[name] += int(weight.count_nonzero())
                weight.clamp_(min=_LEAST_WEIGHT)  # where nobody holds a value, it did not change
            if not writes:
                return
            if is_shared or any(share.has_coarse for share in shares):
                fine += coarse
            block = old[start : start + len(fine)]
            new[start : start + len(fine)] = average(
                block, fine, weight, self.weight, self._rule, is_held=True
            )

        room: Tensor | None = None
        for start, stop in blocks_of(old.shape):
            block = old[start:stop]
            shape = 2 if is_same else 3, *block.shape
            if room is None or self._exchange is not None:  # those that wait keep theirs
                room = torch.empty(math.prod(shape), dtype=torch.float64, device=old.device)
            sums = room[: math.prod(shape)].zero_().view(shape)
            is_held = [share.add(sums, block, start) for share in shares]
            if self._more is not None:
                sums += self._more.read(name, start, block.shape)
            elif self._exchange is None and not any(is_held):
                new[start:stop] = block
                continue
            yield sums, lambda sums, start=start: finish(sums, start)  # type: ignore[misc]

        columns = [(d, positions) for d, positions in held.items() if d]

        def end(_: Tensor) -> None:
            target = wholes[name]
            if writes and not in_place:
                target = whole.clone(memory_format=torch.contiguous_format) if held else new
                target = target.view(wholes[name].shape)
            if writes and not shares_memory(new, target):
                rows = held.get(0, np.arange(len(new)))
                for start, stop in blocks_of(old.shape):  # positions of a block stay in the cache
                    block = PlannedCut({name: ((0, rows[start:stop]), *columns)})
                    block.put(name, as_rows(target), new[start:stop].view(-1, *part.shape[1:]))
            tensors[name] = target

        yield torch.empty(0, dtype=torch.float64), end
        for holding in holdings if in_place else ():
            holding.forget(name)

    def _places(
        self, name: str, shape: Sequence[int], holdings: Sequence[Holding]
    ) -> tuple[Places, list[Places]]:
        """The positions that somebody holds, and where each has its own among these.

        Along a dimension of which somebody holds all, or all together most, there is no choice.
        """
        places = [dict(holding.cut.places(name)) for holding in holdings]
        held: Places = {}
        if self._more is not None or (self._exchange is not None and not self._have_one_cut):
            return held, places
        for d in set.intersection(*(set(one) for one in places)) if places else ():
            first, *others = (one[d] for one in places)
            if all(np.array_equal(first, other) for other in others):
                held[d] = first
                for one in places:
                    del one[d]
                continue
            is_held = np.zeros(shape[d], np.bool_)
            for one in places:
                is_held[one[d]] = True
            if np.count_nonzero(is_held) <= _MOST_HELD * shape[d]:
                held[d], ranks = np.flatnonzero(is_held), np.cumsum(is_held) - 1
                for one in places:
                    one[d] = ranks[one[d]]
        return held, places

    def _count_held(
        self,
        name: str,
        places: Sequence[Places],
        shape: Sequence[int],
        holdings: Sequence[Holding],
    ) -> int | None:
        """How many values somebody holds, by rows that the same clients hold; None: not told so."""
        if self._more is not None or self._exchange is not None or not 0 < len(places) <= _FEW:
            return None
        if any(h.cut.mask(name) is not None for h in holdings):
            return None
        codes = np.zeros(shape[0], np.int64)
        columns = np.zeros((len(places), *shape[1:]), np.bool_)
        for number, one in enumerate(places):
            codes[one.get(0, slice(None))] |= 1 << number
            kept = (one.get(d, np.arange(n)) for d, n in enumerate(shape[1:], 1))
            where: tuple[Any, ...] = number, *np.ix_(*kept)
            columns[where] = True
        row_counts = np.bincount(codes, minlength=1 << len(places))
        numbers = np.arange(len(places))
        return sum(
            int(count) * int(np.count_nonzero(columns[code >> numbers & 1 > 0].any(0)))
            for code, count in enumerate(row_counts)
            if count
        )

    def _have_same(self, name: str, places: Sequence[Places], holdings: Sequence[Holding]) -> bool:
        """Whether all hold the same, where that is known: these positions and no mask."""
        if (
            self._more is not None
            or not places
            or (self._exchange is not None and not self._have_one_cut)
        ):
            return False
        return not any(places) and all(h.cut.mask(name) is None for h in holdings)


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
