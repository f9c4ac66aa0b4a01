"""Operators of a recording as steps of a tape, where each client's part lies by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch.types import _dtype

from submodel.engines.batched.recording import MemoryLayout, OperatorCall, Recording, Slot
from submodel.engines.native import operators
from submodel.engines.native.tape import Spot, TapeStep

(LINEAR_FORWARD, LINEAR_BACKWARD, ACTIVATION_FORWARD, ACTIVATION_BACKWARD, NORM_FORWARD,
 NORM_BACKWARD, ATTENTION_FORWARD, ATTENTION_BACKWARD, ENTROPY_FORWARD, ENTROPY_BACKWARD,
 COPY_VALUES, CLEAR, ADD_VALUES, MULTIPLY_VALUES) = range(14)  # fmt: skip
"""The kinds of steps, as `code/tape.h` has them."""
_DIMENSIONS = 5
_aten = torch.ops.aten


class UntapedError(Exception):
    """This call is for torch."""


@dataclass(frozen=True)
class TapeReader:
    """Knows a recording's tensors, and what its calls are as steps."""

    recording: Recording
    clients: int

    def steps(self, call: OperatorCall) -> list[TapeStep] | None:
        """The steps of a call; None: it is for torch."""
        rule = _RULES.get(call.operator)
        if rule is None or call.writes:
            return None
        try:
            return rule(self, call)
        except UntapedError:
            return None

    def layout(self, value: Any) -> MemoryLayout:
        """How an argument or output lies."""
        number = value.number if isinstance(value, Slot) else value
        if not isinstance(number, int):
            raise UntapedError
        return self.recording.layouts[number]

    def spot(self, value: Any, layout: MemoryLayout | None = None, kind: _dtype = torch.float32) -> Spot:
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

    def dense(self, value: Any, kind: _dtype = torch.float32) -> Spot:
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
    expected = 1
    for stride, size in reversed(dims):
        if stride != expected:
            return False
        expected *= size
    return layout.size[0] == 1 or layout.stride[0] * layout.size[0] == expected


def _step(kind: int, spots: Sequence[Spot | None], outputs: int, *numbers: int, **rest: Any) -> TapeStep:
    """A step whose last tensors are made by it."""
    writes = tuple(spot.root for spot in spots[len(spots) - outputs :] if spot is not None)
    return TapeStep(kind, tuple(spots), writes, tuple(map(int, numbers)), **rest)


def _linear(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
    x, weight, bias, first = call.arguments
    (_, rows, inputs), (_, _, outputs) = reader.layout(x).size, reader.layout(call.outputs[0]).size
    spots = [reader.dense(x), reader.dense(weight), reader.maybe(bias), reader.dense(call.outputs[0])]
    return [_step(LINEAR_FORWARD, spots, 1, rows, inputs, outputs, first)]


def _linear_backward(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
    upstream, x, weight, first = call.arguments[:4]
    (_, rows, inputs), (_, _, outputs) = reader.layout(x).size, reader.layout(upstream).size
    spots = [*map(reader.dense, (upstream, x, weight)), *map(reader.maybe, call.outputs)]
    return [_step(LINEAR_BACKWARD, spots, 3, rows, inputs, outputs, first)]


def _activation(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
    *tensors, kind = call.arguments
    count = prod(reader.layout(tensors[0]).size) // reader.clients
    spots = [*map(reader.dense, tensors), reader.dense(call.outputs[0])]
    step = ACTIVATION_BACKWARD if len(tensors) == 2 else ACTIVATION_FORWARD
    return [_step(step, spots, 1, kind, count)]


def _norm(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
    x, scale, shift, centred, eps = call.arguments
    _, rows, width = reader.layout(x).size
    spots = [reader.dense(x), reader.dense(scale), reader.maybe(shift), *map(reader.dense, call.outputs)]
    return [_step(NORM_FORWARD, spots, 2, centred, rows, width, number=eps)]


def _norm_backward(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
    *tensors, centred = call.arguments[:5]
    _, rows, width = reader.layout(tensors[1]).size
    spots = [*map(reader.dense, tensors), *map(reader.maybe, call.outputs)]
    return [_step(NORM_BACKWARD, spots, 3, centred, rows, width)]


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
    return [_step(ATTENTION_FORWARD, spots, 2, *numbers, number=scale)]


def _attention_backward(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
    *inputs, weights, causal, scale = call.arguments
    form = _attention_form(reader, *inputs[1:])
    numbers = [*form, causal, *_strides(reader, [*inputs, *call.outputs])]
    spots = [*map(reader.spot, inputs), *map(reader.spot, call.outputs), reader.dense(weights)]
    step = _step(ATTENTION_BACKWARD, spots, 0, *numbers, number=scale, scratch=form[3] * form[4])
    return [replace(step, writes=tuple(reader.layout(out).root for out in call.outputs))]


def _entropy(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
    x, labels, ignored = call.arguments
    rows, width = reader.layout(x).size
    made = map(reader.dense, call.outputs)
    spots = [reader.dense(x), reader.dense(labels, torch.int64), *made]
    return [_step(ENTROPY_FORWARD, spots, 2, ignored, rows // reader.clients, width)]


def _entropy_backward(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
    upstream, x, labels, ignored, logs = call.arguments
    rows, width = reader.layout(x).size
    spots = [reader.dense(upstream), reader.dense(x), reader.dense(labels, torch.int64),
             reader.dense(logs), reader.dense(call.outputs[0])]  # fmt: skip
    return [_step(ENTROPY_BACKWARD, spots, 1, ignored, rows // reader.clients, width)]


def _walk(
    reader: TapeReader, kind: int, inputs: Sequence[tuple[Any, MemoryLayout]],
    out: tuple[Any, MemoryLayout], number: float = 1.0,
) -> TapeStep:  # fmt: skip
    """A step that goes through tensors value by value, in the order of the one it makes."""
    size = out[1].size
    wide = [(n, layout if layout.size == size else _stretch(layout, size)) for n, layout in inputs]
    layouts = [*(layout for _, layout in wide), out[1]]
    spots = [*(reader.everyones(layout, n) for n, layout in wide), reader.spot(*out)]
    sizes = [size[0] // reader.clients, *size[1:]]
    order = sorted(range(len(sizes)), key=lambda place: -out[1].stride[place])
    dims: list[list[int]] = []  # size and strides, neighbours as one where memory goes on
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
    return _step(kind, spots, 1, *(n for column in columns for n in column), number=number)


def _stretch(layout: MemoryLayout, size: tuple[int, ...]) -> MemoryLayout:
    """As torch stretches a tensor to another's size."""
    missing = len(size) - len(layout.size)
    pairs = [(1, 0)] * missing + list(zip(layout.size, layout.stride, strict=True))
    if any(n not in (1, wanted) for (n, _), wanted in zip(pairs, size, strict=True)):
        raise UntapedError
    stride = tuple(0 if n != wanted else s for (n, s), wanted in zip(pairs, size, strict=True))
    return replace(layout, size=size, stride=stride)


def _pair(kind: int) -> Callable[[TapeReader, OperatorCall], list[TapeStep]]:
    def rule(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
        if call.keywords or len(call.arguments) != 2:
            raise UntapedError
        inputs = [(value, reader.layout(value)) for value in call.arguments]
        out = call.outputs[0]
        return [_walk(reader, kind, inputs, (out, reader.layout(out)))]

    return rule


def _copy(factor: float) -> Callable[[TapeReader, OperatorCall], list[TapeStep]]:
    def rule(reader: TapeReader, call: OperatorCall) -> list[TapeStep]:
        source, out = call.arguments[0], call.outputs[0]
        pair = (source, reader.layout(source)), (out, reader.layout(out))
        return [_walk(reader, COPY_VALUES, [pair[0]], pair[1], factor)]

    return rule


def _join(is_stack: bool) -> Callable[[TapeReader, OperatorCall], list[TapeStep]]:
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
            room = replace(whole, size=layout.size, offset=at)
            steps.append(_walk(reader, COPY_VALUES, [(part, layout)], (out, room)))
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
    room = replace(whole, size=layout.size, offset=whole.offset + start * whole.stride[dim])
    clear = _step(CLEAR, [reader.spot(out)], 1, prod(whole.size) // reader.clients)
    return [clear, _walk(reader, COPY_VALUES, [(source, layout)], (out, room))]


_Rule = Callable[[TapeReader, OperatorCall], list[TapeStep]]
LAYERS: Mapping[object, _Rule] = {
    operators.linear: _linear,
    operators.linear_backward: _linear_backward,
    operators.activation: _activation,
    operators.activation_backward: _activation,
    operators.norm_rows: _norm,
    operators.norm_rows_backward: _norm_backward,
    operators.attention: _attention,
    operators.attention_backward: _attention_backward,
    operators.cross_entropy: _entropy,
    operators.cross_entropy_backward: _entropy_backward,
}
"""What a tape may begin with."""
_RULES: Mapping[object, _Rule] = {
    **LAYERS,
    _aten.add.Tensor: _pair(ADD_VALUES),
    _aten.mul.Tensor: _pair(MULTIPLY_VALUES),
    _aten.neg.default: _copy(-1.0),
    _aten.clone.default: _copy(1.0),
    _aten.cat.default: _join(is_stack=False),
    _aten.stack.default: _join(is_stack=True),
    _aten.slice_backward.default: _slice_backward,
}
