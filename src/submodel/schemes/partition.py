"""Independent subnet training: the clients of a round divide the units among themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from submodel.core.options import Count, Section
from submodel.core.randomness import generator
from submodel.schemes.scheme import Draw, Mask, RunFacts, Scheme

Deal = dict[tuple[str, int], NDArray[np.int64]]


def _exact(share: float) -> Fraction:
    """Return the intended fraction: 1/3, not its float."""
    return Fraction(share).limit_denominator(1 << 20)


@lru_cache(maxsize=2)  # of periods: a permutation may be as long as the model
def _deal(seed: int, period: int) -> Deal:  # noqa: ARG001
    return {}


def _order(seed: int, period: int, axis: str, size: int) -> NDArray[np.int64]:
    """Return the permutation by which the units of an axis are dealt, the same for all clients."""
    deal = _deal(seed, period)
    if (axis, size) not in deal:
        deal[axis, size] = generator(seed, "partition", period, axis).permutation(size)
    return deal[axis, size]


@dataclass(frozen=True)
class PartitionScheme(Scheme):
    """IST (Yuan, Wolfe, Dun, Tang, Kyrillidis, Jermaine 2022).

    "Distributed learning of fully connected neural networks using independent subnet training":
    the n units of every axis are permuted, alike for all clients, and the client in place k of the
    round, of the common capacity c, holds those in positions floor(k c n), ..., floor((k + 1) c n)
    - 1. So no two clients of a round share a unit, and if c is one over the number of clients per
    round, every unit is held. A new permutation is drawn every ``every`` rounds.

    A weight between two cut axes is trained only if one client holds both of its ends; the others
    wait for another permutation. IST copies a weight back from its only holder, as the merge rule
    ``selective`` does; ``fill_in`` divides it by the clients of the round, as always.
    """

    every: int = 1

    class Options(Section):
        """The keys of ``partition``."""

        every: Count = Field(1, description="rounds between redraws")

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        """Select the units dealt to this place.

        >>> draws = [Draw(0, 0, 7, place=k) for k in (0, 1)]
        >>> deal = [PartitionScheme().select("hidden", 5, 1 / 2, draw) for draw in draws]
        >>> [int(mask.sum()) for mask in deal], bool((deal[0] ^ deal[1]).all())
        ([2, 3], True)
        """
        share = _exact(capacity) * size
        start, stop = math.floor(draw.place * share), math.floor((draw.place + 1) * share)
        if stop > size:
            raise ValueError(f"place {draw.place}: {capacity:g} of axis {axis} is not left")
        mask = np.zeros(size, dtype=np.bool_)
        mask[_order(draw.seed, draw.round // self.every, axis, size)[start:stop]] = True
        return mask

    def problems(self, run: RunFacts) -> list[str]:
        """Return the reasons why the units do not suffice for all clients, or for one."""
        capacities = sorted(set(run.capacities), reverse=True)
        if len(capacities) > 1:
            several = ", ".join(f"{c:g}" for c in capacities)
            return [f"clients.capacities: partition deals equal parts: give one, not {several}; "
                    f"{_advice(run.sizes, run.per_round)}"]  # fmt: skip
        problems = []
        for axis, size in run.sizes.items():
            least = run.least.get(axis, 0.0)
            key = f"axes.least.{axis}" if least > capacities[0] else "clients.capacities"
            share = _exact(max(capacities[0], least))
            if share * run.per_round > 1:
                problems.append(
                    f"{key}: {run.per_round} clients per round cannot hold {float(share):g} of "
                    f"axis {axis} each without sharing units; "
                    f"{_advice(run.sizes, run.per_round, whole=share == 1)}"
                )
            elif share * size < 1:
                problems.append(
                    f"{key}: {float(share):g} of the {size} units of axis {axis} is less than one "
                    f"unit, so some client would hold none; "
                    f"{_advice(run.sizes, run.per_round)}"
                )
        return problems


def _advice(sizes: Mapping[str, int], per_round: int, whole: bool = False) -> str:
    """Suggest a capacity by which all axes can be dealt, or the largest number of clients."""
    if whole:  # then the axes are unknown, as nothing would be cut
        return f'"1/{per_round}" might do, or clients.per_round = 1'
    axis = min(sizes, key=lambda name: sizes[name])
    if sizes[axis] < per_round:
        return f"with {sizes[axis]} units, axis {axis} allows clients.per_round up to {sizes[axis]}"
    return f'"1/{per_round}" deals out every unit of every axis'
