"""Importance by size: a client holds the largest units or weights of the global model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from submodel.schemes.base import Draw, Given, Known, Mask, Scheme, units_held

Scope = Literal["axis", "global"]
"""Whether the largest are taken of every axis (of every tensor, for single weights) or of all."""


@dataclass(frozen=True)
class Importance(Scheme):
    """FIARSE's masks (Wu, Wang, Wang, Liu, Su, Gao 2024).

    "FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware Submodel Extraction": of
    the global model w with which a round begins, a client of capacity c holds the largest weights,
    m_i[j] = 1 where |w[j]| is among the ceil(c d) largest of the d ranked together, or the largest
    units by the mean |w| of the weights that go with them, scales and shifts of norms among them.
    Ties go to the earlier position. Capacities nest, and all clients of a capacity hold the same.

    ``axis`` ranks the units of each axis by themselves, single weights tensor by tensor.
    ``global`` ranks the units of all axes together, every axis keeping its largest; an axis may
    then be held to more than the capacity's share, others to less.

    The mask stands for the round: clients run plain masked SGD on it, and the merge goes by it. The
    published code instead compares |w| with a threshold in every forward pass, so a client's mask
    changes under way, passes a gradient through that comparison, and takes a weight for held where
    its change is not zero, so one that came back as it went is missing in the denominator.
    """

    scope: Scope = "axis"

    sends_masks = True

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        """The largest of the axis, of each of its tensors, or what the ranking of all leaves it."""
        known = draw.known
        if self.scope == "axis":
            return _largest_of_each(known.magnitudes(axis), known.pieces(axis), capacity)
        if list(known.axes) == [axis]:
            return largest(known.magnitudes(axis), units_held(capacity, size))
        return _among_all(axis, capacity, known)

    def problems(self, given: Given) -> list[str]:
        """A ranking of all axes together promises no share of any."""
        if self.scope == "global" and given.least:
            return ["axes.least: scheme.scope = 'global' ranks all axes together, so that none has "
                    "a share of its own; use scheme.scope = 'axis'"]  # fmt: skip
        return []


def largest(values: NDArray[np.float64], count: int) -> Mask:
    """The ``count`` largest values; of equal ones the earlier.

    >>> largest(np.array([1.0, 3.0, 2.0, 3.0, 2.0]), 3)
    array([False,  True,  True,  True, False])
    """
    if count >= len(values):
        return np.ones(len(values), dtype=np.bool_)
    if count <= 0:
        return np.zeros(len(values), dtype=np.bool_)
    least = np.partition(values, len(values) - count)[len(values) - count]
    mask: Mask = values > least
    mask[np.flatnonzero(values == least)[: count - int(mask.sum())]] = True
    return mask


def _largest_of_each(values: NDArray[np.float64], pieces: Sequence[int], capacity: float) -> Mask:
    parts = np.split(values, np.cumsum(pieces)[:-1])
    return np.concatenate([largest(part, units_held(capacity, len(part))) for part in parts])


def _among_all(axis: str, capacity: float, known: Known) -> Mask:
    """The axis's part of the largest units of all axes, the first of each axis being set."""
    values = {name: known.magnitudes(name) for name in known.axes}
    together = np.concatenate(list(values.values()))
    starts = dict(zip(values, np.cumsum([0, *map(len, values.values())]), strict=False))
    first = [int(starts[name] + np.argmax(values[name])) for name in values]
    together[first] = np.inf
    held = largest(together, max(units_held(capacity, len(together)), len(first)))
    return held[starts[axis] :][: len(values[axis])]
