"""The tensors of a recording as a tape reads them: where each client's part of them lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from submodel.engines.batched.recording import MemoryLayout, Recording, Slot
from submodel.engines.native.tape import Spot, TapeStep

(LINEAR_FORWARD, LINEAR_BACKWARD, ACTIVATION_FORWARD, ACTIVATION_BACKWARD, NORM_FORWARD,
 NORM_BACKWARD, ATTENTION_FORWARD, ATTENTION_BACKWARD, ENTROPY_FORWARD, ENTROPY_BACKWARD,
 COPY_VALUES, CLEAR, ADD_VALUES, MULTIPLY_VALUES) = range(14)  # fmt: skip
"""The kinds of steps, as `code/tape.h` has them."""


class UntapedError(Exception):
    """A call that is left to torch."""


@dataclass(frozen=True)
class TapeReader:
    """Knows where the tensors of a recording lie."""

    recording: Recording
    clients: int

    def layout(self, value: Any) -> MemoryLayout:
        """How an argument or output lies."""
        number = value.number if isinstance(value, Slot) else value
        if not isinstance(number, int):
            raise UntapedError
        return self.recording.layouts[number]

    def spot(
        self, value: Any, layout: MemoryLayout | None = None, kind: torch.dtype = torch.float32
    ) -> Spot:
        """Where the first client's part is; each client's must be memory of its own."""
        layout = layout or self.layout(value)
        whole = self.recording.layouts[layout.root]
        if self.recording.types[layout.root] != kind or not layout.size or not whole.size:
            raise UntapedError
        part = prod(whole.size) // self.clients
        members, rest = divmod(layout.size[0], self.clients)
        others = sum((n - 1) * s for n, s in zip(layout.size[1:], layout.stride[1:], strict=True))
        end = layout.offset + (members - 1) * layout.stride[0] + others
        is_apart = (
            not rest
            and whole.size[0] % self.clients == 0
            and _is_compact(whole)
            and members * layout.stride[0] == part
            and end < part
        )
        if not is_apart:
            raise UntapedError
        unit = 2 if kind == torch.int64 else 1
        return Spot(layout.root, unit * layout.offset, unit * part)

    def dense(self, value: Any, kind: torch.dtype = torch.float32) -> Spot:
        """The same, of a tensor whose values lie one after another."""
        layout = self.layout(value)
        if layout.stride != _contiguous(layout.size):
            raise UntapedError
        return self.spot(value, kind=kind)

    def maybe(self, value: Any) -> Spot | None:
        """The same, of one that may not be there."""
        if value is None or 0 in self.layout(value).size:
            return None
        return self.dense(value)

    def everyones(self, layout: MemoryLayout, number: Any) -> Spot:
        """Of a tensor that may be the same for all clients."""
        if layout.stride[0] or layout.size[0] != self.clients:
            return self.spot(number, layout)
        if self.recording.types[layout.root] != torch.float32:
            raise UntapedError
        return Spot(layout.root, layout.offset)


def _contiguous(size: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(size[place + 1 :]) for place in range(len(size)))


def _is_compact(layout: MemoryLayout) -> bool:
    """Whether a tensor fills its memory, and goes through it row by row of its first dimension."""
    dims = sorted(zip(layout.stride, layout.size, strict=True), reverse=True)
    dims = [(stride, size) for stride, size in dims if size > 1]
    so_far = 1
    for stride, size in reversed(dims):
        if stride != so_far:
            return False
        so_far *= size
    return layout.size[0] == 1 or layout.stride[0] * layout.size[0] == so_far


def make_step(
    kind: int, spots: Sequence[Spot | None], outputs: int, *numbers: int, **rest: Any
) -> TapeStep:
    """A step whose last tensors are made by it."""
    writes = tuple(spot.root for spot in spots[len(spots) - outputs :] if spot is not None)
    return TapeStep(kind, tuple(spots), writes, tuple(map(int, numbers)), **rest)
