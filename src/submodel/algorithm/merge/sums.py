"""The new values of a tensor, a block of rows at a time, whatever cuts its clients have.

Where cuts overlap, their terms meet in sums of the block. What all clients hold alike (in most
rounds all of it) is taken out of the tensor first and merged as if it were all there is. Of a small
model calls take the time, not arithmetic: its small tensors are merged as one vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from submodel.algorithm.merge.exchange import Exchange
from submodel.algorithm.merge.rules import MergeRule, average
from submodel.algorithm.merge.waiting import (
    Holding,
    Places,
    Share,
    WholeSums,
    as_rows,
    blocks_of,
)
from submodel.heap import large_blocks_apart
from submodel.model.cut import FlatLayout, PlannedCut, Tensors

_LEAST_WEIGHT = 2.0**-60  # no client has less
_AT_ONCE = 1 << 20  # values that are exchanged together
_MOST_HELD = 0.8  # of a dimension: where more is held, what is left out does not pay
_FEW = 6  # cuts, of which all sets are counted
FLAT = ""
"""The name of the vector of all small tensors."""


@dataclass(frozen=True)
class SumJob:
    """Sums of this process, and what is done with the sums of all.

    Args:
        sums: in float64.
        finish: takes the sums of all processes, in the same shape.
    """

    sums: Tensor
    finish: Callable[[Tensor], None]


def run_jobs(jobs: Iterable[SumJob], exchange: Exchange | None) -> None:
    """Finish every job, in their order.

    Args:
        jobs: made one at a time.
        exchange: with the other processes; None: there are none.
    """
    waiting: list[SumJob] = []
    values = 0
    for job in jobs:
        if exchange is None:
            job.finish(job.sums)
            continue
        waiting.append(job)
        values += job.sums.numel()
        if values >= _AT_ONCE:
            _finish_together(waiting, exchange)
            waiting, values = [], 0
    if exchange is not None and waiting:
        _finish_together(waiting, exchange)


def _finish_together(jobs: list[SumJob], exchange: Exchange) -> None:
    """One exchange for all of them."""
    together = torch.cat([job.sums.reshape(-1) for job in jobs])
    exchange.add(together)
    parts = torch.split(together, [job.sums.numel() for job in jobs])
    for job, part in zip(jobs, parts, strict=True):
        job.finish(part.view(job.sums.shape))


@dataclass(frozen=True)
class TensorSums:
    """What the tensors of a round are merged of.

    Args:
        whole: the global tensors before.
        holdings: the clients whose updates wait here.
        weight: of all clients, of every process.
        count: how many they are.
        rule: what sums are divided by.
        in_place: write over the old tensors, and forget updates on the way.
        writes: whether this process does so; False: another one does, in the same memory.
        more: sums of others who wait no longer.
        is_shared: whether sums are those of several processes.
        have_one_cut: whether all clients of all these processes are known to hold the same.
        covered: how many values of a tensor somebody holds, once it is merged.
    """

    whole: Tensors
    holdings: Sequence[Holding]
    weight: float
    count: int
    rule: MergeRule
    in_place: bool
    writes: bool = True
    more: WholeSums | None = None
    is_shared: bool = False
    have_one_cut: bool = False
    covered: dict[str, int] = field(default_factory=dict)

    def jobs(self, name: str, tensors: dict[str, Tensor]) -> Iterator[SumJob]:
        """What merges one tensor into ``tensors``.

        Args:
            name: of the tensor.
            tensors: the new ones.
        """
        whole = as_rows(self.whole[name])
        held, places = self._places(name)
        hull = PlannedCut({name: tuple(held.items())})
        part = hull.part(name, whole)
        old = part.reshape(len(part), math.prod(part.shape[1:]))
        is_same = self._have_same(name, places)
        shares = [
            Share(h, name, p, part.shape, self.count)
            for h, p in zip(self.holdings, places, strict=True)
        ]
        new = old  # a block is read before it is written
        if self.writes and not self.in_place and shares_memory(old, whole):
            with large_blocks_apart():  # or what is made on the way leaves holes between them
                new = torch.empty(old.shape, dtype=old.dtype, device=old.device)
        known_count = old.numel() if is_same else self._count_held(name, places, part.shape)
        self.covered[name] = known_count or 0
        is_shared = self.is_shared or self.more is not None

        def finish(sums: Tensor, start: int) -> None:
            fine, coarse, *others = sums
            weight = others[0] if others else torch.full_like(fine, self.weight)
            if not is_same:
                if known_count is None:
                    self.covered[name] += int(weight.count_nonzero())
                weight.clamp_(min=_LEAST_WEIGHT)  # where nobody holds a value, it did not change
            if not self.writes:
                return
            if is_shared or any(share.has_coarse for share in shares):
                fine += coarse
            block = old[start : start + len(fine)]
            new[start : start + len(fine)] = average(
                block, fine, weight, self.weight, self.rule, is_held=True
            )

        room: Tensor | None = None
        for start, stop in blocks_of(old.shape):
            block = old[start:stop]
            shape = 2 if is_same else 3, *block.shape
            if room is None or self.is_shared:  # those that wait keep theirs
                room = torch.empty(math.prod(shape), dtype=torch.float64, device=old.device)
            sums = room[: math.prod(shape)].zero_().view(shape)
            is_held = [share.add(sums, block, start) for share in shares]
            if self.more is not None:
                sums += self.more.read(name, start, block.shape)
            elif not self.is_shared and not any(is_held):
                new[start:stop] = block
                continue
            yield SumJob(sums, lambda sums, start=start: finish(sums, start))  # type: ignore[misc]

        columns = [(d, positions) for d, positions in held.items() if d]

        def end(_: Tensor) -> None:
            target = self.whole[name]
            if self.writes and not self.in_place:
                target = whole.clone(memory_format=torch.contiguous_format) if held else new
                target = target.view(self.whole[name].shape)
            if self.writes and not shares_memory(new, target):
                rows = held.get(0, np.arange(len(new)))
                for start, stop in blocks_of(old.shape):  # positions of a block stay in the cache
                    block = PlannedCut({name: ((0, rows[start:stop]), *columns)})
                    block.put(name, as_rows(target), new[start:stop].view(-1, *part.shape[1:]))
            tensors[name] = target

        yield SumJob(torch.empty(0, dtype=torch.float64), end)
        for holding in self.holdings if self.in_place else ():
            holding.forget(name)

    def _places(self, name: str) -> tuple[Places, list[Places]]:
        """The positions that somebody holds, and where each has its own among these.

        Along a dimension of which somebody holds all, or all together most, there is no choice.
        """
        places = [dict(holding.cut.places(name)) for holding in self.holdings]
        held: Places = {}
        if self.more is not None or (self.is_shared and not self.have_one_cut):
            return held, places
        shape = self.whole[name].shape
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

    def _count_held(self, name: str, places: Sequence[Places], shape: Sequence[int]) -> int | None:
        """How many values somebody holds, by rows that the same clients hold; None: not told so."""
        if self.more is not None or self.is_shared or not 0 < len(places) <= _FEW:
            return None
        if any(h.cut.mask(name) is not None for h in self.holdings):
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

    def _have_same(self, name: str, places: Sequence[Places]) -> bool:
        """Whether all hold the same, where that is known: these positions and no mask."""
        if self.more is not None or not places or (self.is_shared and not self.have_one_cut):
            return False
        return not any(places) and all(h.cut.mask(name) is None for h in self.holdings)


def shares_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors lie in one storage."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def flat_holdings(layout: FlatLayout, holdings: Sequence[Holding]) -> list[Holding] | None:
    """What clients hold of the vector of small tensors; None where positions cannot tell it.

    Args:
        layout: of the vector.
        holdings: the clients.
    """
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
