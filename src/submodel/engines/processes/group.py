"""Several processes train one run, here or on many machines (SPMD over torch.distributed).

Every process plans the same round from (seed, round) and trains its share; sums are put together
piece by piece as they are merged. They are exact (see `merge`), so the number of processes does not
change the model: what one task computes does not depend on who computes it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group, see `ProcessGroup.close`
from torch import Tensor

from submodel.algorithm.execution import Bundle
from submodel.algorithm.merge import Accumulator
from submodel.algorithm.tally import Tally
from submodel.algorithm.types import State
from submodel.engines.device import own_device
from submodel.engines.processes.shared import SharedUpdates
from submodel.errors import LostProcessError, SubmodelError

_LENGTH_BYTES, _AT_ONCE = 8, 4088  # of a message: most are told in one exchange
_PATIENCE = timedelta(minutes=30)  # others wait while one process evaluates


def in_process_group() -> bool:
    """Whether this process is one of a group: torchrun, or our own launcher, says so.

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
        for bundle in sorted(_split(bundles, total, pieces * processes), key=_by_cost):
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


def _by_cost(bundle: Bundle) -> float:
    return -bundle.cost


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

    def reduce(self, accumulators: Sequence[Accumulator], tally: Tally) -> None:
        """Exchange the books, and all updates where processes see one memory.

        Where they do not, sums are exchanged as they are merged.
        """
        if self._updates is None:
            self._updates = SharedUpdates(self)
        offers = [one.offer() for one in accumulators] if self._updates.is_open else None
        answers = self.tell({"books": tally.books(), "offers": offers})
        tally.merge([answer["books"] for answer in answers])
        everyones = [answer["offers"] for answer in answers]
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
        """The values of all processes, as JSON: nothing is unpickled; nobody goes on before all.

        Args:
            value: of this process.
        """
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
        """The state of the first process, everywhere.

        Args:
            state: of this process.
            shared: whether all see the same tensors already.
        """
        round_ = torch.tensor([state.round], device=self.device)
        self._together(lambda: dist.broadcast(round_, 0))
        tensors = state.tensors if shared else self._same(state.tensors)
        return State(int(round_), tensors, self._same(state.memory))

    def agree_in_place(self, tensors: Mapping[str, Tensor]) -> None:
        """Let the tensors, of values that are there, be those of the first process.

        Args:
            tensors: equal in number and shape everywhere.
        """
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
