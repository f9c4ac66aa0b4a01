"""Waiting updates of a round, in the shapes of their own cuts, or as sums.

Up to the size of the model, updates wait as received, or as the sum over a cut if that takes less
memory; beyond that, they are summed in the shape of the model, in a file if the model is large.
Processes with shared memory put their updates there: each then has all updates, as if it had
trained every client itself, and all merge alike. Otherwise sums are exchanged (`Exchange`).
"""

from __future__ import annotations

import math
import tempfile
import weakref
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from submodel.algorithm.merge.exact import CHUNK, LARGEST_WEIGHT_SUM, add, exact_terms
from submodel.model.axes.layout import Indices
from submodel.model.cut import Cut, PlannedCut, Tensors

_BLOCK = 1 << 18  # values of a tensor processed at a time: with fewer, calls dominate the time
_MOST_IN_MEMORY = 1 << 28  # bytes of sums in the shape of the model; larger ones go to a file
_SUM_BYTES = 16  # bytes of the two sums of a value in float64
Places = dict[int, Indices]
"""Kept positions of a tensor, by dimension."""


def blocks_of(shape: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the rows of a tensor, from and to, to process at a time: equal for all processes.

    >>> list(blocks_of((3, 1 << 17)))
    [(0, 2), (2, 3)]
    """
    step = max(1, _BLOCK // max(1, math.prod(shape[1:])))
    return ((start, min(start + step, shape[0])) for start in range(0, shape[0], step))


def as_rows(tensor: Tensor) -> Tensor:
    """Return a tensor with at least one dimension.

    >>> as_rows(torch.tensor(2.0))
    tensor([2.])
    """
    return tensor if tensor.dim() else tensor.view(1)


def tensor_bytes(tensors: Tensors) -> int:
    """Return the memory of tensors in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


@dataclass
class CutUpdates:
    """Updates of clients with the same cut: their tensors, or sums, whose size is fixed."""

    cut: Cut
    updates: list[tuple[dict[str, Tensor], float]] = field(default_factory=list)  # with weights
    sums: dict[str, Tensor] = field(default_factory=dict)  # of summed updates: fine and coarse
    weight: float = 0.0  # of all updates

    def add(self, tensors: Tensors, weight: float) -> None:
        """Add one client's tensors."""
        self.updates.append((dict(tensors), weight))
        self.weight += weight

    def forget(self, name: str) -> None:
        """Drop the clients' values of a tensor."""
        for tensors, _ in self.updates:
            tensors.pop(name, None)
        self.sums.pop(name, None)

    def add_sums(self, sums: Tensors, weight: float) -> None:
        """Add terms that are summed already."""
        for name, one in sums.items():
            before = self.sums.get(name)
            self.sums[name] = one if before is None else before + one
        self.weight += weight

    @property
    def size(self) -> int:
        """Bytes of updates and sums."""
        return sum(tensor_bytes(tensors) for tensors, _ in self.updates) + tensor_bytes(self.sums)

    def fold(self, whole: Tensors) -> None:
        """Replace the clients' tensors by sums if that takes less memory."""
        if not self.updates:
            return
        first, _ = self.updates[0]  # all have the same size
        values = sum(tensor.numel() for tensor in first.values())
        if not self.sums and len(self.updates) * tensor_bytes(first) <= _SUM_BYTES * values:
            return
        for name, tensor in whole.items():
            old = self.cut.part(name, tensor).reshape(-1)
            mask = self.cut.mask(name)
            masks = None if mask is None else mask.reshape(-1)
            sums = torch.zeros((2, len(old)), dtype=torch.float64, device=old.device)
            for start in range(0, len(old), CHUNK):
                piece = slice(start, start + CHUNK)
                part = None if masks is None else masks[piece]
                for total, term in zip(
                    sums, self.terms(name, piece, old[piece], part), strict=True
                ):
                    add(total[piece], term)
            self.sums[name] = sums
        self.updates.clear()

    def terms(
        self,
        name: str,
        rows: slice | Tensor,
        old: Tensor,
        mask: Tensor | None,
        width: int = 1,
        count: float = LARGEST_WEIGHT_SUM,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the fine and the coarse sum of some of a tensor's values, flat, if any.

        ``rows`` selects the values, in stretches of ``width``. ``count`` is at least the number of
        clients in the round.
        """

        def pick(values: Tensor) -> Tensor:
            stretches = values.reshape(-1, width)
            if isinstance(rows, slice):
                return stretches[rows].reshape(-1)
            return stretches.index_select(0, rows).view(-1)

        fine = coarse = None
        if self.updates:
            new = [pick(tensors[name]) for tensors, _ in self.updates]
            weights = [weight for _, weight in self.updates]
            fine, coarse = exact_terms(new, old, mask, weights, count)
        if (sums := self.sums.get(name)) is not None:
            own_fine, own_coarse = (pick(one) for one in sums)
            fine = own_fine if fine is None else fine.add_(own_fine)
            coarse = own_coarse if coarse is None else coarse.add_(own_coarse)
        assert fine is not None
        return fine, coarse


class CutSums:
    """The positions of a cut's values in a tensor, as rows and columns, and the sums over them."""

    def __init__(
        self,
        group: CutUpdates,
        name: str,
        places: Places,
        shape: Sequence[int],
        count: float = LARGEST_WEIGHT_SUM,
    ) -> None:
        self._group, self._name, self._count = group, name, count
        self._total, self._rows = math.prod(shape[1:]), places.get(0)
        self._columns: Tensor | None = None  # None: all
        self.has_coarse = False  # whether any coarse part was added so far
        if places.keys() - {0}:
            columns = np.zeros(1, np.int64)
            for d in range(1, len(shape)):
                kept = places.get(d, np.arange(shape[d]))
                columns = (columns[:, None] * shape[d] + kept).reshape(-1)
            self._columns = torch.from_numpy(columns)
        mask = group.cut.mask(name)
        self._mask = None if mask is None else mask.reshape(shape[0], self._total)

    def add(self, sums: Tensor, old: Tensor, start: int) -> bool:
        """Add the terms of some rows to their sums; return whether any row is held.

        ``sums`` holds fine, coarse and, if it has a third row, the holders' weight; it is changed
        in place. ``start`` is the first row of ``old``.
        """
        own: slice | Tensor = slice(start, start + len(old))
        where: Tensor | None = None  # in the block; None: everywhere
        if self._rows is not None:
            held = np.flatnonzero((self._rows >= start) & (self._rows < start + len(old)))
            if not len(held):
                return False
            first, last = int(held[0]), int(held[-1])
            is_stretch = last - first + 1 == len(held)  # true of rows in order: no copy
            own = slice(first, last + 1) if is_stretch else torch.from_numpy(held)
            where = torch.from_numpy(self._rows[held] - start)
        if self._columns is not None or where is not None:
            where = torch.arange(len(old)) if where is None else where
            columns = torch.arange(self._total) if self._columns is None else self._columns
            where = ((where * self._total)[:, None] + columns).view(-1).to(old.device)
        values = old.reshape(-1)
        values = values if where is None else values.index_select(0, where)
        mask = None if self._mask is None else self._mask[own].reshape(-1)
        width = self._total if self._columns is None else len(self._columns)
        terms = self._group.terms(self._name, own, values, mask, width, self._count)
        self.has_coarse |= terms[1] is not None
        weight = terms[0].new_tensor(self._group.weight)
        weights = weight.expand(len(values)) if mask is None else mask.to(weight) * weight
        for total, part in zip(sums, (*terms, weights), strict=False):
            if part is not None and where is None:
                total.view(-1).add_(part)
            elif part is not None:
                total.view(-1).scatter_add_(0, where, part)
        return True


class WholeSums:
    """Sums in the shape of the model, in memory, or in an unnamed file if they are large."""

    def __init__(self, whole: Tensors) -> None:
        self._whole, end = whole, 0
        self._starts: dict[str, int] = {}
        for name, tensor in whole.items():
            self._starts[name] = end
            end += 3 * tensor.numel()
        self._memory: Tensor | None = None
        if 8 * end <= _MOST_IN_MEMORY:
            self._memory = torch.zeros(end, dtype=torch.float64)
        else:
            self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - ends with the sums
            weakref.finalize(self, self._file.close)
            self._file.truncate(8 * end)

    def add(self, groups: Sequence[CutUpdates]) -> None:
        """Add the updates of some cuts."""
        for name, tensor in self._whole.items():
            whole = as_rows(tensor)
            places = [dict(group.cut.places(name)) for group in groups]
            cut_sums = [
                CutSums(g, name, p, whole.shape) for g, p in zip(groups, places, strict=True)
            ]
            for start, stop in blocks_of(whole.shape):
                block = whole[start:stop].reshape(stop - start, math.prod(whole.shape[1:]))
                sums = self.read(name, start, block.shape)
                for one in cut_sums:
                    one.add(sums, block, start)
                if self._memory is None:
                    self._file.seek(8 * self._first(name, start, block.shape))
                    self._file.write(sums.numpy().data)

    def read(self, name: str, start: int, shape: Sequence[int]) -> Tensor:
        """Return the sums of some rows, 3 x ``shape``."""
        first, count = self._first(name, start, shape), 3 * math.prod(shape)
        if self._memory is not None:
            return self._memory[first : first + count].view(3, *shape)
        self._file.seek(8 * first)
        values = bytearray(self._file.read(8 * count))
        return torch.frombuffer(values, dtype=torch.float64).view(3, *shape)

    def add_weights(self, name: str, weight: Tensor) -> None:
        """Add the holders' weight of one tensor to ``weight``, of its shape."""
        rows = as_rows(weight)
        for start, stop in blocks_of(rows.shape):
            rows[start:stop] += self.read(name, start, rows[start:stop].shape)[2]

    def _first(self, name: str, start: int, shape: Sequence[int]) -> int:
        return self._starts[name] + 3 * start * math.prod(shape[1:])


_ALIGNMENT = 64  # bytes: the alignment of torch's own tensors
SharedBytes = Any
"""A writable buffer, such as an `mmap.mmap`."""
CutDescription = Mapping[str, Any]
"""A process's updates of one cut, in JSON: the plan, whose positions are in shared memory, the
weights of the clients, and the total weight of clients that are summed already."""


class Exchange(Protocol):
    """Communication with the other processes of a group; all make the same calls in order."""

    def add(self, values: Tensor) -> None:
        """Replace the values by their sums over all processes, in place."""
        ...

    def gather(self, word: str | None) -> list[str | None]:
        """Return one string from every process."""
        ...

    def release(self) -> None:
        """Release the memory of this round's updates, which are not needed any more."""
        ...


def describe_updates(whole: Tensors, groups: Sequence[CutUpdates]) -> dict[str, Any] | None:
    """Describe a process's updates and their bytes; None if a cut has masks."""
    descriptions: list[CutDescription] = []
    end = 0
    for group in groups:
        if any(group.cut.mask(name) is not None for name in whole):
            return None
        if any(t[n].dtype != whole[n].dtype for t, _ in group.updates for n in whole):
            return None
        arrays = _positions(group, whole)
        numbers = {key: number for number, key in enumerate(arrays)}
        description = {
            "plan": {
                name: [[d, numbers[id(positions)]] for d, positions in places]
                for name in whole
                if (places := group.cut.places(name))
            },
            "positions": [len(positions) for positions in arrays.values()],
            "weights": [weight for _, weight in group.updates],
            "summed": group.weight - sum(w for _, w in group.updates) if group.sums else None,
        }
        descriptions.append(description)
        *_, (end, _, _) = [(end, (), torch.int64), *_lay_out(whole, description, end)]
    return {"cuts": descriptions, "size": -(-end // _ALIGNMENT) * _ALIGNMENT}


def _positions(group: CutUpdates, whole: Tensors) -> dict[int, Indices]:
    """Return the lists of positions of a cut, by identity, as tensors share them."""
    return {id(positions): positions for n in whole for _, positions in group.cut.places(n)}


def _lay_out(
    whole: Tensors, description: CutDescription, start: int
) -> Iterator[tuple[int, Sequence[int], torch.dtype]]:
    """Yield end, shape and type of every tensor of a description, in the order of `_views`."""
    shapes = {name: list(tensor.shape) for name, tensor in whole.items()}
    for name, places in description["plan"].items():
        for d, number in places:
            shapes[name][d] = description["positions"][number]
    entries: list[tuple[Sequence[int], torch.dtype]]
    entries = [((count,), torch.int64) for count in description["positions"]]
    entries += [(shapes[n], whole[n].dtype) for _ in description["weights"] for n in whole]
    if description["summed"] is not None:
        entries += [((2, math.prod(shapes[n])), torch.float64) for n in whole]
    for shape, dtype in entries:
        start = -(-start // _ALIGNMENT) * _ALIGNMENT + math.prod(shape) * dtype.itemsize
        yield start, shape, dtype


def _views(
    whole: Tensors, description: CutDescription, memory: SharedBytes, start: int
) -> tuple[list[Tensor], int]:
    """Return all tensors of a description as views of memory, and their end."""
    views = []
    for end, shape, dtype in _lay_out(whole, description, start):
        count = math.prod(shape)
        first = end - count * dtype.itemsize
        flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=first) if count else None
        views.append(torch.empty(shape, dtype=dtype) if flat is None else flat.view(shape))
        start = end
    return views, start


def fill(
    whole: Tensors,
    groups: Sequence[CutUpdates],
    descriptions: Sequence[CutDescription],
    memory: SharedBytes,
    start: int,
) -> None:
    """Copy the described updates into memory."""
    for group, description in zip(groups, descriptions, strict=True):
        views, start = _views(whole, description, memory, start)
        values = [torch.from_numpy(one) for one in _positions(group, whole).values()]
        values += [tensors[name] for tensors, _ in group.updates for name in whole]
        values += [group.sums[name] for name in whole] if group.sums else []
        for view, value in zip(views, values, strict=True):
            view.copy_(value.view(view.shape))


def read_updates(
    whole: Tensors, described: Sequence[tuple[Sequence[CutDescription], SharedBytes, int]]
) -> dict[Hashable, CutUpdates]:
    """Read the updates of all processes, by cut."""
    groups: dict[Hashable, CutUpdates] = {}
    for descriptions, memory, start in described:
        for description in descriptions:
            views, start = _views(whole, description, memory, start)
            values = iter(views)
            arrays = [next(values).clone().numpy() for _ in description["positions"]]
            plan = {
                name: tuple((d, arrays[number]) for d, number in places)
                for name, places in description["plan"].items()
            }
            cut = PlannedCut(plan)
            group = groups.setdefault(cut.same_key, CutUpdates(cut))
            for weight in description["weights"]:
                group.add({name: next(values) for name in whole}, weight)
            if description["summed"] is not None:
                group.add_sums({name: next(values) for name in whole}, description["summed"])
    return groups
