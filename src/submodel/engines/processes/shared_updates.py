"""Updates in memory that all processes of a machine see: each writes its own, and reads all.

The memory has no name in any folder and goes when the processes do, however they end. Where some
process cannot reach the memory of another, as on other machines, nothing is shared.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from submodel.algorithm.merge import Accumulator
from submodel.algorithm.merge.exchange import Exchange
from submodel.engines.processes.machine import machine_name, map_memory
from submodel.errors import LostProcessError

_MUCH = 1 << 24  # bytes that go back to the system until the next round


class Telling(Exchange, Protocol):
    """A group of processes, as this one sees it."""

    rank: int
    size: int

    def tell(self, value: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The values of all processes; nobody goes on before all."""
        ...


class SharedUpdates:
    """The memory of every process of a group; all make one at the same time.

    Args:
        group: the processes.
    """

    def __init__(self, group: Telling) -> None:
        self._group = group
        machine = machine_name()
        handle = -1 if machine is None else os.memfd_create("submodel-updates")
        notes = group.tell({"machine": machine, "pid": os.getpid(), "handle": handle})
        self._places = [(note["pid"], note["handle"]) for note in notes]
        self._handle = handle
        self._memories: list[mmap.mmap | None] = [None] * group.size
        self._sizes = [0] * group.size
        self.is_open = machine is not None and all(n["machine"] == machine for n in notes)
        if self.is_open:
            os.ftruncate(handle, mmap.PAGESIZE)
            group.tell({})
            can_map = all(map_memory(*place, writes=True) is not None for place in self._places)
            self.is_open = all(note["can_map"] for note in group.tell({"can_map": can_map}))

    def exchange(
        self, accumulators: Sequence[Accumulator], everyones: Sequence[Sequence[Mapping[str, Any]]]
    ) -> None:
        """Let every process have the updates of all; nobody reads those of the last round any more.

        Args:
            accumulators: of this process.
            everyones: what every process offers for each of them.
        """
        mine = self._group.rank
        self._make_room(mine, everyones[mine])
        starts = [_starts(offers) for offers in everyones]
        for one, offer, start in zip(accumulators, everyones[mine], starts[mine], strict=True):
            one.hand_over(offer, self._memories[mine], start)
        self._group.tell({})
        for rank, offers in enumerate(everyones):
            self._make_room(rank, offers)
        for number, one in enumerate(accumulators):
            one.adopt(
                [
                    (offers[number], self._memories[rank], starts[rank][number])
                    for rank, offers in enumerate(everyones)
                ],
                self._group,
            )

    def _make_room(self, rank: int, offers: Sequence[Mapping[str, Any]]) -> None:
        """Map the memory of a process, of which this one's own can grow."""
        size = sum(offer["size"] for offer in offers)
        if size <= self._sizes[rank]:
            return
        if rank == self._group.rank:
            os.ftruncate(self._handle, size)
        memory = map_memory(*self._places[rank], writes=True)
        if memory is None:
            raise LostProcessError("another process of the run was lost (its memory is gone)")
        self._memories[rank], self._sizes[rank] = memory, size

    def release(self) -> None:
        """Nobody reads the updates of this round any more: let go of much memory."""
        memory = self._memories[self._group.rank]
        if memory is not None and len(memory) >= _MUCH:
            memory.madvise(mmap.MADV_REMOVE)


def _starts(offers: Sequence[Mapping[str, Any]]) -> list[int]:
    """Where each of a process's offers begins."""
    sizes = [offer["size"] for offer in offers]
    return [sum(sizes[:number]) for number in range(len(sizes))]
