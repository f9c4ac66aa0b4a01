"""Several processes train one run, here or on many machines (SPMD over torch.distributed).

Every process plans the same round from (seed, round) and trains its share; sums are put together
piece by piece as they are merged. They are exact (see `merge`), so the number of processes does not
change the model: what one task computes does not depend on who computes it.

Processes of one machine see one model and everyone's updates in shared memory. The first writes the
model and the others map it to read; each writes its own updates and reads all. The memory has no
name in any folder and goes when the processes do, however they end. Processes that cannot reach
each other's memory, as those of other machines, have models of their own and exchange sums.
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
import torch.distributed.nn  # before there is a group, see `ProcessGroup.close`
from torch import Tensor, nn

from submodel.algorithm.execution import Bundle
from submodel.algorithm.merge import Accumulator
from submodel.algorithm.round_statistics import RoundStatistics
from submodel.algorithm.rounds import OneModel
from submodel.algorithm.types import State
from submodel.core.errors import LostProcessError, SubmodelError
from submodel.engines.device import own_device
from submodel.model.build import local_of

_LENGTH_BYTES, _AT_ONCE = 8, 4088  # of a message: most are told in one exchange
_PATIENCE = timedelta(minutes=30)  # others wait while one process evaluates


def in_process_group() -> bool:
    """Return whether this process is one of a group: torchrun, or our own launcher, says so.

    >>> in_process_group()
    False
    """
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def deal(bundles: Sequence[Bundle], processes: int) -> list[list[Bundle]]:
    """Who trains what: the costliest first, each to whoever has least to do.

    Bundles that are too large to be dealt evenly are split, if that lets everyone finish sooner.
    """
    total = sum(bundle.cost for bundle in bundles)
    best: list[list[Bundle]] = []
    shortest = math.inf
    for pieces in (0, 1, 2, 4, 8, 16):  # a bundle is at most 1/pieces of a share; 0: any
        shares: list[list[Bundle]] = [[] for _ in range(processes)]
        loads = [0.0] * processes
        for bundle in sorted(_split(bundles, total, pieces * processes), key=lambda b: -b.cost):
            least = loads.index(min(loads))
            loads[least] += bundle.cost
            shares[least].append(bundle)
        if max(loads) < shortest:
            best, shortest = shares, max(loads)
    return best


def _split(bundles: Sequence[Bundle], total: float, pieces: int) -> Iterator[Bundle]:
    for bundle in bundles:
        parts = max(1, math.ceil(bundle.cost / total * pieces)) if total else 1
        yield from bundle.split(min(parts, len(bundle.assignments)))


class ProcessGroup:
    """The processes that train one run together, as this one sees them."""

    def __init__(self, device: str) -> None:
        self.device = own_device(device)
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        try:
            dist.init_process_group(backend, timeout=_PATIENCE)
        except (RuntimeError, ValueError) as error:
            raise SubmodelError(f"the processes did not find each other: {error}") from None
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._updates: SharedUpdates | None = None  # once a round was trained

    def close(self) -> None:
        """Leave the group, and end its threads.

        They end when nobody holds the group any more. A module of torch whose functions have it as
        a default keeps it forever if it is first imported while the group exists, which torch does
        by itself: hence the import above. A thread left over may abort the interpreter as it exits.
        """
        dist.destroy_process_group()

    def share(self, bundles: Sequence[Bundle]) -> Sequence[Bundle]:
        """A part of about equal cost."""
        return deal(bundles, self.size)[self.rank]

    def reduce(self, accumulators: Sequence[Accumulator], statistics: RoundStatistics) -> None:
        """Exchange the books, and all updates where processes see one memory.

        Where they do not, sums are exchanged as they are merged.
        """
        if self._updates is None:
            self._updates = SharedUpdates(self)
        descriptions = [one.describe() for one in accumulators] if self._updates.is_open else None
        answers = self.tell({"statistics": statistics.as_dict(), "descriptions": descriptions})
        statistics.merge([answer["statistics"] for answer in answers])
        everyones = [answer["descriptions"] for answer in answers]
        if any(one is None or None in one for one in everyones):
            for accumulator in accumulators:
                accumulator.join(self)
        else:
            self._updates.exchange(accumulators, everyones)

    def add(self, values: Tensor) -> None:
        """Let the values be the sums of everyone's, in place."""
        on_device = values.to(self.device)
        self._together(lambda: dist.all_reduce(on_device))
        if on_device is not values:
            values.copy_(on_device)

    def gather(self, word: str | None) -> list[str | None]:
        """The words of all processes."""
        return [answer["word"] for answer in self.tell({"word": word})]

    def release(self) -> None:
        """Nobody needs the updates of this round any more."""
        if self._updates is not None:
            self._updates.release()

    def spread(self, count: int, work: Callable[[int], Tensor]) -> list[Tensor]:
        """Every process does every so-many-th piece, and all get all."""
        results = [work(number).to(self.device) for number in range(self.rank, count, self.size)]
        like = results[0] if results else work(0).to(self.device)  # more processes than pieces
        rows = -(-count // self.size)
        mine = torch.stack(results + [torch.zeros_like(like)] * (rows - len(results)))
        parts = [torch.zeros_like(mine) for _ in range(self.size)]
        self._together(lambda: dist.all_gather(parts, mine))
        return [parts[number % self.size][number // self.size] for number in range(count)]

    def tell(self, value: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The values of all processes, as JSON: nothing is unpickled; nobody goes on before all."""
        text = json.dumps(value).encode()
        head = len(text).to_bytes(_LENGTH_BYTES, "little") + text[:_AT_ONCE]
        heads = self._gather_bytes(head, _LENGTH_BYTES + _AT_ONCE)
        lengths = [int.from_bytes(one[:_LENGTH_BYTES], "little") for one in heads]
        texts = [one[_LENGTH_BYTES:] for one in heads]
        if (longest := max(lengths)) > _AT_ONCE:  # rarely: the rest is another exchange
            rests = self._gather_bytes(text[_AT_ONCE:], longest - _AT_ONCE)
            texts = [first + rest for first, rest in zip(texts, rests, strict=True)]
        return [json.loads(one[:length]) for one, length in zip(texts, lengths, strict=True)]

    def _gather_bytes(self, mine: bytes, size: int) -> list[bytes]:
        """Everyone's bytes, filled up to one size."""
        message = torch.frombuffer(bytearray(mine.ljust(size, b"\0")), dtype=torch.uint8)
        buffer = message.to(self.device)
        everyones = [torch.empty_like(buffer) for _ in range(self.size)]
        self._together(lambda: dist.all_gather(everyones, buffer))
        return [one.cpu().numpy().tobytes() for one in everyones]

    def agree(self, state: State, *, shared: bool = False) -> State:
        """The state of the first process, everywhere."""
        round_ = torch.tensor([state.round], device=self.device)
        self._together(lambda: dist.broadcast(round_, 0))
        tensors = state.tensors if shared else self._same(state.tensors)
        return State(int(round_), tensors, self._same(state.memory))

    def agree_in_place(self, tensors: Mapping[str, Tensor]) -> None:
        """Let the tensors, of values that are there, be those of the first process."""
        for name, value in self._same(tensors).items():
            tensors[name].copy_(value)

    def first(self, value: bool) -> bool:
        """What the first process says, everywhere."""
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

    ``tensors`` of this process, with values in the first one, are let go on the way. ``leaders``
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
        """The state with its tensors in this memory; what lies elsewhere is copied."""
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

    All processes call it. The state's tensors are let go; buffers of the module that are not
    exchanged become those of the first process.
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
    """The memory of every process of a group; all make one at the same time."""

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
        """Let every process have the updates of all, in the place of those of the last round."""
        mine = self._group.rank
        self._make_room(mine, everyones[mine])
        starts = [_starts(descriptions) for descriptions in everyones]
        for one, description, start in zip(
            accumulators, everyones[mine], starts[mine], strict=True
        ):
            one.hand_over(description, self._memories[mine], start)
        self._group.tell({})
        for rank, descriptions in enumerate(everyones):
            self._make_room(rank, descriptions)
        for number, one in enumerate(accumulators):
            one.adopt(
                [
                    (descriptions[number], self._memories[rank], starts[rank][number])
                    for rank, descriptions in enumerate(everyones)
                ],
                self._group,
            )

    def _make_room(self, rank: int, descriptions: Sequence[Mapping[str, Any]]) -> None:
        """Map the memory of a process, of which this one's own can grow."""
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
        """Nobody reads the updates of this round any more: let go of much memory."""
        memory = self._memories[self._group.rank]
        if memory is not None and len(memory) >= _MUCH:
            memory.madvise(mmap.MADV_REMOVE)


def _starts(descriptions: Sequence[Mapping[str, Any]]) -> list[int]:
    """Where each of a process's descriptions begins."""
    sizes = [description["size"] for description in descriptions]
    return [sum(sizes[:number]) for number in range(len(sizes))]
