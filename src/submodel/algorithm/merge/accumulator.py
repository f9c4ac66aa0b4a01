"""One streaming accumulator whose sums have no order.

    delta_j = sum_i a_i m_i[j] (w_i[j] - w[j]) / D_j,
    D_j = sum_i a_i (``fill_in``, the paper) or sum_i a_i m_i[j] (``selective``, HeteroFL).

Floating-point sums depend on the order of their terms; ours do not (see `terms`). So updates may
arrive in any order, from any number of workers, and the result has the same bits.

Updates wait in the shapes of their own cuts, those of one cut as their sum where that is less; they
meet when they are merged, one tensor after another, some rows at a time. So beside the model before
and after the round there is what clients hold of it, up to the size of the model once; what is more
is added up in the shape of the model, and if the model is large, in a file.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from submodel.algorithm.merge.blocks import WholeSums, add_block, blocks_of
from submodel.algorithm.merge.covering import LazyMasks, count_union
from submodel.algorithm.merge.exchange import Exchange, SumJob, run_jobs
from submodel.algorithm.merge.groups import GroupedTensor, row_groups
from submodel.algorithm.merge.guards import misfit, unsound
from submodel.algorithm.merge.holding import Holding, total_size
from submodel.algorithm.merge.parcels import SharedBytes, describe_updates, fill, read_updates
from submodel.algorithm.merge.rules import MergeRule, average
from submodel.algorithm.merge.small import SmallTensors
from submodel.algorithm.merge.terms import chunk_slices
from submodel.heap import large_blocks_apart
from submodel.model.cut import Cut, LastCut, Tensors, is_plain

LARGEST_WEIGHT_SUM = 2.0**14
"""The most that the client weights of one round may sum to, and the most clients it may have."""
_LEAST_WAITING = 1 << 24  # bytes that updates may take before they are added up, in any model
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
        self._weight = 0.0
        self._count = 0
        self._holdings: dict[Hashable, Holding] = {}
        self._waiting_bytes = 0
        size = sum(tensor.numel() * tensor.element_size() for tensor in whole.values())
        self._most_waiting = max(_LEAST_WAITING, size)
        self._more: WholeSums | None = None  # of those who wait no longer
        self._exchange: Exchange | None = None
        self._others: Exchange | None = None  # those whose updates are here, too
        self._have_one_cut = False  # all processes the same
        self._small = SmallTensors(whole)
        self._shapes = LastCut(lambda cut: {n: cut.shape(n, t.shape) for n, t in whole.items()})
        self.notes: dict[str, float] = {}  # what `merge` has to tell, for the round's metrics

    def refusal(self, cut: Cut, tensors: Tensors, weight: float = 1.0) -> str | None:
        """Why an update must not be merged, in words; None if it may."""
        reason = self.weight_refusal(weight) or misfit(self._shapes(cut), tensors)
        return reason or unsound(tensors)

    def weight_refusal(self, weight: float) -> str | None:
        """Why nobody of such a weight can be added any more; None if one can."""
        if max(self._weight + weight, self._count + 1) > LARGEST_WEIGHT_SUM:
            return f"a round takes clients up to a total weight of {LARGEST_WEIGHT_SUM:g}"
        return None

    def add(self, cut: Cut, tensors: Tensors, weight: float = 1.0) -> None:
        """Add one client's tensors, as they came back; they are kept, and must not change."""
        self._weight += weight
        self._count += 1
        if (holding := self._holdings.get(cut.same_key)) is None:
            holding = self._holdings[cut.same_key] = Holding(cut)
        holding.add(tensors, weight)
        self._waiting_bytes += sum(t.numel() * t.element_size() for t in tensors.values())
        if self._waiting_bytes > self._most_waiting:
            self._make_room()

    def _make_room(self) -> None:
        """Add up what waits: cut by cut where that is enough, else in the shape of the model."""
        holdings = list(self._holdings.values())
        for holding in holdings:
            if holding.is_worth_folding:
                holding.fold(self._whole)
        self._waiting_bytes = total_size(holdings)
        if 2 * self._waiting_bytes <= self._most_waiting:
            return
        self._more = self._more or WholeSums(self._whole)
        for name, whole in self._rows().items():
            for start, stop in blocks_of(whole.shape):
                old = whole[start:stop]
                sums = self._more.read(name, start, old.shape)
                add_block(sums, name, old, start, stop, holdings)
                self._more.write(name, start, sums)
        self._holdings.clear()
        self._waiting_bytes = 0

    def _rows(self) -> dict[str, Tensor]:
        """The tensors, each with at least one dimension."""
        return {n: t if t.dim() else t.view(1) for n, t in self._whole.items()}

    def join(self, exchange: Exchange) -> None:
        """From here on the sums are those of all processes; each must ask the same of them.

        Args:
            exchange: with the other processes.
        """
        counts = torch.tensor([self._weight, self._count], dtype=torch.float64)
        exchange.add(counts)
        self._weight, self._count = float(counts[0]), int(counts[1])
        self._exchange = exchange
        digests = [holding.digest for holding in self._holdings.values()]
        is_alone = len(digests) == 1 and self._more is None
        everyones = exchange.gather(digests[0] if is_alone else None)
        self._have_one_cut = everyones[0] is not None and len(set(everyones)) == 1

    def offer(self) -> dict[str, Any] | None:
        """What other processes must know to merge what is here; None where only sums can travel."""
        if self._more is not None:
            return None
        holdings = list(self._holdings.values())
        for holding in holdings:
            if holding.is_worth_folding:
                holding.fold(self._whole)
        if (description := describe_updates(self._whole, holdings)) is None:
            return None
        parcels, size = description
        return {"weight": self._weight, "count": self._count, "parcels": parcels, "size": size}

    def hand_over(self, offer: Mapping[str, Any], memory: SharedBytes, start: int) -> None:
        """Put what was offered into memory that other processes see, and keep it nowhere else.

        Args:
            offer: what `offer` said.
            memory: of this process.
            start: the first byte.
        """
        fill(self._whole, list(self._holdings.values()), offer["parcels"], memory, start)
        self._holdings.clear()

    def adopt(
        self, offers: Sequence[tuple[Mapping[str, Any], SharedBytes, int]], exchange: Exchange
    ) -> None:
        """Take everyone's updates for one's own.

        Args:
            offers: of every process, what it offered, in which memory, and where it begins.
            exchange: with the other processes.
        """
        self._weight = sum(offer["weight"] for offer, *_ in offers)
        self._count = sum(offer["count"] for offer, *_ in offers)
        self._holdings = read_updates(self._whole, [(one["parcels"], m, n) for one, m, n in offers])
        self._others = exchange

    @property
    def size(self) -> int:
        """How many bytes updates take that wait to be merged."""
        return total_size(list(self._holdings.values()))

    @property
    def count(self) -> int:
        """How many updates were added."""
        return self._count

    @property
    def weight(self) -> float:
        """Their total weight."""
        return self._weight

    def holder_weights(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The weight of the clients who held each weight of these tensors."""
        return {name: self._holder_weight(name) for name in names}

    def _holder_weight(self, name: str) -> Tensor:
        whole = self._whole[name]
        weight = torch.zeros(whole.shape, dtype=torch.float64, device=whole.device)
        for holding in self._holdings.values():
            holding.cut.add(name, weight, holding.weight)
        if self._more is not None:
            rows = weight if weight.dim() else weight.view(1)
            for start, stop in blocks_of(rows.shape):
                rows[start:stop] += self._more.read(name, start, rows[start:stop].shape)[2]
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
        cuts = [holding.cut for holding in self._holdings.values()]
        is_known = self._more is None and (self._exchange is None or self._have_one_cut)
        for name in names:
            shape = self._whole[name].shape
            union_count = count_union(cuts, name, shape) if is_known else None
            count += int(self._coverage_mask(name).sum()) if union_count is None else union_count
        return count

    def _small_indices(self) -> list[Tensor] | None:
        """Where clients hold values of small tensors; None where these are merged like others."""
        holdings = list(self._holdings.values())
        if self._more is not None or self._exchange is not None or not holdings:
            return None
        return self._small.indices(holdings)

    def coverage_masks(self) -> Mapping[str, Tensor]:
        """Which weights at least one client held; of every tensor when it is asked for."""
        return LazyMasks(list(self._whole), self._coverage_mask)

    def _coverage_mask(self, name: str) -> Tensor:
        if self._more is not None or (self._exchange is not None and not self._have_one_cut):
            return self._holder_weight(name) > 0
        whole = self._whole[name]
        mask = torch.zeros(whole.shape, dtype=torch.bool, device=whole.device)
        for holding in self._holdings.values():
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
            holdings = list(self._holdings.values())
            small = self._small.merge(holdings, indices, self._weight, self._rule)
            for name, tensor in small.items():
                old = self._whole[name]
                tensors[name] = old.copy_(tensor) if in_place else tensor.clone()
                for holding in holdings if in_place else ():
                    holding.forget(name)
        others = [name for name in self._whole if name not in tensors]
        jobs = (job for name in others for job in self._jobs(name, tensors, in_place, writes))
        run_jobs(jobs, self._exchange)
        if in_place and (exchange := self._others or self._exchange) is not None:
            exchange.gather(None)  # whoever reads it from here on reads what is merged
            exchange.release()
        return {name: tensors[name] for name in self._whole}

    def _jobs(
        self, name: str, tensors: dict[str, Tensor], in_place: bool, writes: bool
    ) -> Iterator[SumJob]:
        """What merges one tensor, piece by piece, into ``tensors``."""
        holdings = list(self._holdings.values())
        if self._exchange is not None:
            one_cut = self._have_one_cut
        else:
            regions = {holding.region(name) for holding in holdings}
            one_cut = len(regions) == 1 and self._more is None
        make = self._one_cut if one_cut else self._many_cuts
        for job in make(name, tensors, holdings, in_place):
            yield job if writes else SumJob(job.sums, _leave)
        if not writes:
            tensors[name] = self._whole[name]

        def forget(_: Tensor) -> None:
            for holding in holdings:
                holding.forget(name)

        if in_place:
            yield SumJob(None, forget)

    def _one_cut(
        self, name: str, tensors: dict[str, Tensor], holdings: Sequence[Holding], in_place: bool
    ) -> Iterator[SumJob]:
        """All clients hold the same of this tensor: the rest of it stays."""
        whole, cut = self._whole[name], holdings[0].cut
        part, mask = cut.part(name, whole), cut.mask(name)
        old = part.reshape(-1)
        new = old if in_place else torch.empty_like(old)  # a piece is read before it is written
        masks = None if mask is None else mask.reshape(-1).to(old.device)
        weight = self._weight  # everyone's

        def finish(sums: Tensor, piece: slice) -> None:
            holder_weight = torch.full_like(sums[0], weight)
            if masks is not None:
                holder_weight *= masks[piece]
            new[piece] = average(
                old[piece], sums[0].add_(sums[1]), holder_weight, weight, self._rule
            )

        for piece in chunk_slices(len(old)):
            piece_mask = None if masks is None else masks[piece]
            parts = [holding.terms(name, piece, old[piece], piece_mask) for holding in holdings]
            sums = torch.stack(parts[0])
            for coarse, fine in parts[1:]:
                sums[0] += coarse
                sums[1] += fine
            yield SumJob(sums, lambda sums, piece=piece: finish(sums, piece))  # type: ignore[misc]

        def end(_: Tensor) -> None:
            if in_place:
                tensors[name] = whole
                if new.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr():
                    cut.put(name, whole, new.view(part.shape))
                return
            if part.shape == whole.shape and not cut.places(name) and mask is None:
                tensors[name] = new.view(whole.shape)
                return
            tensors[name] = whole.clone(memory_format=torch.contiguous_format)
            cut.put(name, tensors[name], new.view(part.shape))

        yield SumJob(None, end)

    def _merge_groups(
        self,
        name: str,
        whole: Tensor,
        tensors: dict[str, Tensor],
        holdings: Sequence[Holding],
        in_place: bool,
    ) -> bool:
        """Merge a tensor by who holds its rows; False where that is not possible, or does not pay.

        Args:
            name: of the tensor.
            whole: the tensor, with at least one dimension.
            tensors: the new ones.
            holdings: all clients.
            in_place: write over the old values.
        """
        if self._more is not None or self._exchange is not None or not is_plain(whole):
            return False
        groups = row_groups(holdings, name, whole.shape) if whole.device.type == "cpu" else None
        if groups is None:
            return False
        with large_blocks_apart():
            new = whole if in_place else whole.clone()
        grouped_tensor = GroupedTensor(name, whole, holdings)
        for group in groups:
            grouped_tensor.merge(group, new, self._weight, self._rule)
        tensors[name] = new.view(self._whole[name].shape)
        return True

    def _many_cuts(
        self, name: str, tensors: dict[str, Tensor], holdings: Sequence[Holding], in_place: bool
    ) -> Iterator[SumJob]:
        """Clients hold this and that of the tensor: it is merged some rows at a time."""
        whole = self._rows()[name]
        if self._merge_groups(name, whole, tensors, holdings, in_place):
            return
        if in_place:
            new = whole
        else:
            with large_blocks_apart():  # or what is made on the way would leave holes between them
                new = torch.empty(whole.shape, dtype=whole.dtype, device=whole.device)
        tensors[name] = new.view(self._whole[name].shape)

        def finish(sums: Tensor, start: int, stop: int) -> None:
            coarse, fine, weight = sums
            new[start:stop] = average(
                whole[start:stop], coarse.add_(fine), weight, self._weight, self._rule
            )

        room: Tensor | None = None
        for start, stop in blocks_of(whole.shape):
            old = whole[start:stop]
            if room is None or self._exchange is not None:  # those that wait keep theirs
                room = torch.empty(3 * old.numel(), dtype=torch.float64, device=old.device)
            sums = room[: 3 * old.numel()].zero_().view(3, *old.shape)
            is_held = add_block(sums, name, old, start, stop, holdings)
            if self._more is not None:
                sums += self._more.read(name, start, old.shape)
            elif self._exchange is None and not is_held:
                if not in_place:
                    new[start:stop] = old
                continue
            yield SumJob(sums, lambda sums, a=start, b=stop: finish(sums, a, b))  # type: ignore[misc]


def _leave(_: Tensor) -> None:
    """Another process finishes this."""


def coverage(accumulators: Sequence[Accumulator]) -> float:
    """The share of the weights that at least one client held, whichever sums it went into."""
    (first, *others) = accumulators
    total = sum(tensor.numel() for tensor in first.everything.values())
    if not others:
        return first.count_covered(first.everything.keys()) / total
    masks = [one.coverage_masks() for one in accumulators]
    unions = (reduce(torch.logical_or, [one[name] for one in masks]) for name in first.everything)
    return sum(int(union.sum()) for union in unions) / total
