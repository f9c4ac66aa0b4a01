"""Who held what in a round, as plain data: what nobody could work out again after the run.

Who took part is always told. Which units each held follows from the seed and that, but for schemes
whose draws clients cannot repeat: theirs are told as bits, one set for all clients that held the
same. Masks of single weights would be as large as the model, so they are counted by tensor.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from submodel.algorithm.types import Assignment, Setup, State
from submodel.model.axes.layout import Indices
from submodel.model.cut import Cut, UnitCut
from submodel.schemes.roles import sends_masks


def pack_units(units: Indices, size: int) -> str:
    """Positions as a bit for each unit, the first unit first, in base64.

    Args:
        units: the positions.
        size: how many units there are.

    >>> pack_units(np.array([0, 2, 3]), 4)
    'sA=='
    """
    mask = np.zeros(size, np.bool_)
    mask[units] = True
    return base64.b64encode(np.packbits(mask).tobytes()).decode("ascii")


def unpack_units(text: str, size: int) -> NDArray[np.bool_]:
    """The mask that `pack_units` wrote; raises `ValueError` for a text of another length.

    Args:
        text: bits in base64.
        size: how many units there are.

    >>> unpack_units("sA==", 4)
    array([ True, False,  True,  True])
    """
    bits = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    if len(bits) != -(-size // 8):
        raise ValueError(f"{len(bits)} bytes are not the bits of {size} units")
    return np.unpackbits(bits, count=size).astype(np.bool_)


@dataclass(frozen=True)
class SharedCut:
    """The units that some clients held, all the same.

    Args:
        clients: their numbers, ascending.
        units: by axis, as `pack_units` writes them; an axis that is not named was held whole.
    """

    clients: tuple[int, ...]
    units: Mapping[str, str]


@dataclass(frozen=True)
class Holdings:
    """What is told of a round.

    Args:
        takers: whose updates were merged, by place.
        cuts: what they held, where that cannot be drawn again; ordered by their first client.
        weights: by capacity, how many weights of each parameter (by name, in alphabetical order)
            its clients held in all, where single weights are cut.
    """

    takers: tuple[Assignment, ...] = ()
    cuts: tuple[SharedCut, ...] = ()
    weights: Mapping[float, tuple[int, ...]] = field(default_factory=dict)


class HoldingBook:
    """Notes who holds what while a round runs; every process has one, of the clients it trains.

    Args:
        sizes: of the axes whose units are to be told.
        shapes: of the parameters whose weights are to be counted.
    """

    def __init__(
        self,
        sizes: Mapping[str, int] = MappingProxyType({}),
        shapes: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        self._sizes, self._shapes = sizes, sorted(shapes.items())
        self._takers: list[Assignment] = []
        self._cuts: dict[Any, tuple[list[int], dict[str, str]]] = {}
        self._weights: dict[float, list[int]] = {}

    def note(self, assignment: Assignment, cut: Cut) -> None:
        """A client's update was merged.

        Args:
            assignment: whose.
            cut: what it held.
        """
        self._takers.append(assignment)
        if self._sizes and isinstance(cut, UnitCut):
            if cut.same_key not in self._cuts:
                self._cuts[cut.same_key] = [], self._pack(cut)
            self._cuts[cut.same_key][0].append(assignment.client)
        if self._shapes:
            counts = [cut.value_count(name, shape) for name, shape in self._shapes]
            before = self._weights.get(assignment.capacity, [0] * len(counts))
            total = [a + b for a, b in zip(before, counts, strict=True)]
            self._weights[assignment.capacity] = total

    def _pack(self, cut: UnitCut) -> dict[str, str]:
        return {
            axis: pack_units(units, self._sizes[axis])
            for axis, units in cut.units.items()
            if axis in self._sizes
        }

    def plain(self) -> dict[str, Any]:
        """The notes as plain data, for the other processes of a run."""
        return {
            "takers": [[a.round, a.client, a.capacity, a.place] for a in self._takers],
            "cuts": list(self._cuts.values()),
            "weights": list(self._weights.items()),
        }

    def merge(self, books: Sequence[Mapping[str, Any]]) -> None:
        """Take the notes of all processes for one's own."""
        self._takers = [Assignment(*taker) for book in books for taker in book["takers"]]
        self._cuts, self._weights = {}, {}
        for book in books:
            for clients, units in book["cuts"]:
                key = tuple(sorted(units.items()))
                self._cuts.setdefault(key, ([], units))[0].extend(clients)
            for capacity, counts in book["weights"]:
                before = self._weights.get(capacity, [0] * len(counts))
                self._weights[capacity] = [a + b for a, b in zip(before, counts, strict=True)]

    def close(self) -> Holdings:
        """What is told of the round, whatever order updates came in."""
        cuts = [SharedCut(tuple(sorted(clients)), units) for clients, units in self._cuts.values()]
        return Holdings(
            tuple(sorted(self._takers, key=lambda taker: taker.place)),
            tuple(sorted(cuts, key=lambda cut: cut.clients)),
            {c: tuple(counts) for c, counts in sorted(self._weights.items(), reverse=True)},
        )


def open_book(setup: Setup, state: State) -> HoldingBook:
    """The book of a round, for what has to be told of it.

    Args:
        setup: of the round.
        state: that it begins with.
    """
    if setup.granularity == "coordinate" or setup.alignment == "independent":
        return HoldingBook(shapes={n: state.tensors[n].shape for n in setup.parameter_names})
    return HoldingBook(setup.axes.cut_by_capacity if sends_masks(setup.scheme) else {})
