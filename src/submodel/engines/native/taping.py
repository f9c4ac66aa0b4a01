"""From the calls of a recorded step to tapes: which go together, and what outlives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from submodel.engines.batched.recording import (
    Fuse,
    OperatorCall,
    Recording,
    Slot,
    tensors_made,
    tensors_read,
)
from submodel.engines.native import operators
from submodel.engines.native.tape import Output, ScratchMemory, Tape, TapeStep
from submodel.engines.native.tape_layers import LAYERS
from submodel.engines.native.tape_reader import TapeReader, UntapedError
from submodel.engines.native.tape_values import VALUES

_VIEW = torch.ops.aten.as_strided.default
_RULES = {**LAYERS, **VALUES}
_FEWEST = 2  # calls that are worth a tape


@dataclass
class _Segment:
    """Calls that follow one another, or depend on nothing in between."""

    calls: list[OperatorCall] = field(default_factory=list)
    steps: list[TapeStep] = field(default_factory=list)

    @property
    def roots(self) -> set[int]:
        """What it makes."""
        return {root for step in self.steps for root in step.writes}


def make_fuse() -> Fuse:
    """A function that puts calls of the kernels, and what is between them, on tapes."""
    memory = ScratchMemory()

    def fuse(
        calls: Sequence[OperatorCall], recording: Recording, results: Sequence[int]
    ) -> list[OperatorCall]:
        clients = _count_clients(calls, recording)
        if clients is None:
            return list(calls)
        parts = _divide(calls, TapeReader(recording, clients))
        return [
            call
            for part in parts
            for call in (
                [part] if isinstance(part, OperatorCall)
                else _tape(part, parts, recording, results, clients, memory)
            )
        ]  # fmt: skip

    return fuse


def _count_clients(calls: Sequence[OperatorCall], recording: Recording) -> int | None:
    """As linear layers have them; None if there are none, or not of one number."""
    counts = {
        recording.layouts[call.arguments[0].number].size[0]
        for call in calls
        if call.operator is operators.linear
    }
    return counts.pop() if len(counts) == 1 else None


def _steps(reader: TapeReader, call: OperatorCall) -> list[TapeStep] | None:
    """A call as steps; None: it is for torch."""
    rule = _RULES.get(call.operator)
    if rule is None or call.writes:
        return None
    try:
        return rule(reader, call)
    except UntapedError:
        return None


def _divide(calls: Sequence[OperatorCall], reader: TapeReader) -> list[OperatorCall | _Segment]:
    """Segments and other calls, in an order that keeps what depends on what."""
    parts: list[OperatorCall | _Segment] = []
    segment, new_roots, late = _Segment(), set[int](), set[int]()
    behind: list[OperatorCall] = []
    layouts = reader.recording.layouts

    def close() -> None:
        nonlocal segment, behind
        if segment.calls:
            parts.append(segment)
        parts.extend(behind)
        segment, behind = _Segment(), []
        new_roots.clear()
        late.clear()

    for call in calls:
        roots = {layouts[number].root for number in tensors_read(call)}
        steps = _steps(reader, call) if segment.calls or call.operator in LAYERS else None
        if steps is not None and roots & late:
            close()
        if steps is not None:
            segment.calls.append(call)
            segment.steps += steps
            new_roots |= {root for step in steps for root in step.writes}
        elif call.writes or (call.answer is not None and roots & (new_roots | late)):
            close()
            parts.append(call)
        elif roots & (new_roots | late):
            behind.append(call)
            if call.operator is not _VIEW:
                late |= {layouts[number].root for number in tensors_made(call)}
        else:
            parts.append(call)
    close()
    return parts


def _tape(
    segment: _Segment,
    parts: Sequence[OperatorCall | _Segment],
    recording: Recording,
    results: Sequence[int],
    clients: int,
    memory: ScratchMemory,
) -> list[OperatorCall]:
    """A segment as one call."""
    if len(segment.calls) < _FEWEST:
        return segment.calls
    layouts, new_roots = recording.layouts, segment.roots
    outer_numbers = set(results)
    for part in parts:
        if part is segment:
            continue
        for call in [part] if isinstance(part, OperatorCall) else part.calls:
            if call.operator is not _VIEW:
                outer_numbers.update(tensors_read(call))
    outer_roots = {layouts[number].root for number in outer_numbers} & new_roots
    numbers = [
        n
        for n in dict.fromkeys(n for c in segment.calls for n in tensors_made(c))
        if n in new_roots
    ]
    made_here = [Output(n, layouts[n].size, layouts[n].stride) for n in numbers]
    outputs = [out for out in made_here if out.number in outer_roots]
    local = [out for out in made_here if out.number not in outer_roots]
    spots = (spot for step in segment.steps for spot in step.spots if spot is not None)
    inputs = list(dict.fromkeys(spot.root for spot in spots if spot.root not in new_roots))
    tape = Tape(segment.steps, inputs, outputs, local, clients, memory)
    arguments = tuple(Slot(number) for number in inputs)
    return [OperatorCall(tape, arguments, {}, tuple(out.number for out in outputs), True)]
