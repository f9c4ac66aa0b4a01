"""Memory that all processes of a machine see: one model for all of them, and everyone's updates.

The first process of a machine writes the model and the others map it to read; each process writes
its own updates and reads all. The memory has no name in any folder and goes when the processes do,
however they end. Processes that cannot reach each other's memory, as those of other machines, have
models of their own and exchange sums.
"""

from __future__ import annotations

import mmap
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from submodel.algorithm.merge import Accumulator
from submodel.algorithm.rounds import OneModel
from submodel.algorithm.types import State
from submodel.errors import LostProcessError
from submodel.model.build import local_of

if TYPE_CHECKING:
    from submodel.engines.processes.group import ProcessGroup

_ALIGNMENT = 64  # bytes: as torch's own tensors
_MUCH = 1 << 24  # bytes of updates that go back to the system until the next round
_BOOT, _NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")


def machine_name() -> str | None:
    """Equal for processes that can reach each other's memory; None where none can.

    >>> machine_name() == machine_name()
    True
    """
    try:
        if hasattr(os, "memfd_create"):
            return f"{_BOOT.read_text('utf-8').strip()} {_NAMESPACE.readlink()}"
    except OSError:
        pass
    return None


def map_memory(pid: int, handle: int, *, writes: bool) -> mmap.mmap | None:
    """The memory that a process has opened; None if it cannot be reached.

    Args:
        pid: of the process.
        handle: of the memory, there.
        writes: whether it may be written to.

    >>> map_memory(0, 0, writes=False)
    """
    try:
        mode = os.O_RDWR if writes else os.O_RDONLY
        own_handle = os.open(f"/proc/{pid}/fd/{handle}", mode | os.O_CLOEXEC)
        try:
            return mmap.mmap(
                own_handle, 0, access=mmap.ACCESS_WRITE if writes else mmap.ACCESS_READ
            )
        finally:
            os.close(own_handle)
    except (OSError, ValueError):
        return None


class SharedModel:
    """Tensors that all processes of a machine see; every process makes one at the same time.

    Args:
        group: the processes.
        tensors: of this process, with values in the first one; they are let go on the way.
        memory: that holds them.
        leaders: the ranks that write, one for each machine.
    """

    def __init__(
        self,
        group: ProcessGroup,
        tensors: dict[str, Tensor],
        memory: mmap.mmap,
        leaders: list[int],
    ) -> None:
        self._group, self._leaders = group, leaders
        self.writes = group.rank in leaders
        self.tensors = _views(tensors, memory)
        for name, view in self.tensors.items():
            value = tensors.pop(name)
            if group.rank == 0:
                view.copy_(value)
        if len(leaders) > 1:
            self._fill_others()
        group.tell({})

    def _fill_others(self) -> None:
        """Let the writers of all machines have the values of the first."""
        ours = dist.new_group(self._leaders)
        for view in self.tensors.values() if self.writes else ():
            values = view.to(self._group.device)
            dist.broadcast(values, 0, group=ours)
            if values is not view:
                view.copy_(values)

    def settle(self, state: State, one_model: OneModel) -> State:
        """The state with its tensors in this memory; what lies elsewhere is copied.

        Args:
            state: equal in all processes.
            one_model: is told when the model before goes.
        """
        stray_names = [
            name
            for name, tensor in state.tensors.items()
            if tensor.data_ptr() != self.tensors[name].data_ptr()
        ]
        if stray_names:
            self._group.tell({})  # nobody reads the model before any more
            one_model.is_torn = True
            for name in stray_names if self.writes else ():
                self.tensors[name].copy_(state.tensors[name])
            self._group.tell({})
        return replace(state, tensors=self.tensors)


def share_model(group: ProcessGroup, state: State, module: nn.Module) -> SharedModel | None:
    """The model of the first process, in memory that all of a machine see; None: not possible.

    Args:
        group: the processes, all of which call this.
        state: its tensors are let go.
        module: whose buffers that are not exchanged become those of the first process.
    """
    machines = [note["machine"] for note in group.tell({"machine": machine_name()})]
    if None in machines:
        return None
    leaders = sorted({machines.index(machine) for machine in machines})
    leader = machines.index(machines[group.rank])
    tensors = dict(state.tensors)
    handle = os.memfd_create("submodel") if group.rank == leader else -1
    try:
        if group.rank == leader:
            os.ftruncate(handle, _size(tensors))
        places = group.tell({"pid": os.getpid(), "handle": handle})
        place = places[leader]
        memory = map_memory(place["pid"], place["handle"], writes=group.rank == leader)
        if not all(note["mapped"] for note in group.tell({"mapped": memory is not None})):
            return None
    finally:
        if handle >= 0:
            os.close(handle)
    assert memory is not None
    group.agree_in_place(local_of(module))
    if isinstance(state.tensors, dict):
        state.tensors.clear()
    return SharedModel(group, tensors, memory, leaders)


def _places(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """Where every tensor begins and ends."""
    places, end = {}, 0
    for name, tensor in tensors.items():
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = start + tensor.numel() * tensor.element_size()
        places[name] = (start, end)
    return places


def _size(tensors: Mapping[str, Tensor]) -> int:
    return max([_ALIGNMENT, *(end for _, end in _places(tensors).values())])


def _views(tensors: Mapping[str, Tensor], memory: mmap.mmap) -> dict[str, Tensor]:
    """The tensors in the memory."""
    views = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        for name, (start, _) in _places(tensors).items():
            shape, dtype, count = tensors[name].shape, tensors[name].dtype, tensors[name].numel()
            if not count:
                views[name] = torch.empty(shape, dtype=dtype)
                continue
            view = torch.frombuffer(memory, dtype=dtype, count=count, offset=start)
            views[name] = view.view(shape)
    return views


class SharedUpdates:
    """The memory of every process of a group; all make one at the same time.

    Args:
        group: the processes.
    """

    def __init__(self, group: ProcessGroup) -> None:
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
