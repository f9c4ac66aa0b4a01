"""Which weights of a tensor some cuts hold together, and how many, without masks of all tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from submodel.model.axes.layout import Indices
from submodel.model.cut import Cut

_LEAST = 1 << 16  # values; of smaller tensors a mask is as quick
_FEW = 10  # cuts, of which all sets are counted
_BITS = 63  # of a whole number: fewer cuts than that are told apart by one


def count_union(cuts: Sequence[Cut], name: str, shape: Sequence[int]) -> int | None:
    """The number of weights that at least one of the cuts holds.

    Rows that the same cuts hold have the same columns covered, and so on: what counts is who holds
    which positions along each dimension.

    Args:
        cuts: by positions.
        name: of the tensor.
        shape: of the tensor.

    Returns:
        None where the tensor is small, or where a cut has masks.

    >>> from submodel.model.cut import PlannedCut
    >>> one, two = (PlannedCut({"w": ((0, np.arange(n)),)}) for n in (300, 400))
    >>> count_union([one, two], "w", (1000, 100)), count_union([one], "w", (10, 10))
    (40000, None)
    """
    if math.prod(shape) < _LEAST or any(cut.mask(name) is not None for cut in cuts):
        return None
    places = [dict(cut.places(name)) for cut in cuts]
    if len(cuts) <= _FEW:
        return _count_few([_codes(places, d, size) for d, size in enumerate(shape)], len(cuts))
    holders = []
    for dimension, size in enumerate(shape):
        rows = np.zeros((size, len(cuts)), dtype=np.bool_)
        for number, one in enumerate(places):
            rows[one.get(dimension, slice(None)), number] = True
        holders.append(rows)
    return _count(holders, np.ones(len(cuts), dtype=np.bool_))


def _codes(places: Sequence[Mapping[int, Indices]], d: int, size: int) -> NDArray[np.int64]:
    """Who holds each position along a dimension, as bits."""
    codes = np.zeros(size, np.int64)
    for number, one in enumerate(places):
        codes[one.get(d, slice(None))] |= 1 << number
    return codes


def _count_few(codes: Sequence[NDArray[np.int64]], count: int) -> int:
    """The weights that somebody holds: what they have in common along all dimensions."""
    everyone = np.arange(1 << count)
    counts = np.ones(1, np.int64)  # by who holds what, over the dimensions so far
    holders = everyone[-1:]
    for one in codes:
        here = np.bincount(one, minlength=1 << count)
        both = (holders[:, None] & everyone[here > 0]).reshape(-1)
        products = (counts[:, None] * here[here > 0]).reshape(-1)
        totals = np.zeros(1 << count, np.int64)
        np.add.at(totals, both, products)
        holders = everyone[totals > 0]
        counts = totals[holders]
    return int(counts[holders > 0].sum())


def _count(holders: Sequence[NDArray[np.bool_]], still: NDArray[np.bool_]) -> int:
    """The weights that those who are still counted hold, over the dimensions that remain."""
    if not still.any():
        return 0
    if not holders:
        return 1
    mine = holders[0] & still
    if still.sum() == 1:
        return int(mine.any(1).sum()) * _count(holders[1:], still)
    if mine.shape[1] < _BITS:
        codes = mine @ (np.int64(1) << np.arange(mine.shape[1]))
        _, first, counts = np.unique(codes, return_index=True, return_counts=True)
    else:
        _, first, counts = np.unique(mine, axis=0, return_index=True, return_counts=True)
    sets = zip(mine[first], counts.tolist(), strict=True)
    return sum(count * _count(holders[1:], who) for who, count in sets)


class LazyMasks(Mapping[str, Tensor]):
    """Masks that are made when they are asked for, as few server steps ask.

    Args:
        names: of the tensors.
        make: the mask of a tensor.
    """

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
