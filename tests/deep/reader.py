"""A reader that is attacked: how bytes are read, and valid ones to begin with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.deep import mutate
from tests.deep.mutate import Mutation

_seeds = cache(lambda make: make())


@dataclass(frozen=True)
class Reader:
    """How bytes are read: ``file`` is where they are put first, in a folder that is there."""

    read: Callable[[Path], object]
    file: str
    seeds: Callable[[], tuple[bytes, ...]]
    mutation: Mutation
    before: Callable[[Path], None] = lambda _: None
    memory: int = 400_000_000  # bytes by which the process may grow, mutations included
    takes_what_it_can: bool = False  # and refuses nothing
    cases: int = 20_000  # of make test-deep

    def case(self, name: str, number: int) -> bytes:
        """The bytes of one case."""
        rng = mutate.draws(name, number)
        return mutate.spliced(rng, _seeds(self.seeds), self.mutation)
