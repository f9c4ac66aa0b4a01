"""Updates in memory that several processes see: what lies where, told as plain data.

All processes then hold all updates, as if they had trained every client themselves, and merge them
alike: no sums travel, and nobody asks again who held what.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from submodel.algorithm.merge.holding import Holding
from submodel.model.cut import PlannedCut, Tensors

_ALIGNMENT = 64  # bytes: as torch's own tensors
SharedBytes = Any
"""Bytes that can be written and read, such as an `mmap.mmap`."""
UpdateParcel = Mapping[str, Any]
"""What a process has of one cut, as JSON can tell it: the plan, whose positions lie in memory, the
weights of the clients, and that of those who are summed already."""


@dataclass(frozen=True)
class _Value:
    """A tensor in memory.

    Args:
        start: its first byte.
        shape: its shape.
        dtype: its type.
    """

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def view(self, memory: SharedBytes) -> Tensor:
        """The tensor itself."""
        count = math.prod(self.shape)
        if not count:
            return torch.empty(self.shape, dtype=self.dtype)
        flat = torch.frombuffer(memory, dtype=self.dtype, count=count, offset=self.start)
        return flat.view(self.shape)


class _Places:
    """Where the values of parcels lie, one after another, from a byte on."""

    def __init__(self, whole: Tensors, start: int) -> None:
        self._whole, self.end = whole, start

    def _next(self, shape: Sequence[int], dtype: torch.dtype) -> _Value:
        start = -(-self.end // _ALIGNMENT) * _ALIGNMENT
        self.end = start + math.prod(shape) * dtype.itemsize
        return _Value(start, tuple(shape), dtype)

    def of_positions(self, parcel: UpdateParcel) -> list[_Value]:
        """Those of its plan."""
        return [self._next((count,), torch.int64) for count in parcel["positions"]]

    def of_tensors(self, parcel: UpdateParcel) -> Iterator[dict[str, _Value]]:
        """Those of every client's tensors, then of the sums."""
        shapes = {name: list(tensor.shape) for name, tensor in self._whole.items()}
        for name, entries in parcel["plan"].items():
            for d, number in entries:
                shapes[name][d] = parcel["positions"][number]
        for _ in parcel["weights"]:
            yield {n: self._next(shapes[n], t.dtype) for n, t in self._whole.items()}
        if parcel["summed"] is not None:
            yield {n: self._next((2, math.prod(s)), torch.float64) for n, s in shapes.items()}


def _own_plan(holding: Holding, whole: Tensors) -> Mapping[str, Any]:
    return {n: places for n in whole if (places := holding.cut.places(n))}


def describe_updates(
    whole: Tensors, holdings: Sequence[Holding]
) -> tuple[list[UpdateParcel], int] | None:
    """What a process has, and how many bytes it takes; None where masks say who holds what.

    Args:
        whole: the global tensors.
        holdings: the clients.
    """
    parcels: list[UpdateParcel] = []
    places = _Places(whole, 0)
    for holding in holdings:
        if any(holding.cut.mask(name) is not None for name in whole):
            return None
        if any(t[n].dtype != whole[n].dtype for t, _ in holding.updates for n in whole):
            return None
        arrays: dict[int, NDArray[np.int64]] = {}
        plan = {}
        for name, entries in _own_plan(holding, whole).items():
            arrays |= {id(positions): positions for _, positions in entries}
            numbers = {key: number for number, key in enumerate(arrays)}
            plan[name] = [[d, numbers[id(positions)]] for d, positions in entries]
        parcel = {
            "plan": plan,
            "positions": [len(positions) for positions in arrays.values()],
            "weights": [weight for _, weight in holding.updates],
            "summed": holding.summed_weight if holding.is_folded else None,
        }
        parcels.append(parcel)
        places.of_positions(parcel)
        for _ in places.of_tensors(parcel):
            pass
    return parcels, -(-places.end // _ALIGNMENT) * _ALIGNMENT


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
    places = _Places(whole, start)
    for holding, parcel in zip(holdings, parcels, strict=True):
        arrays = {id(p): p for entries in _own_plan(holding, whole).values() for _, p in entries}
        for value, positions in zip(places.of_positions(parcel), arrays.values(), strict=True):
            value.view(memory).copy_(torch.from_numpy(positions))
        sources: list[Tensors] = [tensors for tensors, _ in holding.updates]
        sources += [holding.sums] if holding.is_folded else []
        for values, tensors in zip(places.of_tensors(parcel), sources, strict=True):
            for name, value in values.items():
                value.view(memory).copy_(tensors[name].view(value.shape))


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
        places = _Places(whole, start)
        for parcel in parcels:
            arrays = [v.view(memory).clone().numpy() for v in places.of_positions(parcel)]
            plan = {
                name: tuple((d, arrays[number]) for d, number in entries)
                for name, entries in parcel["plan"].items()
            }
            cut = PlannedCut(plan)
            if (holding := holdings.get(cut.same_key)) is None:
                holding = holdings[cut.same_key] = Holding(cut)
            every_values = list(places.of_tensors(parcel))
            for weight, values in zip(parcel["weights"], every_values, strict=False):
                holding.add({name: value.view(memory) for name, value in values.items()}, weight)
            if parcel["summed"] is not None:
                sums = {name: value.view(memory) for name, value in every_values[-1].items()}
                holding.add_sums(sums, parcel["summed"])
    return holdings
