"""Which rounds, units and capacities are shown of a run, so that pictures stay small and quick."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from submodel.randomness import generator

MOST_ROUNDS = 240
MOST_COLUMNS = 64  # of an axis
MOST_CELLS = 400_000  # of all grids: a byte each
MOST_DRAWS = 60_000  # of one client and axis: some microseconds each
MOST_CAPACITIES = 8
LEAST_ROUNDS = 8


@dataclass(frozen=True)
class Extent:
    """How much there is to show.

    Args:
        sizes: how many units each axis has; of single weights, 1 for each tensor.
        clients: in a round.
        capacities: how many different ones.
    """

    sizes: Mapping[str, int]
    clients: int
    capacities: int

    def units_per_column(self, axis: str) -> int:
        """How many units of an axis stand in one column.

        Args:
            axis: its name.

        >>> extent = Extent({"hidden": 32, "wide": 512}, clients=10, capacities=5)
        >>> extent.units_per_column("hidden"), extent.units_per_column("wide")
        (1, 8)
        """
        return -(-self.sizes[axis] // MOST_COLUMNS)

    def most_rounds(self) -> int:
        """How many rounds can be shown.

        >>> Extent({"hidden": 32}, clients=10, capacities=5).most_rounds()
        240
        >>> Extent(dict.fromkeys("abcd", 512), clients=100, capacities=5).most_rounds()
        150
        """
        columns = sum(-(-n // self.units_per_column(axis)) for axis, n in self.sizes.items())
        by_cells = MOST_CELLS // max(1, columns * self.capacities)
        by_draws = MOST_DRAWS // max(1, self.clients * len(self.sizes))
        return max(LEAST_ROUNDS, min(MOST_ROUNDS, by_cells, by_draws))


def choose_rounds(rounds: Sequence[int], most: int, seed: int) -> list[int]:
    """At most so many of these rounds: the first, the last, and one of each stretch between them,
    drawn, as every k-th could be in step with what a scheme repeats.

    Args:
        rounds: their numbers, ascending.
        most: how many may be chosen, at least 2.
        seed: of the run: the same rounds are chosen each time.

    >>> choose_rounds(range(1, 5), 4, seed=0)
    [1, 2, 3, 4]
    >>> chosen = choose_rounds(range(1, 1001), 150, seed=0)
    >>> len(chosen), chosen[0], chosen[-1]
    (150, 1, 1000)
    """
    if len(rounds) <= most:
        return list(rounds)
    first, *between, last = rounds
    stretches = most - 2
    bounds = [*(k * len(between) // stretches for k in range(stretches)), len(between)]
    places = [
        int(generator(seed, "rounds shown", k).integers(start, end))
        for k, (start, end) in enumerate(pairwise(bounds))
    ]
    return [first, *(between[place] for place in places), last]


def capacity_levels(
    capacities: Iterable[float], configured_capacities: Collection[float]
) -> tuple[float, ...]:
    """The capacities that stand for all, descending: each for those that are no larger.

    Args:
        capacities: that clients had.
        configured_capacities: those of the configuration, which are never left out.

    >>> capacity_levels([0.5, 1.0, 0.5], [1.0, 0.5, 0.25])
    (1.0, 0.5, 0.25)
    >>> len(capacity_levels([k / 100 for k in range(1, 101)], [1.0]))
    8
    """
    levels = sorted({*capacities, *configured_capacities}, reverse=True)
    if len(levels) > MOST_CAPACITIES:
        places = np.linspace(0, len(levels) - 1, MOST_CAPACITIES).astype(int)
        levels = [levels[place] for place in places]
    return tuple(levels)


def level_of(capacity: float, levels: Sequence[float]) -> int:
    """The place of the smallest level that is no smaller than a capacity.

    Args:
        capacity: of a client.
        levels: descending.

    >>> level_of(0.3, [1.0, 0.5, 0.25])
    1
    """
    return max((k for k, level in enumerate(levels) if level >= capacity), default=0)
