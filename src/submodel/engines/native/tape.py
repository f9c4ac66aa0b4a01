"""Recorded steps of stacks as lists of kernel calls that C code runs client by client.

A step of a stack runs layer by layer, and the output of a layer for all clients has left the cache
when the next layer reads it. Consecutive layers are therefore computed for one client after
another, in one call; intermediate results have memory for one client only. The tensors of a
recording are addressed by each client's part.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from submodel.engines.batched.recording import MemoryLayout, Recording, TensorRef
from submodel.engines.native.library import load_library

TENSORS, NUMBERS = 9, 32
_I64 = ctypes.c_int64


class _Spot(ctypes.Structure):
    """``spot`` of `code/tape.h`."""

    _fields_ = (("base", _I64), ("offset", _I64), ("step", _I64))


class _Step(ctypes.Structure):
    """``step`` of `code/tape.h`."""

    _fields_ = (
        ("kind", _I64),
        ("tensors", _Spot * TENSORS),
        ("numbers", _I64 * NUMBERS),
        ("number", ctypes.c_double),
    )


@dataclass(frozen=True)
class Spot:
    """The address of a tensor of the first client, in units of a float."""

    root: int  # the number of the tensor that owns the memory
    offset: int = 0  # from the first value of the root
    step: int = 0  # from one client to the next


@dataclass(frozen=True)
class TapeStep:
    """One call of a kernel for one client; None stands for an absent tensor."""

    kind: int
    spots: tuple[Spot | None, ...]
    writes: tuple[int, ...]  # roots
    numbers: tuple[int, ...] = ()
    number: float = 0.0
    scratch: int = 0  # floats of scratch memory, passed as the last tensor


class ScratchMemory:
    """Scratch memory shared by all tapes of an engine; its values are valid within one call."""

    def __init__(self) -> None:
        self._values = torch.empty(0)

    def at(self, size: int) -> int:
        """The address of ``size`` floats."""
        if len(self._values) < size:
            self._values = torch.empty(size)
        return self._values.data_ptr()


@dataclass(frozen=True)
class Output:
    """A tensor that a tape computes."""

    number: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of values."""
        return torch.Size(self.size).numel()


class Tape:
    """Steps that are run for one client after another: inputs -> outputs."""

    def __init__(
        self,
        steps: Sequence[TapeStep],
        inputs: Sequence[int],
        outputs: Sequence[Output],
        local: Sequence[Output],
        clients: int,
        memory: ScratchMemory,
    ) -> None:
        """Make a tape.

        ``inputs`` are roots that exist before, ``outputs`` tensors that are needed after it, and
        ``local`` the other tensors, whose values are in ``memory``.
        """
        self._outputs, self._clients, self._memory = outputs, clients, memory
        bases = {number: place for place, number in enumerate(inputs)}
        bases |= {out.number: len(inputs) + place for place, out in enumerate(outputs)}
        self._scratch_base = len(bases)
        parts = {out.number: -(-out.count // clients) for out in local}
        scratch_layout = _ScratchLayout(steps, parts)
        self._scratch = scratch_layout.size
        self._at = (ctypes.c_void_p * (len(bases) + 1))()
        self._steps = (_Step * len(steps))(
            *(self._encode(step, bases, scratch_layout, place) for place, step in enumerate(steps))
        )
        self._run: Any = load_library().run_tape
        self._run.argtypes = [ctypes.c_void_p, _I64, ctypes.c_void_p, _I64]
        self._run.restype = _I64

    def _encode(
        self, step: TapeStep, bases: dict[int, int], scratch_layout: _ScratchLayout, place: int
    ) -> _Step:
        spots = []
        for spot in step.spots:
            if spot is None:
                spots.append(_Spot(-1, 0, 0))
            elif spot.root in bases:
                spots.append(_Spot(bases[spot.root], spot.offset, spot.step))
            else:
                start = scratch_layout.starts[spot.root]
                spots.append(_Spot(self._scratch_base, start + spot.offset, 0))
        if step.scratch:
            spots.append(_Spot(self._scratch_base, scratch_layout.extra[place], 0))
        spots += [_Spot(-1, 0, 0)] * (TENSORS - len(spots))
        numbers = (_I64 * NUMBERS)(*step.numbers)
        return _Step(step.kind, (_Spot * TENSORS)(*spots), numbers, step.number)

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Run the steps."""
        outputs = [torch.empty_strided(out.size, out.stride) for out in self._outputs]
        addresses = [t.data_ptr() for t in (*inputs, *outputs)]
        self._at[:] = [*addresses, self._memory.at(self._scratch)]
        if self._run(self._steps, len(self._steps), self._at, self._clients):
            raise IndexError("a label is out of bounds")
        return outputs


class _ScratchLayout:
    """The layout of one client's tensors in the scratch memory, with reuse of free memory."""

    def __init__(self, steps: Sequence[TapeStep], parts: dict[int, int]) -> None:
        last = {
            spot.root: place
            for place, step in enumerate(steps)
            for spot in step.spots
            if spot is not None
        }
        self.starts: dict[int, int] = {}
        self.extra: dict[int, int] = {}  # step -> start of its scratch memory
        self.size = 0
        free: list[tuple[int, int]] = []  # start and end

        def take(size: int) -> int:
            size = -(-size // 16) * 16  # aligned to vectors
            for place, (start, end) in enumerate(free):
                if end - start >= size:
                    free[place] = (start + size, end)
                    return start
            start, self.size = self.size, self.size + size
            return start

        for place, step in enumerate(steps):
            for root in dict.fromkeys(step.writes):
                if root in parts and root not in self.starts:
                    self.starts[root] = take(parts[root])
            if step.scratch:
                self.extra[place] = take(step.scratch)
                free.append((self.extra[place], self.extra[place] + step.scratch))
            for root in {spot.root for spot in step.spots if spot is not None}:
                if root in self.starts and last[root] == place:
                    start = self.starts[root]
                    free.append((start, start + -(-parts[root] // 16) * 16))


(LINEAR_FORWARD, LINEAR_BACKWARD, ACTIVATION_FORWARD, ACTIVATION_BACKWARD, NORM_FORWARD,
 NORM_BACKWARD, ATTENTION_FORWARD, ATTENTION_BACKWARD, ENTROPY_FORWARD, ENTROPY_BACKWARD,
 COPY_VALUES, CLEAR, ADD_VALUES, MULTIPLY_VALUES) = range(14)  # fmt: skip
"""The kinds of steps, as in `code/tape.h`."""


class UntapedError(Exception):
    """Raised for a call that has no form on a tape and is left to torch."""


@dataclass(frozen=True)
class TapeReader:
    """Computes the addresses of the tensors of a recording."""

    recording: Recording
    clients: int

    def layout(self, value: Any) -> MemoryLayout:
        """The memory layout of an argument or output."""
        number = value.number if isinstance(value, TensorRef) else value
        if not isinstance(number, int):
            raise UntapedError
        return self.recording.layouts[number]

    def spot(
        self, value: Any, layout: MemoryLayout | None = None, kind: torch.dtype = torch.float32
    ) -> Spot:
        """The address of the first client's part; the clients' parts must not overlap."""
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
        """`spot` of a contiguous tensor."""
        layout = self.layout(value)
        if layout.stride != _contiguous(layout.size):
            raise UntapedError
        return self.spot(value, kind=kind)

    def maybe(self, value: Any) -> Spot | None:
        """`dense` of a tensor that may be absent."""
        if value is None or 0 in self.layout(value).size:
            return None
        return self.dense(value)

    def maybe_common(self, layout: MemoryLayout, number: Any) -> Spot:
        """`spot` of a tensor that may be common to all clients."""
        if layout.stride[0] or layout.size[0] != self.clients:
            return self.spot(number, layout)
        if self.recording.types[layout.root] != torch.float32:
            raise UntapedError
        return Spot(layout.root, layout.offset)


def _contiguous(size: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(size[place + 1 :]) for place in range(len(size)))


def _is_compact(layout: MemoryLayout) -> bool:
    """Return whether a tensor fills its memory and the first dimension is the outermost."""
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
    """Make a step that writes to its last ``outputs`` tensors."""
    writes = tuple(spot.root for spot in spots[len(spots) - outputs :] if spot is not None)
    return TapeStep(kind, tuple(spots), writes, tuple(map(int, numbers)), **rest)
