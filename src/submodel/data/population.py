"""The population: participants and capacities. Nothing here grows with the number of clients."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from submodel.core.randomness import generator, permute_index

Sampling = Literal["uniform", "cyclic", "shuffled-cyclic"]
_ONE_IN = 10  # fraction of clients kept out of training for validation
_MOST_VALIDATORS = 100


@dataclass(frozen=True)
class Population:
    """The registered clients: how many take part in a round, and their capacities.

    ``uniform`` sampling draws from all clients. ``cyclic`` is cyclic client participation (Cho,
    Sharma, Joshi, Xu, Kale and Zhang, "On the convergence of federated averaging with cyclic client
    participation", 2023): the clients are divided once, at random, into ``groups`` whose sizes
    differ by at most one; round r draws from group r mod G. ``shuffled-cyclic`` visits the groups
    of every cycle of G rounds in a fresh random order. Within a group all are equally likely.
    Clients with a capacity below ``least`` in a round are skipped.
    """

    count: int
    per_round: int
    capacities: Sequence[float]
    proportions: Sequence[float]
    capacity_mode: Literal["fixed", "dynamic"]
    seed: int
    sampling: Sampling = "uniform"
    groups: int = 1
    least: float = 0.0

    def sample(self, round_: int, present: Collection[int] | None = None) -> list[int]:
        """Return the clients of a round, ascending; the whole group if it has just enough.

        With ``present``, only these clients are drawn.

        >>> Population(1000000, 3, [1.0], [1.0], "fixed", seed=0).sample(0)
        [374496, 762718, 950106]
        """
        places: Sequence[int] = self._places(self.group(round_))
        if self.least > 0 and present is None:
            return sorted(islice(self._able_clients(round_, places), self.per_round))
        if present is not None:
            places = [place for place in places if self._at(place) in present]
        sample_places: Iterable[int] = places
        if self.per_round < len(places):
            rng = generator(self.seed, "sample", round_)
            draws = rng.choice(len(places), self.per_round, replace=False)
            sample_places = (places[int(i)] for i in draws)
        return sorted(map(self._at, sample_places))

    def _able_clients(self, round_: int, places: Sequence[int]) -> Iterator[int]:
        """Yield the able clients of a stretch, in a random order without a table."""
        for index in range(len(places)):
            place = places[permute_index(index, len(places), self.seed, "able", round_)]
            if self._is_able(client := self._at(place), round_):
                yield client

    def _is_able(self, client: int, round_: int) -> bool:
        return self.capacity(client, round_) >= self.least

    def everyone(self) -> Sequence[int]:
        """Return the clients of the output step."""
        return range(self.count)

    def group(self, round_: int) -> int:
        """Return the group of a round.

        >>> clients = Population(9, 3, [1.0], [1.0], "fixed", 0, "cyclic", groups=3)
        >>> [clients.group(r) for r in range(4)], clients.members(0)
        ([0, 1, 2, 0], [1, 2, 5])
        """
        cycle, turn = divmod(round_, self.groups)
        if self.sampling == "shuffled-cyclic":
            return permute_index(turn, self.groups, self.seed, "cycle", cycle)
        return turn

    def members(self, group: int) -> list[int]:
        """Return the clients of a group, ascending."""
        return sorted(map(self._at, self._places(group)))

    def _places(self, group: int) -> range:
        """Return the stretch of the clients' random order that is a group."""
        return range(group * self.count // self.groups, (group + 1) * self.count // self.groups)

    def _at(self, place: int) -> int:
        """Return the client at a place of that order; with one group, in order of numbers."""
        if self.groups == 1:
            return place
        return permute_index(place, self.count, self.seed, "groups")

    @cached_property
    def _levels(self) -> NDArray[np.float64]:
        shares = np.asarray(self.proportions, dtype=np.float64)
        return np.cumsum(shares / shares.sum())

    @cached_property
    def _shuffle(self) -> tuple[int, int]:
        """An affine bijection of the clients: a pseudo-random order without a table."""
        rng = generator(self.seed, "capacity-order")
        factor = int(rng.integers(1, self.count + 1))
        while math.gcd(factor, self.count) != 1:
            factor += 1
        return factor, int(rng.integers(self.count))

    def capacity(self, client: int, round_: int) -> float:
        """Return the capacity: ``fixed`` in exact proportions, or ``dynamic``, drawn every round.

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


@dataclass(frozen=True, kw_only=True)
class AblePopulation(Population):
    """Clients with at least a given capacity, all used at that capacity; some are validators."""

    whole: Population  # all clients of the run, with their own capacities
    validators: Sequence[int] = ()  # clients kept out of training

    def sample(self, round_: int, present: Collection[int] | None = None) -> list[int]:
        """Return the able clients of the round's group, ascending; of all groups if it has none."""
        places = self._places(self.group(round_))
        able = list(islice(self._able_clients(round_, places), self.per_round))
        if not able and self.groups > 1:
            able = list(islice(self._able_clients(round_, range(self.count)), self.per_round))
        return sorted(client for client in able if present is None or client in present)

    def _is_able(self, client: int, round_: int) -> bool:
        if client in self._validators:
            return False
        return self.whole.capacity(client, round_) >= max(*self.capacities, self.whole.least)

    @cached_property
    def _validators(self) -> frozenset[int]:
        return frozenset(self.validators)


def able_clients(whole: Population, capacity: float, keep_out: bool) -> AblePopulation:
    """Return the clients of a run with at least a given capacity.

    With ``keep_out``, one client in ten (at most 100, and none of fewer than ten) is kept out of
    training, so that models can be validated on its examples.

    >>> clients = Population(40, 5, [1.0, 0.5], [1, 1], "fixed", seed=0)
    >>> able = able_clients(clients, 1.0, keep_out=True)
    >>> able.sample(0), able.validators
    ([4, 13, 27, 31, 36], (9, 17, 21))
    """
    validators: tuple[int, ...] = ()
    enough = max(capacity, whole.least)
    if keep_out:
        drawn = (
            permute_index(index, whole.count, whole.seed, "validators")
            for index in range(min(whole.count // _ONE_IN, _MOST_VALIDATORS))
        )
        validators = tuple(sorted(c for c in drawn if whole.capacity(c, 0) >= enough))
    return AblePopulation(
        count=whole.count,
        per_round=whole.per_round,
        capacities=(capacity,),
        proportions=(1.0,),
        capacity_mode="fixed",
        seed=whole.seed,
        sampling=whole.sampling,
        groups=whole.groups,
        whole=whole,
        validators=validators,
    )
