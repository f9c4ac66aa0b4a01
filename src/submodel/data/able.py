"""The clients of a run who can hold so much: who trains such a sub-model, and who tries it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from submodel.data.population import Population
from submodel.randomness import permute_index

_ONE_IN = 10  # clients that keep out of training, to try what was trained
_MOST_VALIDATORS = 100


@dataclass(frozen=True, kw_only=True)
class AblePopulation(Population):
    """Clients who can hold a capacity, all with that capacity; some of them only try models.

    Args:
        whole: the clients of the run, each with a capacity of its own.
        validators: the clients who keep out of training.
    """

    whole: Population
    validators: Sequence[int] = ()

    def sample(self, round_: int, present: Collection[int] | None = None) -> list[int]:
        """The clients of a round, ascending: able ones of its group, or of all if it has none."""
        able = list(islice(self._able(self._places(self.group(round_)), round_), self.per_round))
        if not able and self.groups > 1:
            able = list(islice(self._able(range(self.count), round_), self.per_round))
        return sorted(client for client in able if present is None or client in present)

    def _able(self, places: range, round_: int) -> Iterator[int]:
        """Those of a stretch who train, in a random order that needs no table."""
        enough = max(*self.capacities, self.whole.least)
        for index in range(len(places)):
            place = permute_index(index, len(places), self.seed, "able", round_)
            client = self._at(places[place])
            if client in self._validators:
                continue
            if self.whole.capacity(client, round_) >= enough:
                yield client

    @cached_property
    def _validators(self) -> frozenset[int]:
        return frozenset(self.validators)


def able_clients(whole: Population, capacity: float, keep_out: bool) -> AblePopulation:
    """The clients of a run who can hold a capacity.

    Args:
        whole: all of them.
        capacity: the one that all are given.
        keep_out: whether one in ten (at most 100, and none of fewer than ten) keeps out of
            training, for others to be tried on its examples.

    >>> clients = Population(40, 5, [1.0, 0.5], [1, 1], "fixed", seed=0)
    >>> able = able_clients(clients, 1.0, keep_out=True)
    >>> able.sample(0), able.validators
    ([4, 13, 27, 31, 36], (9, 17, 21))
    """
    validators: tuple[int, ...] = ()
    enough = max(capacity, whole.least)
    if keep_out:
        candidates = (
            permute_index(index, whole.count, whole.seed, "validators")
            for index in range(min(whole.count // _ONE_IN, _MOST_VALIDATORS))
        )
        validators = tuple(sorted(c for c in candidates if whole.capacity(c, 0) >= enough))
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
