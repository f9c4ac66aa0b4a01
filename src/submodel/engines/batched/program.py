"""A recorded step as a function: its operators, without those that compute nothing.

The same operators run on the same values in the same order, so that results are the same bit for
bit. Views are taken from the tensor whose memory they are, once each; what nobody uses is left out,
what no input enters is computed once; and a tensor goes as soon as nobody needs it any more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from submodel.engines.batched.recording import (
    MemoryLayout,
    OperatorCall,
    Recording,
    Slot,
    exchange,
    nested_parts,
)

Program = Callable[[Sequence[Tensor]], list[Tensor]]
"""Inputs -> outputs."""
_MOST_KEPT = 1 << 16
"""The most values of a tensor that is computed once and kept."""
DIRECT_CALLS: dict[object, Callable[..., Any]] = {}
"""Operators that are functions of Python, and these: calling them spares torch's dispatcher."""
_VIEW = torch.ops.aten.as_strided.default
_VALUE_FREE = (torch.ops.aten.ones_like.default, torch.ops.aten.zeros_like.default)
"""Operators that ask for the shape of a tensor, and not for its values."""


class OtherWayError(Exception):
    """Code asks for a value, and it is not the one of the recording."""


Fuse = Callable[[Sequence[OperatorCall], Recording, Sequence[int]], list[OperatorCall]]
"""(calls, their recording, the numbers of its results) -> the calls, some of them as one."""


def make_program(recording: Recording, fuse: Fuse | None = None) -> Program:
    """A function that repeats a recorded step; to be called without autograd.

    Args:
        recording: of `record`.
        fuse: puts several calls together, if there is something that computes them as one.

    >>> from submodel.engines.batched.recording import record
    >>> x = torch.ones(2)
    >>> make_program(record(lambda: [x.view(2, 1).view(2) + 1], [x]))([torch.zeros(2)])
    [tensor([1., 1.])]
    """
    return _Writer(recording).program(fuse)


class _Writer:
    """Writes the function line by line: a loop over calls would take as long as small operators."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._names: dict[str, Any] = {"view": torch.as_strided, "OtherWay": OtherWayError}
        self._constants = dict(recording.constants)
        self._equal: dict[int, int] = {}  # number of a view -> of the same view, taken before
        self._changing_roots = {root for call in recording.calls for root in call.writes}

    def program(self, fuse: Fuse | None) -> Program:
        """The function itself."""
        calls = self._drop_unused(self._keep_constants(self._root_views()))
        results = [self._first(number) for number in self._recording.outputs]
        if fuse is not None:
            calls = self._drop_unused(fuse(calls, self._recording, results))
        last = {number: place for place, call in enumerate(calls) for number in _tensors_of(call)}
        lines = ["def program(inputs):"]
        if self._recording.inputs:
            lines.append(
                f"    [{', '.join(f'v{i}' for i in range(self._recording.inputs))}] = inputs"
            )
        for place, call in enumerate(calls):
            lines.append(f"    {self._line(call)}")
            for number in dict.fromkeys(_tensors_of(call)):
                stays = number in results or number in self._constants
                if last[number] == place and not stays:
                    lines.append(f"    del v{number}")
        lines.append(f"    return [{', '.join(f'v{number}' for number in results)}]")
        names = self._names | {f"v{n}": tensor for n, tensor in self._constants.items()}
        exec("\n".join(lines), names)
        program: Program = names["program"]
        return program

    def _first(self, number: int) -> int:
        return self._equal.get(number, number)

    def _root_views(self) -> list[OperatorCall]:
        """The calls, with every view taken from its root, and taken once."""
        calls: list[OperatorCall] = []
        layouts, views = self._recording.layouts, dict[MemoryLayout, int]()
        for call in self._recording.calls:
            if not call.writes and any(
                layouts[number].root != number for number in tensors_made(call)
            ):
                for number in tensors_made(call):
                    layout = layouts[number]
                    whole = replace(layouts[layout.root], root=layout.root)
                    first = layout.root if layout == whole else views.setdefault(layout, number)
                    self._equal[number] = first
                    if first == number:
                        calls.append(_view_call(layout, number))
                continue
            arguments, keywords = exchange(
                Slot, lambda s: Slot(self._first(s.number)), (call.arguments, dict(call.keywords))
            )
            calls.append(replace(call, arguments=arguments, keywords=keywords))
        return calls

    def _keep_constants(self, calls: Sequence[OperatorCall]) -> list[OperatorCall]:
        """The calls that inputs enter; what others make becomes a constant, if it is small."""
        layouts, rest = self._recording.layouts, []
        for call in calls:
            if (
                (
                    call.operator in _VALUE_FREE
                    or all(number in self._constants for number in tensors_read(call))
                )
                and not any(layouts[n].root in self._changing_roots for n in _tensors_of(call))
                and all(math.prod(layouts[n].size) <= _MOST_KEPT for n in tensors_made(call))
                and tensors_made(call)
            ):
                self._keep(call)
            else:
                rest.append(call)
        return rest

    def _keep(self, call: OperatorCall) -> None:
        """Compute what a call makes, now and for good."""
        arguments, keywords = exchange(
            Slot, lambda slot: self._sample(slot.number), (call.arguments, dict(call.keywords))
        )
        if call.operator is _VIEW:
            arguments = (*arguments[:3], arguments[0].storage_offset() + arguments[3])
        result = call.operator(*arguments, **keywords)
        for number, part in zip(
            call.outputs, result if call.is_sequence else [result], strict=True
        ):
            if number is not None:
                self._constants[number] = part

    def _sample(self, number: int) -> Tensor:
        """A constant, or something of a tensor's shape and type."""
        if number in self._constants:
            return self._constants[number]
        layout, kind = self._recording.layouts[number], self._recording.types[number]
        return torch.empty_strided(layout.size, layout.stride, dtype=kind)

    def _drop_unused(self, calls: Sequence[OperatorCall]) -> list[OperatorCall]:
        """Those whose results are used, that change a tensor or that ask for a value."""
        live_numbers = {self._first(number) for number in self._recording.outputs}
        rest = []
        for call in reversed(calls):
            if (
                call.writes
                or call.answer is not None
                or live_numbers.intersection(tensors_made(call))
            ):
                rest.append(call)
                live_numbers.update(tensors_read(call))
        return rest[::-1]

    def _line(self, call: OperatorCall) -> str:
        """A call, written out."""
        arguments = [self._text(value) for value in call.arguments]
        if call.answer is not None:
            return f"if {arguments[0]}.item() != {self._bind(call.answer)}: raise OtherWay"
        if call.operator is _VIEW:  # offsets count from the root's own
            tensor, size, stride, offset = arguments
            start = f", {tensor}.storage_offset() + {offset}" if call.arguments[3] else ""
            line = f"view({tensor}, {size}, {stride}{start})"
        else:
            arguments += [f"{name}={self._text(value)}" for name, value in call.keywords.items()]
            operator = call.operator
            function = DIRECT_CALLS.get(operator, getattr(operator, "_op", operator))
            line = f"{self._bind(function)}({', '.join(arguments)})"
        if not tensors_made(call):
            return line
        targets = ["_" if number is None else f"v{number}" for number in call.outputs]
        return f"[{', '.join(targets)}] = {line}" if call.is_sequence else f"{targets[0]} = {line}"

    def _text(self, value: Any) -> str:
        """An argument, as it is written."""
        if isinstance(value, Slot):
            return f"v{value.number}"
        if any(isinstance(leaf, Slot) for leaf in nested_parts([value])):
            return f"[{', '.join(map(self._text, value))}]"
        return self._bind(value)

    def _bind(self, value: Any) -> str:
        """A name for something."""
        name = f"c{len(self._names)}"
        self._names[name] = value
        return name


def _view_call(layout: MemoryLayout, number: int) -> OperatorCall:
    """The one operator that takes any view."""
    place = Slot(layout.root), layout.size, layout.stride, layout.offset
    return OperatorCall(_VIEW, place, {}, (number,), False)


def tensors_read(call: OperatorCall) -> list[int]:
    """The tensors that a call is given."""
    parts = nested_parts((call.arguments, dict(call.keywords)))
    return [part.number for part in parts if isinstance(part, Slot)]


def tensors_made(call: OperatorCall) -> list[int]:
    """The tensors that a call makes."""
    return [number for number in call.outputs if number is not None]


def _tensors_of(call: OperatorCall) -> list[int]:
    return [*tensors_read(call), *tensors_made(call)]
