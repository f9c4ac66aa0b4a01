"""Accumulators of several processes, simulated by threads, that are merged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from torch import Tensor

from submodel.algorithm.merge import Accumulator


class ThreadExchange:
    """Exchange between threads, which waits for all of them.

    Args:
        number: of this thread.
        table: entries of every thread, shared by all.
        barrier: of all threads.
    """

    def __init__(self, number: int, table: dict[int, Any], barrier: Barrier) -> None:
        self._number, self._table, self._barrier = number, table, barrier

    def add(self, values: Tensor) -> None:
        """Replace the values by the sums over all threads."""
        everyones = self._round(values.clone())
        assert len({one.shape for one in everyones}) == 1
        values.zero_()
        for one in everyones:
            values += one

    def gather(self, word: str | None) -> list[str | None]:
        """Return one string from every thread."""
        return self._round(word)

    def release(self) -> None:
        """Updates lie with their threads."""

    def _round(self, value: Any) -> list[Any]:
        self._table[self._number] = value
        self._barrier.wait(30)
        everyones = [self._table[number] for number in sorted(self._table)]
        self._barrier.wait(30)
        return everyones


def merge_in_threads(accumulators: Sequence[Accumulator]) -> list[dict[str, Tensor]]:
    """Return the merged result of each accumulator after the exchange."""
    table: dict[int, Any] = {}
    barrier = Barrier(len(accumulators))

    def merge(number: int) -> dict[str, Tensor]:
        accumulators[number].join(ThreadExchange(number, table, barrier))
        return accumulators[number].merge()

    with ThreadPoolExecutor(len(accumulators)) as pool:
        return list(pool.map(merge, range(len(accumulators))))


def merge_all_updates(accumulators: Sequence[Accumulator]) -> list[dict[str, Tensor]]:
    """Return the merged result of each accumulator that has all updates, from one memory."""
    descriptions = [json.loads(json.dumps(one.describe())) for one in accumulators]
    memories = [bytearray(64 + description["size"]) for description in descriptions]
    for one, description, memory in zip(accumulators, descriptions, memories, strict=True):
        one.hand_over(description, memory, 64)
    everyones = [
        (description, memory, 64)
        for description, memory in zip(descriptions, memories, strict=True)
    ]
    table: dict[int, Any] = {}
    barrier = Barrier(len(accumulators))

    def merge(number: int) -> dict[str, Tensor]:
        accumulators[number].adopt(everyones, ThreadExchange(number, table, barrier))
        return accumulators[number].merge()

    with ThreadPoolExecutor(len(accumulators)) as pool:
        return list(pool.map(merge, range(len(accumulators))))
