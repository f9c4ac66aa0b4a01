"""A reader under attack: a function that reads bytes, and valid bytes."""

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
    """A function that reads bytes from ``file`` in an existing folder."""

    read: Callable[[Path], object]
    file: str
    seeds: Callable[[], tuple[bytes, ...]]
    mutation: Mutation
    before: Callable[[Path], None] = lambda _: None
    memory: int = 400_000_000  # allowed growth of the process in bytes, including mutations
    takes_what_it_can: bool = False  # and refuses nothing
    cases: int = 20_000  # of make test-deep

    def case(self, name: str, number: int) -> bytes:
        """Return the bytes of a case."""
        rng = mutate.draws(name, number)
        return mutate.spliced(rng, _seeds(self.seeds), self.mutation)
