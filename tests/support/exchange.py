"""Accumulators of several processes, here of several threads, that are merged together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from torch import Tensor

from submodel.algorithm.merge import Accumulator


class ThreadExchange:
    """What one of some threads sees of the others; waits for all of them.

    Args:
        number: of this thread.
        table: what every thread lays down, shared by all.
        barrier: of all threads.
    """

    def __init__(self, number: int, table: dict[int, Any], barrier: Barrier) -> None:
        self._number, self._table, self._barrier = number, table, barrier

    def add(self, values: Tensor) -> None:
        """Let the values be the sums of everyone's."""
        everyones = self._round(values.clone())
        assert len({one.shape for one in everyones}) == 1
        values.zero_()
        for one in everyones:
            values += one

    def gather(self, word: str | None) -> list[str | None]:
        """The words of all."""
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
    """What each of the accumulators merges, once they are joined."""
    table: dict[int, Any] = {}
    barrier = Barrier(len(accumulators))

    def merge(number: int) -> dict[str, Tensor]:
        accumulators[number].join(ThreadExchange(number, table, barrier))
        return accumulators[number].merge()

    with ThreadPoolExecutor(len(accumulators)) as pool:
        return list(pool.map(merge, range(len(accumulators))))


def merge_all_updates(accumulators: Sequence[Accumulator]) -> list[dict[str, Tensor]]:
    """What each of the accumulators merges, once each has the updates of all, from one memory."""
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
