"""Conversion of the calls of a recorded step to tapes: grouping of calls, and outputs of groups.

A tape contains operators of the kernels, and pointwise operators of torch between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch

from submodel.engines.batched.recording import (
    Fuse,
    MemoryLayout,
    OperatorCall,
    Recording,
    TensorRef,
    tensors_made,
    tensors_read,
)
from submodel.engines.native import operators
from submodel.engines.native.tape import (
    ACTIVATION_BACKWARD,
    ACTIVATION_FORWARD,
    ADD_VALUES,
    ATTENTION_BACKWARD,
    ATTENTION_FORWARD,
    CLEAR,
    COPY_VALUES,
    ENTROPY_BACKWARD,
    ENTROPY_FORWARD,
    LINEAR_BACKWARD,
    LINEAR_FORWARD,
    MULTIPLY_VALUES,
    NORM_BACKWARD,
    NORM_FORWARD,
    Output,
    ScratchMemory,
    Tape,
    TapeReader,
    TapeStep,
    UntapedError,
    make_step,
)

TapeRule = Callable[[TapeReader, OperatorCall], list[TapeStep]]
"""Converts a call to steps; raises `UntapedError` if it is left to torch."""


def _linear(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
    x, weight, bias, first = call.arguments
    (_, rows, inputs), (_, _, outputs) = reader.layout(x).size, reader.layout(call.outputs[0]).size
    spots = [
        reader.dense(x),
        reader.dense(weight),
        reader.maybe(bias),
        reader.dense(call.outputs[0]),
    ]
    return [make_step(LINEAR_FORWARD, spots, 1, rows, inputs, outputs, first)]


def _linear_backward(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
    upstream, x, weight, first = call.arguments[:4]
    (_, rows, inputs), (_, _, outputs) = reader.layout(x).size, reader.layout(upstream).size
    spots = [*map(reader.dense, (upstream, x, weight)), *map(reader.maybe, call.outputs)]
    return [make_step(LINEAR_BACKWARD, spots, 3, rows, inputs, outputs, first)]


def _activation(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
    *tensors, kind = call.arguments
    count = prod(reader.layout(tensors[0]).size) // reader.clients
    spots = [*map(reader.dense, tensors), reader.dense(call.outputs[0])]
    step = ACTIVATION_BACKWARD if len(tensors) == 2 else ACTIVATION_FORWARD
    return [make_step(step, spots, 1, kind, count)]


def _norm(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
    x, scale, shift, has_mean, eps = call.arguments
    _, rows, width = reader.layout(x).size
    spots = [
        reader.dense(x),
        reader.dense(scale),
        reader.maybe(shift),
        *map(reader.dense, call.outputs),
    ]
    return [make_step(NORM_FORWARD, spots, 2, has_mean, rows, width, number=eps)]


def _norm_backward(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
    *tensors, has_mean = call.arguments[:5]
    _, rows, width = reader.layout(tensors[1]).size
    spots = [*map(reader.dense, tensors), *map(reader.maybe, call.outputs)]
    return [make_step(NORM_BACKWARD, spots, 3, has_mean, rows, width)]


def _attention_form(reader: TapeReader, query: Any, key: Any, value: Any) -> list[int]:
    (batch, heads, places, size) = reader.layout(query).size
    (_, key_heads, keys, _), value_size = reader.layout(key).size, reader.layout(value).size[3]
    return [batch // reader.clients, heads, key_heads, places, keys, size, value_size]


def _strides(reader: TapeReader, tensors: Sequence[Any]) -> list[int]:
    layouts = [reader.layout(tensor) for tensor in tensors]
    if any(layout.stride[3] != 1 for layout in layouts):
        raise UntapedError
    return [stride for layout in layouts for stride in layout.stride[:3]]


def _attention(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
    *inputs, causal, scale = call.arguments
    out, weights = call.outputs
    numbers = [*_attention_form(reader, *inputs), causal, *_strides(reader, [*inputs, out])]
    spots = [*map(reader.spot, inputs), reader.spot(out), reader.dense(weights)]
    return [make_step(ATTENTION_FORWARD, spots, 2, *numbers, number=scale)]


def _attention_backward(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
    *inputs, weights, causal, scale = call.arguments
    form = _attention_form(reader, *inputs[1:])
    numbers = [*form, causal, *_strides(reader, [*inputs, *call.outputs])]
    spots = [*map(reader.spot, inputs), *map(reader.spot, call.outputs), reader.dense(weights)]
    step = make_step(
        ATTENTION_BACKWARD, spots, 0, *numbers, number=scale, scratch=form[3] * form[4]
    )
    return [replace(step, writes=tuple(reader.layout(out).root for out in call.outputs))]


def _entropy(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
    x, labels, no_label = call.arguments
    rows, width = reader.layout(x).size
    results = map(reader.dense, call.outputs)
    spots = [reader.dense(x), reader.dense(labels, torch.int64), *results]
    return [make_step(ENTROPY_FORWARD, spots, 2, no_label, rows // reader.clients, width)]


def _entropy_backward(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
    upstream, x, labels, no_label, logs = call.arguments
    rows, width = reader.layout(x).size
    spots = [reader.dense(upstream), reader.dense(x), reader.dense(labels, torch.int64),
             reader.dense(logs), reader.dense(call.outputs[0])]  # fmt: skip
    return [make_step(ENTROPY_BACKWARD, spots, 1, no_label, rows // reader.clients, width)]


LAYERS: Mapping[object, TapeRule] = {
    operators.linear: _linear,
    operators.linear_backward: _linear_backward,
    operators.activation: _activation,
    operators.activation_backward: _activation,
    operators.norm_rows: _norm,
    operators.norm_rows_backward: _norm_backward,
    operators.attend_heads: _attention,
    operators.attend_heads_backward: _attention_backward,
    operators.cross_entropy: _entropy,
    operators.cross_entropy_backward: _entropy_backward,
}
"""Rules by operator, for the layers with which a tape may begin."""


_DIMENSIONS = 5
_aten = torch.ops.aten


def _walk(
    reader: TapeReader, kind: int, inputs: Sequence[tuple[Any, MemoryLayout]],
    out: tuple[Any, MemoryLayout], number: float = 1.0,
) -> TapeStep:  # fmt: skip
    """A pointwise step, in the memory order of its output."""
    size = out[1].size
    wide = [(n, layout if layout.size == size else _stretch(layout, size)) for n, layout in inputs]
    layouts = [*(layout for _, layout in wide), out[1]]
    spots = [*(reader.maybe_common(layout, n) for n, layout in wide), reader.spot(*out)]
    sizes = [size[0] // reader.clients, *size[1:]]
    order = sorted(range(len(sizes)), key=lambda place: -out[1].stride[place])
    dims: list[list[int]] = []  # size and strides; contiguous neighbours are merged
    for place in order:
        here = [sizes[place], *(layout.stride[place] for layout in layouts)]
        if here[0] == 1:
            continue
        if dims and all(a == b * here[0] for a, b in zip(dims[-1][1:], here[1:], strict=True)):
            dims[-1] = [dims[-1][0] * here[0], *here[1:]]
        else:
            dims.append(here)
    if len(dims) > _DIMENSIONS:
        raise UntapedError
    dims = [[1, *[0] * len(layouts)]] * (_DIMENSIONS - len(dims)) + dims
    columns = [[dim[place] for dim in dims] for place in range(len(layouts) + 1)]
    if len(columns) == 3:  # a copy has one input
        columns.insert(2, [0] * _DIMENSIONS)
    return make_step(kind, spots, 1, *(n for column in columns for n in column), number=number)


def _stretch(layout: MemoryLayout, size: tuple[int, ...]) -> MemoryLayout:
    """The layout of a tensor broadcast to a size."""
    missing = len(size) - len(layout.size)
    pairs = [(1, 0)] * missing + list(zip(layout.size, layout.stride, strict=True))
    if any(n not in (1, width) for (n, _), width in zip(pairs, size, strict=True)):
        raise UntapedError
    stride = tuple(0 if n != width else s for (n, s), width in zip(pairs, size, strict=True))
    return replace(layout, size=size, stride=stride)


def _pair(kind: int) -> TapeRule:
    def rule(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
        if call.keywords or len(call.arguments) != 2:
            raise UntapedError
        inputs = [(value, reader.layout(value)) for value in call.arguments]
        out = call.outputs[0]
        return [_walk(reader, kind, inputs, (out, reader.layout(out)))]

    return rule


def _copy(factor: float) -> TapeRule:
    def rule(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
        source, out = call.arguments[0], call.outputs[0]
        pair = (source, reader.layout(source)), (out, reader.layout(out))
        return [_walk(reader, COPY_VALUES, [pair[0]], pair[1], factor)]

    return rule


def _join(is_stack: bool) -> TapeRule:
    def rule(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
        parts, dim = call.arguments[0], (*call.arguments, 0)[1]
        out = call.outputs[0]
        whole, start, steps = reader.layout(out), 0, []
        dim %= len(whole.size)
        for part in parts:
            layout = reader.layout(part)
            if is_stack:
                size = (*layout.size[:dim], 1, *layout.size[dim:])
                stride = (*layout.stride[:dim], 0, *layout.stride[dim:])
                layout = replace(layout, size=size, stride=stride)
            at = whole.offset + start * whole.stride[dim]
            target = replace(whole, size=layout.size, offset=at)
            steps.append(_walk(reader, COPY_VALUES, [(part, layout)], (out, target)))
            start += layout.size[dim]
        if dim == 0:
            raise UntapedError
        return steps

    return rule


def _slice_backward(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
    source, size, dim, start, _, by = call.arguments
    out = call.outputs[0]
    whole, layout = reader.layout(out), reader.layout(source)
    dim %= len(size)
    if by != 1 or dim == 0 or start < 0:
        raise UntapedError
    target = replace(whole, size=layout.size, offset=whole.offset + start * whole.stride[dim])
    clear = make_step(CLEAR, [reader.spot(out)], 1, prod(whole.size) // reader.clients)
    return [clear, _walk(reader, COPY_VALUES, [(source, layout)], (out, target))]


VALUES: Mapping[object, TapeRule] = {
    _aten.add.Tensor: _pair(ADD_VALUES),
    _aten.mul.Tensor: _pair(MULTIPLY_VALUES),
    _aten.neg.default: _copy(-1.0),
    _aten.clone.default: _copy(1.0),
    _aten.cat.default: _join(is_stack=False),
    _aten.stack.default: _join(is_stack=True),
    _aten.slice_backward.default: _slice_backward,
}
"""Rules by operator, for operators of torch between layers."""


_VIEW = torch.ops.aten.as_strided.default
_RULES = {**LAYERS, **VALUES}
_FEWEST = 2  # calls for which a tape is faster


@dataclass
class _Segment:
    """Calls that run together: consecutive, or independent of the calls in between."""

    calls: list[OperatorCall] = field(default_factory=list)
    steps: list[TapeStep] = field(default_factory=list)

    @property
    def roots(self) -> set[int]:
        """The roots that it writes to."""
        return {root for step in self.steps for root in step.writes}


def make_fuse() -> Fuse:
    """A function that fuses calls of the kernels, and calls between them, to tapes."""
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
    """The number of clients in all linear layers; None if there are none or it differs."""
    counts = {
        recording.layouts[call.arguments[0].number].size[0]
        for call in calls
        if call.operator is operators.linear
    }
    return counts.pop() if len(counts) == 1 else None


def _steps(reader: TapeReader, call: OperatorCall) -> list[TapeStep] | None:
    """A call as steps; None if it is left to torch."""
    rule = _RULES.get(call.operator)
    if rule is None or call.writes:
        return None
    try:
        return rule(reader, call)
    except UntapedError:
        return None


def _divide(calls: Sequence[OperatorCall], reader: TapeReader) -> list[OperatorCall | _Segment]:
    """Divide calls into segments and other calls, in an order that respects dependencies."""
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
    """Convert a segment to one call."""
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
    arguments = tuple(TensorRef(number) for number in inputs)
    return [OperatorCall(tape, arguments, {}, tuple(out.number for out in outputs), True)]
