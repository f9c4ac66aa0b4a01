"""One model for all processes of a machine: the first of them writes it, the others map it to read.

The memory has no name in any folder and goes when the processes do, however they end. Processes
that cannot reach each other's memory have models of their own, as those of other machines have.
"""

from __future__ import annotations

import mmap
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from submodel.algorithm.one_model import OneModel
from submodel.algorithm.types import State
from submodel.engines.processes.group import ProcessGroup
from submodel.engines.processes.machine import machine_name, map_memory
from submodel.model.build import local_of

_ALIGNMENT = 64  # bytes: as torch's own tensors


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
