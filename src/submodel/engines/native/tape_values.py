"""Operators of torch that go through tensors value by value, as steps of a tape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch

from submodel.engines.batched.recording import MemoryLayout, OperatorCall
from submodel.engines.native.tape import TapeStep
from submodel.engines.native.tape_layers import TapeRule
from submodel.engines.native.tape_reader import (
    ADD_VALUES,
    CLEAR,
    COPY_VALUES,
    MULTIPLY_VALUES,
    TapeReader,
    UntapedError,
    make_step,
)

_DIMENSIONS = 5
_aten = torch.ops.aten


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
    return make_step(kind, spots, 1, *(n for column in columns for n in column), number=number)


def _stretch(layout: MemoryLayout, size: tuple[int, ...]) -> MemoryLayout:
    """As torch stretches a tensor to another's size."""
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
    clear = make_step(CLEAR, [reader.spot(out)], 1, prod(whole.size) // reader.clients)
    return [clear, _walk(reader, COPY_VALUES, [(source, layout)], (out, room))]


VALUES: Mapping[object, TapeRule] = {
    _aten.add.Tensor: _pair(ADD_VALUES),
    _aten.mul.Tensor: _pair(MULTIPLY_VALUES),
    _aten.neg.default: _copy(-1.0),
    _aten.clone.default: _copy(1.0),
    _aten.cat.default: _join(is_stack=False),
    _aten.stack.default: _join(is_stack=True),
    _aten.slice_backward.default: _slice_backward,
}
"""By operator: torch's that stand between layers."""
