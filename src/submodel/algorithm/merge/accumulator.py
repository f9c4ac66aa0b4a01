"""An accumulator of updates whose sums do not depend on their order.

    delta_j = sum_i a_i m_i[j] (w_i[j] - w[j]) / D_j,
    D_j = sum_i a_i (``fill_in``, the paper) or sum_i a_i m_i[j] (``selective``, HeteroFL).

Floating-point sums depend on the order of their terms; these do not (see `exact`). So updates may
arrive in any order, from any number of workers, and the result has the same bits.

Updates wait in the shapes of their own cuts (see `waiting`) and are combined in the merge, some
rows of one tensor at a time. So memory holds the model before and after the round, and updates of
up to the size of the model. The part that all clients hold (in most rounds all that any holds) is
extracted from a tensor first and merged as a whole tensor. The time of a small model goes into
calls, not arithmetic, so its small tensors are merged as one vector.
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
    CutSums,
    CutUpdates,
    Exchange,
    Places,
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

_LEAST_WEIGHT = 2.0**-60  # below the weight of any client
_LEAST_WAITING = 1 << 24  # bytes of updates that may wait in any model, before they are summed
_AT_ONCE = 1 << 20  # number of values per exchange
_MOST_HELD = 0.8  # of a dimension; if more is held, extracting the held part does not pay
_FEW = 6  # cuts whose overlaps are counted exactly
FLAT = ""
"""Name of the vector of all small tensors."""


SumJob = tuple[Tensor, Callable[[Tensor], None]]
"""Sums of this process in float64, and a function of the sums over all processes."""


def run_jobs(jobs: Iterable[SumJob], exchange: Exchange | None) -> None:
    """Finish every job, in order."""
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
    together = torch.cat([sums.reshape(-1) for sums, _ in jobs])
    exchange.add(together)
    parts = torch.split(together, [sums.numel() for sums, _ in jobs])
    for (sums, finish), part in zip(jobs, parts, strict=True):
        finish(part.view(sums.shape))


def shares_memory(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors share their storage."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def flat_updates(layout: FlatLayout, groups: Sequence[CutUpdates]) -> list[CutUpdates] | None:
    """Return the updates of the vector of small tensors; None if a cut has no positions in it."""
    vectors = []
    for group in groups:
        if not layout.size or (index := group.cut.flat_index(layout)) is None:
            return None
        cut = PlannedCut({FLAT: ((0, index.numpy()),)})
        updates = [({FLAT: layout.join(tensors)}, weight) for tensors, weight in group.updates]
        sums = [group.sums[name] for name in layout.shapes] if group.sums else []
        flat_sums = {FLAT: torch.cat(sums, 1)} if sums else {}
        vectors.append(CutUpdates(cut, updates, flat_sums, group.weight))
    return vectors or None


class Accumulator:
    """The sums of one round, coordinate by coordinate, independent of the order of additions.

    Args:
        whole: the global tensors that come back from clients.
        rule: the merge rule, which defines the divisor.
    """

    can_overwrite = True
    """Whether `merge` needs no tensor once it is merged."""

    def __init__(self, whole: Tensors, rule: MergeRule) -> None:
        self._whole = whole
        self._rule = rule
        self.weight, self.count = 0.0, 0  # of all added updates
        self._by_cut: dict[Hashable, CutUpdates] = {}  # waiting updates
        self._bytes, self._most_bytes = 0, max(_LEAST_WAITING, tensor_bytes(whole))
        self._whole_sums: WholeSums | None = None  # of updates that wait no longer
        self._exchange: Exchange | None = None
        self._adopted_from: Exchange | None = None  # of processes whose updates were adopted
        self._have_one_cut = False  # whether all processes have the same cut alone
        self._small = small_layout(whole)
        self._covered: dict[str, int] = {}  # covered values, counted when a tensor was merged
        self._shapes = LastCut(lambda cut: {n: cut.shape(n, t.shape) for n, t in whole.items()})
        self._statistics: AbstractSet[str] = frozenset()
        self._large = LargeStatistics(whole, self._statistics)
        self.notes: dict[str, float] = {}  # measurements of `merge`, for the round's metrics

    def expect_statistics(self, names: AbstractSet[str]) -> None:
        """Declare, before the first update, which tensors are statistics rather than weights.

        They are buffers, on the scale of the data, and have another bound.
        """
        self._statistics = names
        self._large = LargeStatistics(self._whole, names)

    def refusal(self, cut: Cut, tensors: Tensors, weight: float = 1.0) -> str | None:
        """Return the reason why an update must not be merged; None if it may be."""
        reason = self.weight_refusal(weight) or misfit(self._shapes(cut), tensors)
        return reason or self._unsound(cut, tensors)

    def _unsound(self, cut: Cut, tensors: Tensors) -> str | None:
        """Return the reason why an update holds an unreasonable value; None if it does not."""
        everything = self.everything
        return unsound(tensors, self._statistics, lambda name: cut.part(name, everything[name]))

    def weight_refusal(self, weight: float) -> str | None:
        """Return the reason why an update of this weight cannot be added; None if it can."""
        if max(self.weight + weight, self.count + 1) > LARGEST_WEIGHT_SUM:
            return f"a round takes clients up to a total weight of {LARGEST_WEIGHT_SUM:g}"
        return None

    def add(self, cut: Cut, tensors: Tensors, weight: float = 1.0) -> None:
        """Add one client's tensors, as received; they are kept, and must not change."""
        tensors = self._large.take(cut, tensors, weight)
        self.weight += weight
        self.count += 1
        self._by_cut.setdefault(cut.same_key, CutUpdates(cut)).add(tensors, weight)
        self._bytes += tensor_bytes(tensors)
        if self._bytes > self._most_bytes:
            self._reduce_memory()

    @property
    def _groups(self) -> list[CutUpdates]:
        return list(self._by_cut.values())

    def _reduce_memory(self) -> None:
        """Sum the waiting updates: by cut if that suffices, otherwise in the shape of the model."""
        self._fold()
        self._bytes = self.size
        if 2 * self._bytes > self._most_bytes:
            self._whole_sums = self._whole_sums or WholeSums(self._whole)
            self._whole_sums.add(self._groups)
            self._by_cut.clear()
            self._bytes = 0

    def _fold(self) -> None:
        """Replace updates by their sums where these take less memory."""
        for group in self._groups:
            group.fold(self._whole)

    def join(self, exchange: Exchange) -> None:
        """Make the sums those of all processes from now on; each must make the same calls."""
        counts = torch.tensor([self.weight, self.count], dtype=torch.float64)
        exchange.add(counts)
        self.weight, self.count = float(counts[0]), int(counts[1])
        self._exchange = exchange
        self._large.join(exchange)
        digests = [cut_digest(group.cut) for group in self._groups]
        is_alone = len(digests) == 1 and self._whole_sums is None
        digests_of_all = exchange.gather(digests[0] if is_alone else None)
        self._have_one_cut = len(set(digests_of_all)) == 1 and digests_of_all[0] is not None

    def describe(self) -> dict[str, Any] | None:
        """Describe the waiting updates for other processes; None if only sums can be exchanged."""
        if self._whole_sums is not None:
            return None
        self._fold()
        description = describe_updates(self._whole, self._groups)
        return description and {"weight": self.weight, "count": self.count, **description}

    def hand_over(self, description: Mapping[str, Any], memory: SharedBytes, start: int) -> None:
        """Move the described updates into memory that other processes see."""
        fill(self._whole, self._groups, description["cuts"], memory, start)
        self._by_cut.clear()

    def adopt(
        self, described: Sequence[tuple[Mapping[str, Any], SharedBytes, int]], exchange: Exchange
    ) -> None:
        """Read the updates of all processes.

        ``described`` has, of every process, the description, the memory and the start in it.
        """
        self.weight = sum(description["weight"] for description, *_ in described)
        self.count = sum(description["count"] for description, *_ in described)
        cuts = [(description["cuts"], memory, start) for description, memory, start in described]
        self._by_cut = read_updates(self._whole, cuts)
        self._large.join(exchange)
        self._adopted_from = exchange

    @property
    def size(self) -> int:
        """Bytes of the waiting updates."""
        return sum(group.size for group in self._groups)

    def holder_weights(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return the total weight of the clients that held each weight of these tensors."""
        return {name: self._holder_weight(name) for name in names}

    def _holder_weight(self, name: str) -> Tensor:
        whole = self._whole[name]
        weight = torch.zeros(whole.shape, dtype=torch.float64, device=whole.device)
        for group in self._groups:
            group.cut.add(name, weight, group.weight)
        if self._whole_sums is not None:
            self._whole_sums.add_weights(name, weight)
        if self._exchange is not None:
            self._exchange.add(weight)
        return weight

    @property
    def everything(self) -> Tensors:
        """Global tensors that come back from clients."""
        return self._whole

    def count_covered(self, names: AbstractSet[str]) -> int:
        """Count the weights of these tensors that at least one client held."""
        count, small = 0, self._small.shapes.keys()
        if FLAT in self._covered and names >= small:
            count, names = self._covered[FLAT], names - small
        for name in names:
            known_count = self._covered.get(name)
            count += int(self._coverage_mask(name).sum()) if known_count is None else known_count
        return count

    def coverage_masks(self) -> Mapping[str, Tensor]:
        """Return masks of the weights that at least one client held; computed lazily."""
        return _LazyMasks(list(self._whole), self._coverage_mask)

    def _coverage_mask(self, name: str) -> Tensor:
        if self._whole_sums is not None or (self._exchange is not None and not self._have_one_cut):
            return self._holder_weight(name) > 0
        whole = self._whole[name]
        mask = torch.zeros(whole.shape, dtype=torch.bool, device=whole.device)
        for group in self._groups:
            group.cut.put(name, mask, True)
        return mask

    def merge(self, *, in_place: bool = False, writes: bool = True) -> dict[str, Tensor]:
        """Return the new tensors; weights that no client held, or changed, keep their bits.

        Args:
            in_place: overwrite the old tensors and drop the updates; only once.
            writes: whether this process writes; False: another one does, in the same memory.
        """
        tensors: dict[str, Tensor] = {}
        groups, exchange = self._groups, self._exchange
        if not writes and exchange is None:
            tensors = dict(self._whole)  # another process merges for all
        elif self._whole_sums is None and exchange is None:
            tensors = self._merge_small(in_place)
        names = [name for name in self._whole if name not in tensors]
        jobs = (
            job
            for name in names
            for job in self._jobs(name, tensors, self._whole, groups, in_place, writes)
        )
        run_jobs(jobs, exchange)
        for name, change in self._large.changes().items():
            holder_weight = self._holder_weight(name)
            if writes:
                rest = tensors[name].double()
                new = average(rest, change, holder_weight, self.weight, self._rule)
                tensors[name].copy_(new)
        if in_place and (exchange := self._adopted_from or self._exchange) is not None:
            exchange.gather(None)  # wait until all processes have written
            exchange.release()
        return {name: tensors.get(name, old) for name, old in self._whole.items()}

    def _merge_small(self, in_place: bool) -> dict[str, Tensor]:
        """Merge the small tensors as one vector; return none if that is not possible."""
        groups = self._groups
        if (vectors := flat_updates(self._small, groups)) is None:
            return {}
        whole = {FLAT: self._small.join(self._whole)}
        run_jobs(self._jobs(FLAT, whole, whole, vectors, in_place=True, writes=True), None)
        tensors = {}
        for name, tensor in self._small.split(whole[FLAT]).items():
            tensors[name] = self._whole[name].copy_(tensor) if in_place else tensor.clone()
            for group in groups if in_place else ():
                group.forget(name)
        return tensors

    def _jobs(
        self,
        name: str,
        tensors: dict[str, Tensor],
        wholes: Tensors,
        groups: Sequence[CutUpdates],
        in_place: bool,
        writes: bool,
    ) -> Iterator[SumJob]:
        """Yield the jobs that merge one of the ``wholes`` into ``tensors``."""
        whole = as_rows(wholes[name])
        held, places = self._places(name, wholes[name].shape, groups)
        hull = PlannedCut({name: tuple(held.items())})
        part = hull.part(name, whole)
        old = part.reshape(len(part), math.prod(part.shape[1:]))
        is_same = self._have_same(name, places, groups)
        cut_sums = [
            CutSums(g, name, p, part.shape, self.count) for g, p in zip(groups, places, strict=True)
        ]
        new = old  # a block is read before it is written
        if writes and not in_place and shares_memory(old, whole):
            with large_blocks_apart():  # otherwise temporary tensors leave holes in the heap
                new = torch.empty(old.shape, dtype=old.dtype, device=old.device)
        known_count = old.numel() if is_same else self._count_held(name, places, part.shape, groups)
        self._covered[name] = known_count or 0
        is_shared = self._exchange is not None or self._whole_sums is not None

        def finish(sums: Tensor, start: int) -> None:
            fine, coarse, *others = sums
            weight = others[0] if others else torch.full_like(fine, self.weight)
            if not is_same:
                if known_count is None:
                    self._covered[name] += int(weight.count_nonzero())
                weight.clamp_(min=_LEAST_WEIGHT)  # values that no client holds have no change
            if not writes:
                return
            if is_shared or any(one.has_coarse for one in cut_sums):
                fine += coarse
            block = old[start : start + len(fine)]
            new[start : start + len(fine)] = average(
                block, fine, weight, self.weight, self._rule, is_held=True
            )

        buffer: Tensor | None = None
        for start, stop in blocks_of(old.shape):
            block = old[start:stop]
            shape = 2 if is_same else 3, *block.shape
            if buffer is None or self._exchange is not None:  # waiting jobs keep their buffers
                buffer = torch.empty(math.prod(shape), dtype=torch.float64, device=old.device)
            sums = buffer[: math.prod(shape)].zero_().view(shape)
            is_held = [one.add(sums, block, start) for one in cut_sums]
            if self._whole_sums is not None:
                sums += self._whole_sums.read(name, start, block.shape)
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
        for group in groups if in_place else ():
            group.forget(name)

    def _places(
        self, name: str, shape: Sequence[int], groups: Sequence[CutUpdates]
    ) -> tuple[Places, list[Places]]:
        """Return the positions that any client holds, and those of each cut among them.

        Nothing is extracted along a dimension that one cut holds whole, or that all cuts together
        hold mostly.
        """
        places = [dict(group.cut.places(name)) for group in groups]
        held: Places = {}
        if self._whole_sums is not None or (self._exchange is not None and not self._have_one_cut):
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
        groups: Sequence[CutUpdates],
    ) -> int | None:
        """Count the values that any client holds, by rows of equal holders, if possible."""
        if (
            self._whole_sums is not None
            or self._exchange is not None
            or not 0 < len(places) <= _FEW
        ):
            return None
        if any(g.cut.mask(name) is not None for g in groups):
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

    def _have_same(self, name: str, places: Sequence[Places], groups: Sequence[CutUpdates]) -> bool:
        """Return whether all clients are known to hold the same: these positions, without masks."""
        if (
            self._whole_sums is not None
            or not places
            or (self._exchange is not None and not self._have_one_cut)
        ):
            return False
        return not any(places) and all(g.cut.mask(name) is None for g in groups)


class _LazyMasks(Mapping[str, Tensor]):
    """Masks that are computed when they are read, as few server steps read them."""

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
    """Return the fraction of the weights that at least one client held, over all accumulators."""
    (first, *others) = accumulators
    total = sum(tensor.numel() for tensor in first.everything.values())
    if not others:
        return first.count_covered(first.everything.keys()) / total
    masks = [one.coverage_masks() for one in accumulators]
    unions = (reduce(torch.logical_or, [one[name] for one in masks]) for name in first.everything)
    return sum(int(union.sum()) for union in unions) / total
