"""How processes merge together: sums piece by piece, or all updates in memory that all see.

Where processes see one memory, each puts its updates there. Then all processes hold all updates, as
if each had trained every client itself, and merge them alike: no sums travel.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from submodel.algorithm.merge.waiting import Holding
from submodel.model.axes.layout import Indices
from submodel.model.cut import PlannedCut, Tensors

_ALIGNMENT = 64  # bytes: as torch's own tensors
SharedBytes = Any
"""Bytes that can be written and read, such as an `mmap.mmap`."""
UpdateParcel = Mapping[str, Any]
"""What a process has of one cut, as JSON can tell it: the plan, whose positions lie in memory, the
weights of the clients, and that of those who are summed already."""


class Exchange(Protocol):
    """With the other processes of a group; all take part in the same order."""

    def add(self, values: Tensor) -> None:
        """Let the values be the sums of everyone's, in place."""
        ...

    def gather(self, word: str | None) -> list[str | None]:
        """The words of all."""
        ...

    def release(self) -> None:
        """Nobody needs the updates of this round any more, wherever they lie."""
        ...


def describe_updates(whole: Tensors, holdings: Sequence[Holding]) -> dict[str, Any] | None:
    """What a process has, and how many bytes it takes; None where masks say who holds what.

    Args:
        whole: the global tensors.
        holdings: the clients.
    """
    parcels: list[UpdateParcel] = []
    end = 0
    for holding in holdings:
        if any(holding.cut.mask(name) is not None for name in whole):
            return None
        if any(t[n].dtype != whole[n].dtype for t, _ in holding.updates for n in whole):
            return None
        arrays = _positions(holding, whole)
        numbers = {key: number for number, key in enumerate(arrays)}
        parcel = {
            "plan": {
                name: [[d, numbers[id(positions)]] for d, positions in places]
                for name in whole
                if (places := holding.cut.places(name))
            },
            "positions": [len(positions) for positions in arrays.values()],
            "weights": [weight for _, weight in holding.updates],
            "summed": holding.weight - sum(w for _, w in holding.updates) if holding.sums else None,
        }
        parcels.append(parcel)
        *_, (end, _, _) = [(end, (), torch.int64), *_lay_out(whole, parcel, end)]
    return {"parcels": parcels, "size": -(-end // _ALIGNMENT) * _ALIGNMENT}


def _positions(holding: Holding, whole: Tensors) -> dict[int, Indices]:
    """The lists of positions of a cut, which tensors share, by their identity."""
    return {id(positions): positions for n in whole for _, positions in holding.cut.places(n)}


def _lay_out(
    whole: Tensors, parcel: UpdateParcel, start: int
) -> Iterator[tuple[int, Sequence[int], torch.dtype]]:
    """The end, the shape and the kind of all that a parcel tells of, in the order of `_values`."""
    shapes = {name: list(tensor.shape) for name, tensor in whole.items()}
    for name, places in parcel["plan"].items():
        for d, number in places:
            shapes[name][d] = parcel["positions"][number]
    entries: list[tuple[Sequence[int], torch.dtype]]
    entries = [((count,), torch.int64) for count in parcel["positions"]]
    entries += [(shapes[n], whole[n].dtype) for _ in parcel["weights"] for n in whole]
    if parcel["summed"] is not None:
        entries += [((2, math.prod(shapes[n])), torch.float64) for n in whole]
    for shape, dtype in entries:
        start = -(-start // _ALIGNMENT) * _ALIGNMENT + math.prod(shape) * dtype.itemsize
        yield start, shape, dtype


def _views(
    whole: Tensors, parcel: UpdateParcel, memory: SharedBytes, start: int
) -> tuple[list[Tensor], int]:
    """Everything of a parcel as tensors in memory, and where they end."""
    views = []
    for end, shape, dtype in _lay_out(whole, parcel, start):
        count = math.prod(shape)
        first = end - count * dtype.itemsize
        flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=first) if count else None
        views.append(torch.empty(shape, dtype=dtype) if flat is None else flat.view(shape))
        start = end
    return views, start


def fill(
    whole: Tensors,
    holdings: Sequence[Holding],
    parcels: Sequence[UpdateParcel],
    memory: SharedBytes,
    start: int,
) -> None:
    """Put into memory what was described.

    Args:
        whole: the global tensors.
        holdings: the clients.
        parcels: the description.
        memory: where.
        start: the first byte.
    """
    for holding, parcel in zip(holdings, parcels, strict=True):
        views, start = _views(whole, parcel, memory, start)
        values = [torch.from_numpy(one) for one in _positions(holding, whole).values()]
        values += [tensors[name] for tensors, _ in holding.updates for name in whole]
        values += [holding.sums[name] for name in whole] if holding.sums else []
        for view, value in zip(views, values, strict=True):
            view.copy_(value.view(view.shape))


def read_updates(
    whole: Tensors, everyones: Sequence[tuple[Sequence[UpdateParcel], SharedBytes, int]]
) -> dict[Hashable, Holding]:
    """The clients of all processes, by what they hold.

    Args:
        whole: the global tensors.
        everyones: of every process, the description, the memory and where it begins there.
    """
    holdings: dict[Hashable, Holding] = {}
    for parcels, memory, start in everyones:
        for parcel in parcels:
            views, start = _views(whole, parcel, memory, start)
            values = iter(views)
            arrays = [next(values).clone().numpy() for _ in parcel["positions"]]
            plan = {
                name: tuple((d, arrays[number]) for d, number in places)
                for name, places in parcel["plan"].items()
            }
            cut = PlannedCut(plan)
            holding = holdings.setdefault(cut.same_key, Holding(cut))
            for weight in parcel["weights"]:
                holding.add({name: next(values) for name in whole}, weight)
            if parcel["summed"] is not None:
                holding.add_sums({name: next(values) for name in whole}, parcel["summed"])
    return holdings
