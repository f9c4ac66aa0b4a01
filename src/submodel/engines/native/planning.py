"""A net as a list of layers with kernels, and their layout in memory.

The list contains no sizes: that of the whole net serves every cut, like the wide forward's graph,
from which it is made. With the sizes of a cut it is converted to operations.

A value has a frame of zeros as wide as the widest padding of the convolutions that read it; its
gradient has a frame as wide as the convolution that wrote the value needs. Frames are zeroed once
and never written to. Gradients share memory: after its last use, the memory of a gradient is reused
for one of the same shape and frame.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from submodel.engines.batched.forward import (
    ADD,
    FLATTEN,
    MEAN,
    RELU,
    Graph,
    GraphStep,
    UnstackableError,
)
from submodel.engines.native import library
from submodel.engines.native.library import LANES, Op
from submodel.model.norm import Scaler, StaticBatchNorm

_LARGEST_FILTER, _LARGEST_STRIDE = 11, 8


@dataclass(frozen=True)
class LayerSpec:
    """One layer; ``inputs`` and ``output`` are numbers of values, 0 is the input of the net."""

    kind: int
    inputs: tuple[int, ...]
    output: int
    weight: str | None = None
    bias: str | None = None
    kernel: tuple[int, int] = (1, 1)  # (0, 0): all rows and columns
    stride: int = 1
    edge: int = 0  # the padding of a convolution
    relu: bool = False  # whether a ReLU follows a norm
    scaler: Scaler | None = None  # the scaler of its output
    eps: float = 0.0
    flat: bool = False  # whether its output has no rows and columns


def make_specs(graph: Graph) -> list[LayerSpec]:
    """The layers of a graph with a wide form, in order, fused if possible."""
    if len(graph.shape) != 3:
        raise UnstackableError("the inputs are not images")
    values = [0]  # number of a value in the graph -> number in the result
    specs: list[LayerSpec] = []
    for step in graph.steps:
        inputs, output = tuple(values[place] for place in step.inputs), len(specs) + 1
        if isinstance(step.layer, nn.Identity):
            values.append(inputs[0])
            continue
        if step.layer is not None:
            specs.append(_of_layer(step.layer, step, inputs, output))
        else:
            specs.append(_of_function(step, inputs, output))
        values.append(output)
    last = values[graph.output]
    return _fuse(_needed_layers(specs, last), last)


def _of_layer(layer: nn.Module, step: GraphStep, inputs: tuple[int, ...], output: int) -> LayerSpec:
    kind, (weight, bias, *_) = type(layer), step.names
    if isinstance(layer, nn.Conv2d):
        return _convolution(layer, inputs, output, weight, bias)
    if kind is nn.Linear:
        return LayerSpec(library.CONVOLUTION, inputs, output, weight, bias, flat=True)
    if kind is StaticBatchNorm:
        assert isinstance(layer, StaticBatchNorm)
        return LayerSpec(library.NORM, inputs, output, weight, bias, eps=layer.eps)
    if isinstance(layer, Scaler):
        return LayerSpec(library.SCALE, inputs, output, scaler=layer)
    if kind is nn.ReLU:
        return LayerSpec(library.RELU, inputs, output)
    if kind is nn.Flatten:
        return LayerSpec(library.COPY, inputs, output, flat=True)
    if kind is nn.AdaptiveAvgPool2d and layer.output_size in (1, (1, 1)):
        return LayerSpec(library.MEAN_POOL, inputs, output, kernel=(0, 0))
    if isinstance(layer, nn.MaxPool2d | nn.AvgPool2d):
        return _pool(layer, inputs, output)
    raise UnstackableError(f"there is no kernel for {kind.__name__} of {step.shapes[0]}")


def _convolution(
    layer: nn.Conv2d, inputs: tuple[int, ...], output: int, weight: str | None, bias: str | None
) -> LayerSpec:
    edges, strides = _pair(layer.padding), _pair(layer.stride)
    kernel = _pair(layer.kernel_size)
    simple = edges is not None and len(set(edges)) == len(set(strides or ())) == 1
    if (
        not simple
        or kernel is None
        or layer.groups != 1
        or _pair(layer.dilation) != (1, 1)
        or max(kernel) > _LARGEST_FILTER
        or max(strides or ()) > _LARGEST_STRIDE
    ):
        raise UnstackableError(f"there is no kernel for {layer}")
    assert edges is not None
    assert strides is not None
    shape: dict[str, Any] = {"kernel": kernel, "stride": strides[0], "edge": edges[0]}
    return LayerSpec(library.CONVOLUTION, inputs, output, weight, bias, **shape)


def _pool(layer: nn.MaxPool2d | nn.AvgPool2d, inputs: tuple[int, ...], output: int) -> LayerSpec:
    kernel, strides = _pair(layer.kernel_size), _pair(layer.stride)
    plain = _pair(layer.padding) == (0, 0) and not layer.ceil_mode
    if isinstance(layer, nn.MaxPool2d):
        kind, plain = library.MAX_POOL, plain and _pair(layer.dilation) == (1, 1)
    else:
        kind, plain = library.MEAN_POOL, plain and layer.divisor_override is None
    if not plain or kernel is None or strides is None or len(set(strides)) > 1:
        raise UnstackableError(f"there is no kernel for {layer}")
    return LayerSpec(kind, inputs, output, kernel=kernel, stride=strides[0])


def _of_function(step: GraphStep, inputs: tuple[int, ...], output: int) -> LayerSpec:
    shapes, is_plain = step.shapes, len(inputs) == len(step.node.args)
    if step.function == RELU:
        return LayerSpec(library.RELU, inputs, output)
    if step.function == ADD and is_plain and len(inputs) == 2 and shapes[0] == shapes[1]:
        return LayerSpec(library.ADD, inputs, output)
    if step.function == FLATTEN:
        return LayerSpec(library.COPY, inputs, output, flat=True)
    if step.function == MEAN and len(shapes[0]) == 4 and sorted(step.dims) == [2, 3]:
        flat = len(step.shape) == 2
        return LayerSpec(library.MEAN_POOL, inputs, output, kernel=(0, 0), flat=flat)
    raise step.refuse("has no kernel")


def _pair(value: object) -> tuple[int, int] | None:
    """A setting for rows and columns; None if it is a string."""
    if isinstance(value, int):
        return value, value
    if isinstance(value, Sequence) and len(value) == 2 and not isinstance(value, str):
        return int(value[0]), int(value[1])
    return None


def _needed_layers(specs: Sequence[LayerSpec], last: int) -> list[LayerSpec]:
    """The layers that the output depends on."""
    wanted_values, needed_layers = {last}, []
    for one in reversed(specs):
        if one.output in wanted_values:
            wanted_values |= set(one.inputs)
            needed_layers.append(one)
    return needed_layers[::-1]


def _fuse(specs: Sequence[LayerSpec], last: int) -> list[LayerSpec]:
    """Fuse norms with ReLUs, convolutions with scalers, then convolutions with sums.

    Only values with a single consumer are fused.
    """
    consumers = Counter([last, *(i for one in specs for i in one.inputs)])
    by_output: dict[int, int] = {}
    fused_layers: list[LayerSpec] = []
    for one in specs:
        place = by_output.get(one.inputs[0]) if consumers[one.inputs[0]] == 1 else None
        before = None if place is None else fused_layers[place]
        if before is not None and place is not None:
            joint = None
            if one.kind == library.RELU and before.kind == library.NORM:
                joint = replace(before, relu=True, output=one.output)
            elif (one.kind, before.kind, before.scaler) == (
                library.SCALE,
                library.CONVOLUTION,
                None,
            ):
                joint = replace(before, scaler=one.scaler, output=one.output)
            if joint is not None and not before.relu:
                fused_layers[place] = joint
                by_output[one.output] = place
                continue
        by_output[one.output] = len(fused_layers)
        fused_layers.append(one)
    return _fuse_sums(fused_layers, consumers)


def _fuse_sums(specs: Sequence[LayerSpec], consumers: Mapping[int, int]) -> list[LayerSpec]:
    """Fuse a convolution with a following sum: it adds to the other term."""
    by_output = {one.output: one for one in specs}
    sums: list[LayerSpec] = []
    for one in specs:
        sums.append(one)
        for term, other in (one.inputs, one.inputs[::-1]) if one.kind == library.ADD else ():
            before = by_output.get(term)
            if before is None or before.kind != library.CONVOLUTION or before.flat:
                continue
            if consumers[term] == 1 and before in sums:
                sums.remove(before)
                inputs = (*before.inputs, other)
                sums[-1] = replace(before, inputs=inputs, output=one.output)
                break
    return sums


LEAST_CHANNELS = 16
"""Convolutions of fewer channels than this are not computed by tiles: the transforms take as long
as the products save (docs/speed.md)."""
STRIP_FLOATS = 1 << 17
"""Floats in the transforms of a strip, as in `code/transforms.h`."""
_PLACES, _APART = 16, 144  # places of a transform, and floats between them, as there
Shape = tuple[int, int, int]
"""Channels, rows, columns."""


@dataclass(frozen=True)
class NetLayout:
    """The operations of a cut at one batch size, and their memory in floats."""

    ops: Sequence[Op]
    pad: int  # of the input
    outputs: int  # values of an example
    output: int
    doutput: int
    activations: int  # of a client
    gradients: int
    scratch: tuple[int, int, int, int]  # offsets, packed filters, split images, transposed images


class _Allocator:
    """Allocates memory for values of any shape and frame."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self.size = 0
        self._free: dict[tuple[Shape, int], list[int]] = defaultdict(list)

    def allocate(self, shape: Shape, pad: int) -> int:
        """Allocate memory, perhaps freed before."""
        if places := self._free[shape, pad]:
            return places.pop()
        channels, rows, columns = shape
        row = columns * self._batch
        if pad:
            row = _whole_vectors(pad * self._batch) + _whole_vectors((columns + pad) * self._batch)
        place = self.size
        self.size += _whole_vectors(channels * (rows + 2 * pad) * row)
        return place

    def release(self, place: int, shape: Shape, pad: int) -> None:
        """Free memory for another value."""
        self._free[shape, pad].append(place)


def _whole_vectors(floats: int) -> int:
    """Round up to whole vectors, as in ``view_of`` of `code/types.h`."""
    return -(-floats // LANES) * LANES


@dataclass(frozen=True)
class _Values:
    """Properties of all values, before allocation."""

    shapes: dict[int, Shape]
    pads: dict[int, int]
    frames: dict[int, int]  # of their gradients
    roots: dict[int, int]  # a flattened value -> the value that it shares memory with


def plan_layers(
    specs: Sequence[LayerSpec],
    inputs: Shape,
    shapes: Mapping[str, Sequence[int]],
    numbers: Mapping[str, int],
    batch: int,
) -> NetLayout:
    """Allocate memory for the layers of a net.

    ``shapes`` are those of one client's tensors, ``numbers`` their numbers in the kernels.
    """
    values = _measure(specs, inputs, shapes)
    last = values.roots[specs[-1].output]
    if values.pads[last] or values.frames[last]:
        raise UnstackableError("the net ends with a convolution")
    steps = [one for one in specs if values.roots[one.output] == one.output]
    memory = _Allocator(batch)
    places = {
        value: memory.allocate(values.shapes[value], values.pads[value])
        for value in (0, *(one.output for one in steps))
    }
    ops = []
    for one in steps:
        op = _operation(one, values, places, numbers)
        if one.kind == library.NORM:
            op.statistics = memory.allocate((op.c, 1, 2), 0)
        ops.append(op)
    gradients = _Allocator(batch)
    doutput = _place_gradients(steps, ops, values, last, gradients)
    needs = [_scratch(op, batch) for op in ops if op.kind == library.CONVOLUTION]
    offsets, filters, phases, turns = (max((n[i] for n in needs), default=0) for i in range(4))
    return NetLayout(
        ops,
        values.pads[0],
        math.prod(values.shapes[last]),
        places[last],
        doutput,
        memory.size,
        gradients.size,
        (offsets, filters, phases, turns),
    )


def _measure(
    specs: Sequence[LayerSpec], inputs: Shape, shapes: Mapping[str, Sequence[int]]
) -> _Values:
    values = _Values({0: inputs}, defaultdict(int), defaultdict(int), {0: 0})
    for one in specs:
        source = one.inputs[0]
        values.shapes[one.output] = out = _output_shape(one, values.shapes[source], shapes)
        if one.kind == library.CONVOLUTION:
            values.pads[source] = max(values.pads[source], one.edge)
            values.frames[one.output] = _gradient_frame(one, values.shapes[source], out)
    for one in specs:
        source = values.roots[one.inputs[0]]
        has_frame = values.pads[source] or values.frames[source]
        is_same = one.kind == library.COPY and not has_frame
        values.roots[one.output] = source if is_same else one.output
    return values


def _output_shape(one: LayerSpec, source: Shape, shapes: Mapping[str, Sequence[int]]) -> Shape:
    channels, rows, columns = source
    if one.kind == library.CONVOLUTION:
        assert one.weight is not None
        channels = shapes[one.weight][0]
    if one.flat:
        is_copy = one.kind == library.COPY
        return (math.prod(source) if is_copy else channels), 1, 1
    if one.kernel == (0, 0):
        return channels, 1, 1
    if one.kind in (library.CONVOLUTION, library.MAX_POOL, library.MEAN_POOL):
        rows, columns = (
            (size + 2 * one.edge - k) // one.stride + 1
            for size, k in zip((rows, columns), one.kernel, strict=True)
        )
    if rows < 1 or columns < 1:
        raise UnstackableError("an image is smaller than a filter")
    return channels, rows, columns


def _gradient_frame(one: LayerSpec, source: Shape, out: Shape) -> int:
    """The width by which the input's gradient reads beyond the output's gradient."""
    frame = 0
    for size, window, count in zip(source[1:], one.kernel, out[1:], strict=True):
        for tap in range(window):
            for place in (*range(min(one.stride, size)), *range(max(size - one.stride, 0), size)):
                position, rest = divmod(place + one.edge - tap, one.stride)
                if not rest:
                    frame = max(frame, -position, position - count + 1)
    return frame


def _operation(
    one: LayerSpec, values: _Values, places: Mapping[int, int], numbers: Mapping[str, int]
) -> Op:
    sources = [values.roots[i] for i in one.inputs]
    shape, out = values.shapes[one.inputs[0]], values.shapes[one.output]
    if one.kind == library.CONVOLUTION and one.flat:
        shape = (math.prod(shape), 1, 1)
    kernel = shape[1:] if one.kernel == (0, 0) else one.kernel
    return Op(
        kind=one.kind,
        in_=places[sources[0]], in2=places[sources[1]] if len(sources) > 1 else -1,
        out=places[one.output],
        din=-1, din2=-1, dout=-1, add_in=0, add_in2=0,
        c=shape[0], h=shape[1], w=shape[2], pad=values.pads[sources[0]],
        oc=out[0], oh=out[1], ow=out[2], opad=values.pads[one.output],
        dpad=values.frames[sources[0]], dopad=values.frames[one.output],
        pad2=values.pads[sources[-1]], dpad2=values.frames[sources[-1]],
        kh=kernel[0], kw=kernel[1], stride=one.stride, edge=one.edge,
        by_tiles=_pays_by_tiles(one, shape, out),
        weight=-1 if one.weight is None else numbers[one.weight],
        bias=-1 if one.bias is None else numbers[one.bias],
        relu=one.relu, statistics=-1, has_statistics=0,
        scale=1.0 if one.scaler is None else 1 / one.scaler.rate, eps=one.eps,
    )  # fmt: skip


def _pays_by_tiles(one: LayerSpec, source: Shape, out: Shape) -> bool:
    """Return whether a convolution uses Winograd's tiles: 3 x 3 filters, even image sizes."""
    is_fit = one.kind == library.CONVOLUTION and one.kernel == (3, 3) and one.stride == 1
    is_even = not any(size % 2 for size in (*source[1:], *out[1:]))
    return is_fit and is_even and one.edge <= 2 and min(source[0], out[0]) >= LEAST_CHANNELS


def _tile_scratch(op: Op, batch: int) -> tuple[int, ...]:
    """`_scratch` for a convolution by tiles; transforms are those of a strip of the image."""
    wide = _whole_vectors(op.c)

    def strip_length(rows: int, columns: int) -> int:
        """Compute the length as in ``tiling_of`` of `code/transforms.h`."""
        tiles = columns // 2 * batch
        strip = max(1, STRIP_FLOATS // (_PLACES * (op.c + op.oc) * tiles))
        return _whole_vectors(min(strip, rows // 2) * tiles)

    length = max(strip_length(op.oh, op.ow), strip_length(op.h, op.w))
    transforms = _PLACES * ((wide + op.oc) * length + 2 * _APART)
    image = wide * (op.h + 2 * op.pad) * (op.w + 2 * op.pad) * batch
    filters = _PLACES * (op.oc * wide + _APART)
    return 0, filters, transforms, image + transforms + filters


def _place_gradients(
    steps: Sequence[LayerSpec], ops: Sequence[Op], values: _Values, last: int, memory: _Allocator
) -> int:
    """Allocate every gradient while it is needed; return the place of the output's gradient."""
    trainable_values: set[int] = set()  # values that depend on weights
    for one in steps:
        if one.weight is not None or trainable_values & {values.roots[i] for i in one.inputs}:
            trainable_values.add(one.output)

    def take(value: int) -> int:
        return memory.allocate(values.shapes[value], values.frames[value])

    places = {last: take(last)}
    output = places[last]
    for one, op in zip(reversed(steps), reversed(ops), strict=True):
        op.dout = places[one.output]
        for number, source in enumerate(values.roots[i] for i in one.inputs):
            if source not in trainable_values:
                continue
            add = source in places
            if not add:
                places[source] = take(source)
            if number:
                op.din2, op.add_in2 = places[source], add
            else:
                op.din, op.add_in = places[source], add
        place = places.pop(one.output)
        memory.release(place, values.shapes[one.output], values.frames[one.output])
    return output


def _scratch(op: Op, batch: int) -> tuple[int, ...]:
    """Floats for offsets (two floats each), packed filters, split and transposed images."""
    if op.by_tiles:
        return _tile_scratch(op, batch)
    taps = op.kh * op.kw
    rows, columns = op.h + 2 * op.pad, op.w + 2 * op.pad
    row = _whole_vectors(-(-columns // op.stride) * batch) * op.stride
    phases = 0 if op.stride == 1 else op.c * rows * row + LANES
    plane = rows * (columns * batch if op.stride == 1 else row)
    parts = op.c * op.h * op.w * batch + LANES  # of the gradient of the input, with a stride
    linear = op.oc * _whole_vectors(batch) + (op.c + LANES) * batch  # values of a linear layer
    needs = (
        2 * max(op.c, op.oc) * taps,
        op.oc * op.c * taps,
        0 if op.stride == 1 else max(phases, parts),
        max(_whole_vectors(op.c) * plane, op.oc * op.c * taps * LANES, linear),
    )
    return tuple(map(_whole_vectors, needs))
