"""The kernels' own operators as steps of a tape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch

from submodel.engines.batched.recording import OperatorCall
from submodel.engines.native import operators
from submodel.engines.native.tape import TapeStep
from submodel.engines.native.tape_reader import (
    ACTIVATION_BACKWARD,
    ACTIVATION_FORWARD,
    ATTENTION_BACKWARD,
    ATTENTION_FORWARD,
    ENTROPY_BACKWARD,
    ENTROPY_FORWARD,
    LINEAR_BACKWARD,
    LINEAR_FORWARD,
    NORM_BACKWARD,
    NORM_FORWARD,
    TapeReader,
    UntapedError,
    make_step,
)

TapeRule = Callable[[TapeReader, OperatorCall], list[TapeStep]]
"""What a call is as steps; raises `UntapedError` where it is left to torch."""


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
"""By operator. A tape begins with one of these."""
