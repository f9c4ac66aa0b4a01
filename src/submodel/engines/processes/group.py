"""Several processes train one run, on one or many machines (SPMD over torch.distributed).

Every process plans the same round from (seed, round) and trains its part; sums are reduced piece by
piece as they are merged. They are exact (see `merge`), and the result of a task does not depend on
the process, so the number of processes does not change the model.

Processes of one machine share one model and all updates in memory. The first process writes the
model and the others map it read-only; each process writes its own updates and reads all. The memory
has no name in any folder and is freed when the processes end in any way. Processes without access
to each other's memory, for example on several machines, have their own models and exchange sums.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before a group exists, see `ProcessGroup.close`
from torch import Tensor, nn

from submodel.algorithm.execution import Bundle
from submodel.algorithm.merge import Accumulator
from submodel.algorithm.round_statistics import RoundStatistics
from submodel.algorithm.rounds import OneModel
from submodel.algorithm.types import State
from submodel.core.errors import LostProcessError, SubmodelError
from submodel.engines.device import own_device
from submodel.model.build import local_of

_LENGTH_BYTES, _AT_ONCE = 8, 4088  # bytes of a message; most messages fit in one exchange
_PATIENCE = timedelta(minutes=30)  # the others wait while one process evaluates


def in_process_group() -> bool:
    """Return whether torchrun or `launch` has started this process as one of a group.

    >>> in_process_group()
    False
    """
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def deal(bundles: Sequence[Bundle], processes: int) -> list[list[Bundle]]:
    """Distribute bundles over processes: the costliest first, each to the least loaded process.

    Bundles that are too large for an even distribution are split if that shortens the round.
    """
    total = sum(bundle.cost for bundle in bundles)
    best: list[list[Bundle]] = []
    shortest = math.inf
    for pieces in (0, 1, 2, 4, 8, 16):  # a bundle is at most 1/pieces of a part; 0: any size
        parts: list[list[Bundle]] = [[] for _ in range(processes)]
        loads = [0.0] * processes
        for bundle in sorted(_split(bundles, total, pieces * processes), key=lambda b: -b.cost):
            least = loads.index(min(loads))
            loads[least] += bundle.cost
            parts[least].append(bundle)
        if max(loads) < shortest:
            best, shortest = parts, max(loads)
    return best


def _split(bundles: Sequence[Bundle], total: float, pieces: int) -> Iterator[Bundle]:
    for bundle in bundles:
        parts = max(1, math.ceil(bundle.cost / total * pieces)) if total else 1
        yield from bundle.split(min(parts, len(bundle.assignments)))


class ProcessGroup:
    """The group of processes that train one run, for one of them."""

    def __init__(self, device: str) -> None:
        self.device = own_device(device)
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        try:
            dist.init_process_group(backend, timeout=_PATIENCE)
        except (RuntimeError, ValueError) as error:
            raise SubmodelError(f"the processes did not find each other: {error}") from None
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._updates: SharedUpdates | None = None  # after the first round

    def close(self) -> None:
        """Leave the group, and end its threads.

        The threads end when no reference to the group is left. A module of torch whose functions
        have the group as a default keeps it forever if it is first imported while the group exists,
        which torch does by itself: hence the import above. A remaining thread may abort the
        interpreter at exit.
        """
        dist.destroy_process_group()

    def share(self, bundles: Sequence[Bundle]) -> Sequence[Bundle]:
        """The part of this process, of about equal cost for all."""
        return deal(bundles, self.size)[self.rank]

    def reduce(self, accumulators: Sequence[Accumulator], statistics: RoundStatistics) -> None:
        """Exchange the statistics, and all updates if processes share memory.

        Otherwise sums are exchanged as they are merged.
        """
        if self._updates is None:
            self._updates = SharedUpdates(self)
        descriptions = [one.describe() for one in accumulators] if self._updates.is_open else None
        answers = self.gather_json(
            {"statistics": statistics.as_dict(), "descriptions": descriptions}
        )
        statistics.merge([answer["statistics"] for answer in answers])
        all_descriptions = [answer["descriptions"] for answer in answers]
        if any(one is None or None in one for one in all_descriptions):
            for accumulator in accumulators:
                accumulator.join(self)
        else:
            self._updates.exchange(accumulators, all_descriptions)

    def add(self, values: Tensor) -> None:
        """Replace the values by their sums over all processes, in place."""
        on_device = values.to(self.device)
        self._together(lambda: dist.all_reduce(on_device))
        if on_device is not values:
            values.copy_(on_device)

    def gather(self, word: str | None) -> list[str | None]:
        """The words of all processes."""
        return [answer["word"] for answer in self.gather_json({"word": word})]

    def release(self) -> None:
        """Free the updates of this round."""
        if self._updates is not None:
            self._updates.release()

    def spread(self, count: int, work: Callable[[int], Tensor]) -> list[Tensor]:
        """Compute every size-th piece in this process, and gather the pieces of all processes."""
        results = [work(number).to(self.device) for number in range(self.rank, count, self.size)]
        like = results[0] if results else work(0).to(self.device)  # more processes than pieces
        rows = -(-count // self.size)
        mine = torch.stack(results + [torch.zeros_like(like)] * (rows - len(results)))
        parts = [torch.zeros_like(mine) for _ in range(self.size)]
        self._together(lambda: dist.all_gather(parts, mine))
        return [parts[number % self.size][number // self.size] for number in range(count)]

    def gather_json(self, value: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The values of all processes, sent as JSON (nothing is unpickled); also a barrier."""
        text = json.dumps(value).encode()
        head = len(text).to_bytes(_LENGTH_BYTES, "little") + text[:_AT_ONCE]
        heads = self._gather_bytes(head, _LENGTH_BYTES + _AT_ONCE)
        lengths = [int.from_bytes(one[:_LENGTH_BYTES], "little") for one in heads]
        texts = [one[_LENGTH_BYTES:] for one in heads]
        if (longest := max(lengths)) > _AT_ONCE:  # rarely, the rest needs another exchange
            rests = self._gather_bytes(text[_AT_ONCE:], longest - _AT_ONCE)
            texts = [first + rest for first, rest in zip(texts, rests, strict=True)]
        return [json.loads(one[:length]) for one, length in zip(texts, lengths, strict=True)]

    def _gather_bytes(self, mine: bytes, size: int) -> list[bytes]:
        """The bytes of all processes, padded to one size."""
        message = torch.frombuffer(bytearray(mine.ljust(size, b"\0")), dtype=torch.uint8)
        buffer = message.to(self.device)
        buffers = [torch.empty_like(buffer) for _ in range(self.size)]
        self._together(lambda: dist.all_gather(buffers, buffer))
        return [one.cpu().numpy().tobytes() for one in buffers]

    def agree(self, state: State, *, shared: bool = False) -> State:
        """Broadcast the state of the first process."""
        round_ = torch.tensor([state.round], device=self.device)
        self._together(lambda: dist.broadcast(round_, 0))
        tensors = state.tensors if shared else self._same(state.tensors)
        return State(int(round_), tensors, self._same(state.memory))

    def agree_in_place(self, tensors: Mapping[str, Tensor]) -> None:
        """Broadcast the tensors of the first process, in place."""
        for name, value in self._same(tensors).items():
            tensors[name].copy_(value)

    def first(self, value: bool) -> bool:
        """Broadcast the value of the first process."""
        answer = torch.tensor([int(value)], device=self.device)
        self._together(lambda: dist.broadcast(answer, 0))
        return bool(answer)

    def _same(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of the first process."""
        device_tensors = {
            name: torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
            if tensor.is_meta
            else tensor.to(self.device)
            for name, tensor in tensors.items()
        }
        for tensor in device_tensors.values():
            self._together(lambda tensor=tensor: dist.broadcast(tensor, 0))  # type: ignore[misc]
        return {name: tensor.to("cpu") for name, tensor in device_tensors.items()}

    @staticmethod
    def _together(exchange: Callable[[], Any]) -> None:
        try:
            exchange()
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise LostProcessError(f"another process of the run was lost ({reason})") from None


_ALIGNMENT = 64  # bytes, as for torch's tensors
_MUCH = 1 << 24  # from so many bytes on, memory of updates is returned to the system after a round
_BOOT, _NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")


def machine_name() -> str | None:
    """A key that is equal for processes that can map each other's memory; None if impossible.

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
    """Map the memory file of a process; None if it cannot be opened.

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
    """Tensors shared by all processes of a machine; all processes create it at the same time.

    ``tensors`` of this process, with values in the first one, are removed meanwhile. ``leaders``
    are the ranks that write, one for each machine.
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
        group.gather_json({})

    def _fill_others(self) -> None:
        """Broadcast the values of the first process to the writers of all machines."""
        ours = dist.new_group(self._leaders)
        for view in self.tensors.values() if self.writes else ():
            values = view.to(self._group.device)
            dist.broadcast(values, 0, group=ours)
            if values is not view:
                view.copy_(values)

    def settle(self, state: State, one_model: OneModel) -> State:
        """Move the tensors of a state to this memory; copy those that are elsewhere."""
        stray_names = [
            name
            for name, tensor in state.tensors.items()
            if tensor.data_ptr() != self.tensors[name].data_ptr()
        ]
        if stray_names:
            self._group.gather_json({})  # a barrier: no process reads the old model
            one_model.is_torn = True
            for name in stray_names if self.writes else ():
                self.tensors[name].copy_(state.tensors[name])
            self._group.gather_json({})
        return replace(state, tensors=self.tensors)


def share_model(group: ProcessGroup, state: State, module: nn.Module) -> SharedModel | None:
    """Share the model of the first process on every machine; None if impossible.

    All processes call it. The state's tensors are removed; buffers of the module that are not
    exchanged get the values of the first process.
    """
    machines = [note["machine"] for note in group.gather_json({"machine": machine_name()})]
    if None in machines:
        return None
    leaders = sorted({machines.index(machine) for machine in machines})
    leader = machines.index(machines[group.rank])
    tensors = dict(state.tensors)
    handle = os.memfd_create("submodel") if group.rank == leader else -1
    try:
        if group.rank == leader:
            os.ftruncate(handle, _size(tensors))
        places = group.gather_json({"pid": os.getpid(), "handle": handle})
        place = places[leader]
        memory = map_memory(place["pid"], place["handle"], writes=group.rank == leader)
        if not all(note["mapped"] for note in group.gather_json({"mapped": memory is not None})):
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
    """Start and end of every tensor."""
    places, end = {}, 0
    for name, tensor in tensors.items():
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = start + tensor.numel() * tensor.element_size()
        places[name] = (start, end)
    return places


def _size(tensors: Mapping[str, Tensor]) -> int:
    return max([_ALIGNMENT, *(end for _, end in _places(tensors).values())])


def _views(tensors: Mapping[str, Tensor], memory: mmap.mmap) -> dict[str, Tensor]:
    """Tensors that view the memory."""
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
    """Shared memory for the updates of all processes, which create it at the same time."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        machine = machine_name()
        handle = -1 if machine is None else os.memfd_create("submodel-updates")
        notes = group.gather_json({"machine": machine, "pid": os.getpid(), "handle": handle})
        self._places = [(note["pid"], note["handle"]) for note in notes]
        self._handle = handle
        self._memories: list[mmap.mmap | None] = [None] * group.size
        self._sizes = [0] * group.size
        self.is_open = machine is not None and all(n["machine"] == machine for n in notes)
        if self.is_open:
            os.ftruncate(handle, mmap.PAGESIZE)
            group.gather_json({})
            can_map = all(map_memory(*place, writes=True) is not None for place in self._places)
            self.is_open = all(note["can_map"] for note in group.gather_json({"can_map": can_map}))

    def exchange(
        self,
        accumulators: Sequence[Accumulator],
        all_descriptions: Sequence[Sequence[Mapping[str, Any]]],
    ) -> None:
        """Exchange the updates of all processes, overwriting those of the last round."""
        mine = self._group.rank
        self._map(mine, all_descriptions[mine])
        starts = [_starts(descriptions) for descriptions in all_descriptions]
        for one, description, start in zip(
            accumulators, all_descriptions[mine], starts[mine], strict=True
        ):
            one.hand_over(description, self._memories[mine], start)
        self._group.gather_json({})
        for rank, descriptions in enumerate(all_descriptions):
            self._map(rank, descriptions)
        for number, one in enumerate(accumulators):
            one.adopt(
                [
                    (descriptions[number], self._memories[rank], starts[rank][number])
                    for rank, descriptions in enumerate(all_descriptions)
                ],
                self._group,
            )

    def _map(self, rank: int, descriptions: Sequence[Mapping[str, Any]]) -> None:
        """Map the memory of a process, and enlarge it if it is this process's own."""
        size = sum(description["size"] for description in descriptions)
        if size <= self._sizes[rank]:
            return
        if rank == self._group.rank:
            os.ftruncate(self._handle, size)
        memory = map_memory(*self._places[rank], writes=True)
        if memory is None:
            raise LostProcessError("another process of the run was lost (its memory is gone)")
        self._memories[rank], self._sizes[rank] = memory, size

    def release(self) -> None:
        """Free the updates of this round if they take much memory."""
        memory = self._memories[self._group.rank]
        if memory is not None and len(memory) >= _MUCH:
            memory.madvise(mmap.MADV_REMOVE)


def _starts(descriptions: Sequence[Mapping[str, Any]]) -> list[int]:
    """The start of each accumulator's updates in a process's memory."""
    sizes = [description["size"] for description in descriptions]
    return [sum(sizes[:number]) for number in range(len(sizes))]
