"""What a net computes, as a list of the layers that the kernels know.

Sizes are left open: the recipe of the whole net serves every cut of it, as the wide forward's
graph does, from which it is made.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from submodel.engines.batched.forward import UnstackableError
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


_ADDITIONS: set[object] = {operator.add, operator.iadd, torch.add, "add", "add_"}
_RELUS: set[object] = {functional.relu, functional.relu_, torch.relu, "relu", "relu_"}
_MEANS: set[object] = {torch.mean, "mean"}
_FLATTENS: set[object] = {torch.flatten, "flatten"}


def make_recipe(
    graph: fx.Graph, layers: Mapping[str, nn.Module], names: Mapping[int, str]
) -> list[Ingredient]:
    """The layers of a graph that has a wide form, in order, fused_layers where the kernels can.

    Args:
        graph: of the whole module, with the shape of every node in its ``meta``.
        layers: its modules, by path.
        names: the names of its parameters, by their id.
    """
    values: dict[fx.Node, int] = {}
    recipe: list[Ingredient] = []
    for node in graph.nodes:
        if node.op == "placeholder":
            if len(node.meta["shape"]) != 4:
                raise UnstackableError("the inputs are no images")
            values[node] = 0
        elif node.op == "output":
            last = values[node.args[0]]
        else:
            sources = [a for a in node.args if isinstance(a, fx.Node)]
            inputs = tuple(values[source] for source in sources)
            target = layers[str(node.target)] if node.op == "call_module" else node.target
            if isinstance(target, nn.Identity):
                values[node] = inputs[0]
                continue
            output = len(recipe) + 1
            if isinstance(target, nn.Module):
                recipe.append(_of_layer(target, inputs, output, names, sources[0].meta["shape"]))
            else:
                recipe.append(_of_function(node, target, inputs, output))
            values[node] = output
    return _fuse(_needed_layers(recipe, last), last)


def _of_layer(
    layer: nn.Module,
    inputs: tuple[int, ...],
    output: int,
    names: Mapping[int, str],
    shape: Sequence[int],
) -> Ingredient:
    kind = type(layer)
    weight, bias = (
        None if (tensor := getattr(layer, name, None)) is None else names[id(tensor)]
        for name in ("weight", "bias")
    )
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
    raise UnstackableError(f"there is no kernel for {kind.__name__} of {tuple(shape)}")


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


def _of_function(node: fx.Node, target: object, inputs: tuple[int, ...], output: int) -> Ingredient:
    shapes = [a.meta["shape"] for a in node.args if isinstance(a, fx.Node)]
    if target in _RELUS:
        return Ingredient(library.RELU, inputs, output)
    if target in _ADDITIONS and len(inputs) == len(node.args) == 2 and shapes[0] == shapes[1]:
        return Ingredient(library.ADD, inputs, output)
    if target in _FLATTENS:
        return Ingredient(library.COPY, inputs, output, flat=True)
    if target in _MEANS and len(shapes[0]) == 4:
        dims: Any = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else ())
        if sorted(d % 4 for d in ((dims,) if isinstance(dims, int) else dims)) == [2, 3]:
            flat = len(node.meta["shape"]) == 2
            return Ingredient(library.MEAN_POOL, inputs, output, kernel=(0, 0), flat=flat)
    raise UnstackableError(f"there is no kernel for {node.format_node()}")


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
