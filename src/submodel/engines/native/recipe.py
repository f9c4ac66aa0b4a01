"""What a net computes, as a list of the layers that the kernels know.

Sizes are left open: the recipe of the whole net serves every cut of it, as the wide forward's
graph does, from which it is made.
"""

from __future__ import annotations

from collections import Counter
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
from submodel.model.norm import Scaler, StaticBatchNorm

_LARGEST_FILTER, _LARGEST_STRIDE = 11, 8


@dataclass(frozen=True)
class Ingredient:
    """One layer: what it reads and writes are numbers of values; value 0 is the input."""

    kind: int
    inputs: tuple[int, ...]
    output: int
    weight: str | None = None
    bias: str | None = None
    kernel: tuple[int, int] = (1, 1)  # (0, 0): all rows and columns
    stride: int = 1
    edge: int = 0  # the padding of a convolution
    relu: bool = False  # a norm with a ReLU after it
    scaler: Scaler | None = None  # what divides its output
    eps: float = 0.0
    flat: bool = False  # its output has no rows and columns


def make_recipe(graph: Graph) -> list[Ingredient]:
    """The layers of a graph that has a wide form, in order, fused where the kernels can.

    Args:
        graph: of the whole module.
    """
    if len(graph.shape) != 3:
        raise UnstackableError("the inputs are no images")
    values = [0]  # of the graph -> of the recipe
    recipe: list[Ingredient] = []
    for step in graph.steps:
        inputs, output = tuple(values[place] for place in step.inputs), len(recipe) + 1
        if isinstance(step.layer, nn.Identity):
            values.append(inputs[0])
            continue
        if step.layer is not None:
            recipe.append(_of_layer(step.layer, step, inputs, output))
        else:
            recipe.append(_of_function(step, inputs, output))
        values.append(output)
    last = values[graph.output]
    return _fuse(_needed_layers(recipe, last), last)


def _of_layer(
    layer: nn.Module, step: GraphStep, inputs: tuple[int, ...], output: int
) -> Ingredient:
    kind, (weight, bias, *_) = type(layer), step.names
    if isinstance(layer, nn.Conv2d):
        return _convolution(layer, inputs, output, weight, bias)
    if kind is nn.Linear:
        return Ingredient(library.CONVOLUTION, inputs, output, weight, bias, flat=True)
    if kind is StaticBatchNorm:
        assert isinstance(layer, StaticBatchNorm)
        return Ingredient(library.NORM, inputs, output, weight, bias, eps=layer.eps)
    if isinstance(layer, Scaler):
        return Ingredient(library.SCALE, inputs, output, scaler=layer)
    if kind is nn.ReLU:
        return Ingredient(library.RELU, inputs, output)
    if kind is nn.Flatten:
        return Ingredient(library.COPY, inputs, output, flat=True)
    if kind is nn.AdaptiveAvgPool2d and layer.output_size in (1, (1, 1)):
        return Ingredient(library.MEAN_POOL, inputs, output, kernel=(0, 0))
    if isinstance(layer, nn.MaxPool2d | nn.AvgPool2d):
        return _pool(layer, inputs, output)
    raise UnstackableError(f"there is no kernel for {kind.__name__} of {step.shapes[0]}")


def _convolution(
    layer: nn.Conv2d, inputs: tuple[int, ...], output: int, weight: str | None, bias: str | None
) -> Ingredient:
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
    return Ingredient(library.CONVOLUTION, inputs, output, weight, bias, **shape)


def _pool(layer: nn.MaxPool2d | nn.AvgPool2d, inputs: tuple[int, ...], output: int) -> Ingredient:
    kernel, strides = _pair(layer.kernel_size), _pair(layer.stride)
    plain = _pair(layer.padding) == (0, 0) and not layer.ceil_mode
    if isinstance(layer, nn.MaxPool2d):
        kind, plain = library.MAX_POOL, plain and _pair(layer.dilation) == (1, 1)
    else:
        kind, plain = library.MEAN_POOL, plain and layer.divisor_override is None
    if not plain or kernel is None or strides is None or len(set(strides)) > 1:
        raise UnstackableError(f"there is no kernel for {layer}")
    return Ingredient(kind, inputs, output, kernel=kernel, stride=strides[0])


def _of_function(step: GraphStep, inputs: tuple[int, ...], output: int) -> Ingredient:
    shapes, is_plain = step.shapes, len(inputs) == len(step.node.args)
    if step.function == RELU:
        return Ingredient(library.RELU, inputs, output)
    if step.function == ADD and is_plain and len(inputs) == 2 and shapes[0] == shapes[1]:
        return Ingredient(library.ADD, inputs, output)
    if step.function == FLATTEN:
        return Ingredient(library.COPY, inputs, output, flat=True)
    if step.function == MEAN and len(shapes[0]) == 4 and sorted(step.dims) == [2, 3]:
        flat = len(step.shape) == 2
        return Ingredient(library.MEAN_POOL, inputs, output, kernel=(0, 0), flat=flat)
    raise step.refuse("has no kernel")


def _pair(value: object) -> tuple[int, int] | None:
    """A setting of rows and columns; None: it is in words."""
    if isinstance(value, int):
        return value, value
    if isinstance(value, Sequence) and len(value) == 2 and not isinstance(value, str):
        return int(value[0]), int(value[1])
    return None


def _needed_layers(recipe: Sequence[Ingredient], last: int) -> list[Ingredient]:
    """Without what the output does not depend on."""
    wanted_values, needed_layers = {last}, []
    for one in reversed(recipe):
        if one.output in wanted_values:
            wanted_values |= set(one.inputs)
            needed_layers.append(one)
    return needed_layers[::-1]


def _fuse(recipe: Sequence[Ingredient], last: int) -> list[Ingredient]:
    """A norm with the ReLU after it, a convolution with its scaler, where nobody else looks; then
    a convolution with the sum that it goes into.
    """
    consumers = Counter([last, *(i for one in recipe for i in one.inputs)])
    by_output: dict[int, int] = {}
    fused_layers: list[Ingredient] = []
    for one in recipe:
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


def _fuse_sums(recipe: Sequence[Ingredient], consumers: Mapping[int, int]) -> list[Ingredient]:
    """Let convolutions add onto the other term of a sum, in the place of the sum."""
    by_output = {one.output: one for one in recipe}
    sums: list[Ingredient] = []
    for one in recipe:
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
