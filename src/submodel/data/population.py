"""Who takes part and how much each can hold. Nothing here grows with the registered clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from submodel.randomness import generator


@dataclass(frozen=True)
class Population:
    """The registered clients: how many take part in a round, and with which capacities."""

    count: int
    per_round: int
    capacities: Sequence[float]
    proportions: Sequence[float]
    capacity_mode: Literal["fixed", "dynamic"]
    seed: int

    def sample(self, round_: int) -> list[int]:
        """The clients of a round, ascending; all of them if ``per_round`` is ``count``.

        >>> Population(1000000, 3, [1.0], [1.0], "fixed", seed=0).sample(0)
        [374496, 762718, 950106]
        """
        if self.per_round == self.count:
            return list(range(self.count))
        rng = generator(self.seed, "sample", round_)
        return sorted(int(c) for c in rng.choice(self.count, self.per_round, replace=False))

    @cached_property
    def _levels(self) -> NDArray[np.float64]:
        shares = np.asarray(self.proportions, dtype=np.float64)
        return np.cumsum(shares / shares.sum())

    @cached_property
    def _shuffle(self) -> tuple[int, int]:
        """An affine bijection of the clients: a random-looking order that needs no table."""
        rng = generator(self.seed, "capacity-order")
        factor = int(rng.integers(1, self.count + 1))
        while math.gcd(factor, self.count) != 1:
            factor += 1
        return factor, int(rng.integers(self.count))

    def capacity(self, client: int, round_: int) -> float:
        """What the client can hold: ``fixed`` in exact proportions, ``dynamic`` drawn every round.

        >>> clients = Population(8, 8, [1.0, 0.5], [1, 3], "fixed", seed=0)
        >>> sorted(clients.capacity(c, 0) for c in range(8))
        [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0, 1.0]
        """
        if self.capacity_mode == "dynamic":
            position = float(generator(self.seed, "capacity", round_, client).random())
        else:
            factor, offset = self._shuffle
            position = ((client * factor + offset) % self.count + 0.5) / self.count
        level = int(np.searchsorted(self._levels, position, side="right"))
        return float(self.capacities[min(level, len(self.capacities) - 1)])
