"""Merging one tensor, piece by piece: by one cut, by rows and columns, or some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from submodel.algorithm.merge.blocks import WholeSums, add_block, blocks_of
from submodel.algorithm.merge.crossings import SparselyHeldTensor
from submodel.algorithm.merge.exchange import SumJob
from submodel.algorithm.merge.groups import GroupedTensor, row_groups
from submodel.algorithm.merge.holding import Holding
from submodel.algorithm.merge.rectangles import rectangles
from submodel.algorithm.merge.rules import MergeRule, average
from submodel.algorithm.merge.terms import chunk_slices
from submodel.algorithm.merge.waiting import as_rows
from submodel.heap import large_blocks_apart
from submodel.model.cut import Tensors, is_plain

_LEAST = 1 << 14  # values of a tensor; of smaller ones, blocks of rows take fewer calls
_MOST_HOLDINGS = 62  # bits of a whole number


@dataclass(frozen=True)
class MergePlan:
    """What the tensors of a round are merged of.

    Args:
        whole: the global tensors before.
        holdings: the clients whose updates wait here.
        more: sums of others who wait no longer.
        weight: of all clients, of every process.
        rule: what sums are divided by.
        is_shared: whether sums are those of several processes.
        have_one_cut: whether all clients of all these processes are known to hold the same.
        in_place: write over the old tensors, and forget updates on the way.
    """

    whole: Tensors
    holdings: Sequence[Holding]
    more: WholeSums | None
    weight: float
    rule: MergeRule
    is_shared: bool
    have_one_cut: bool
    in_place: bool

    def jobs(self, name: str, tensors: dict[str, Tensor], *, writes: bool) -> Iterator[SumJob]:
        """What merges one tensor into ``tensors``.

        Args:
            name: of the tensor.
            tensors: the new ones.
            writes: whether this process does so; False: another one does, in the same memory.
        """
        if self.is_shared:
            one_cut = self.have_one_cut
        else:
            regions = {holding.region(name) for holding in self.holdings}
            one_cut = len(regions) == 1 and self.more is None
        make = self._one_cut if one_cut else self._many_cuts
        for job in make(name, tensors):
            yield job if writes else SumJob(job.sums, _leave)
        if not writes:
            tensors[name] = self.whole[name]

        def forget(_: Tensor) -> None:
            for holding in self.holdings:
                holding.forget(name)

        if self.in_place:
            yield SumJob(None, forget)

    def _one_cut(self, name: str, tensors: dict[str, Tensor]) -> Iterator[SumJob]:
        """All clients hold the same of this tensor: the rest of it stays."""
        whole, cut = self.whole[name], self.holdings[0].cut
        part, mask = cut.part(name, whole), cut.mask(name)
        old = part.reshape(-1)
        # a piece is read before it is written
        new = old if self.in_place else torch.empty_like(old)
        masks = None if mask is None else mask.reshape(-1).to(old.device)

        def finish(sums: Tensor, piece: slice) -> None:
            holder_weight = torch.full_like(sums[0], self.weight)
            if masks is not None:
                holder_weight *= masks[piece]
            new[piece] = average(
                old[piece], sums[0].add_(sums[1]), holder_weight, self.weight, self.rule
            )

        for piece in chunk_slices(len(old)):
            piece_mask = None if masks is None else masks[piece]
            parts = [h.terms(name, piece, old[piece], piece_mask) for h in self.holdings]
            sums = torch.stack(parts[0])
            for coarse, fine in parts[1:]:
                sums[0] += coarse
                sums[1] += fine
            yield SumJob(sums, lambda sums, piece=piece: finish(sums, piece))  # type: ignore[misc]

        def end(_: Tensor) -> None:
            if self.in_place:
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

    def _merge_rectangles(self, name: str, whole: Tensor, tensors: dict[str, Tensor]) -> bool:
        """Merge a tensor by rows and columns; False where that is not possible, or does not pay.

        Args:
            name: of the tensor.
            whole: the tensor, with at least one dimension.
            tensors: the new ones.
        """
        if self.more is not None or self.is_shared or not is_plain(whole):
            return False
        merge = self._by_rectangles(name, whole) if whole.device.type == "cpu" else None
        if merge is None:
            return False
        with large_blocks_apart():
            new = whole if self.in_place else whole.clone()
        merge(new)
        tensors[name] = new.view(self.whole[name].shape)
        return True

    def _by_rectangles(self, name: str, whole: Tensor) -> Callable[[Tensor], None] | None:
        """What writes the new values by rows and columns; None where that does not pay."""
        holdings = self.holdings
        if whole.numel() < _LEAST or len(holdings) > _MOST_HOLDINGS:
            return None
        if any(holding.cut.mask(name) is not None for holding in holdings):
            return None
        parts = rectangles(holdings, name, whole.shape)
        sparse_tensor = SparselyHeldTensor(name, whole, holdings, self.weight, self.rule, parts)
        if sparse_tensor.is_sparse:
            return sparse_tensor.merge
        if (groups := row_groups(parts, whole.shape)) is None:
            return None
        return GroupedTensor(name, whole, holdings, self.weight, self.rule, parts, groups).merge

    def _many_cuts(self, name: str, tensors: dict[str, Tensor]) -> Iterator[SumJob]:
        """Clients hold this and that of the tensor: it is merged some rows at a time."""
        whole = as_rows(self.whole[name])
        if self._merge_rectangles(name, whole, tensors):
            return
        if self.in_place:
            new = whole
        else:
            with large_blocks_apart():  # or what is made on the way would leave holes between them
                new = torch.empty(whole.shape, dtype=whole.dtype, device=whole.device)
        tensors[name] = new.view(self.whole[name].shape)

        def finish(sums: Tensor, start: int, stop: int) -> None:
            coarse, fine, holder_weight = sums
            new[start:stop] = average(
                whole[start:stop], coarse.add_(fine), holder_weight, self.weight, self.rule
            )

        room: Tensor | None = None
        for start, stop in blocks_of(whole.shape):
            old = whole[start:stop]
            if room is None or self.is_shared:  # those that wait keep theirs
                room = torch.empty(3 * old.numel(), dtype=torch.float64, device=old.device)
            sums = room[: 3 * old.numel()].zero_().view(3, *old.shape)
            is_held = add_block(sums, name, old, start, stop, self.holdings)
            if self.more is not None:
                sums += self.more.read(name, start, old.shape)
            elif not self.is_shared and not is_held:
                if not self.in_place:
                    new[start:stop] = old
                continue
            yield SumJob(sums, lambda sums, a=start, b=stop: finish(sums, a, b))  # type: ignore[misc]


def _leave(_: Tensor) -> None:
    """Another process finishes this."""
