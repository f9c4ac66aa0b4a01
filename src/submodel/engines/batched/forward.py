"""The forward pass of a stack: many equal modules computed as one; the wide form.

There are two forms, both exact up to the order of floating-point sums. *Wide*: the client axis is
folded into the channels along the module's graph, which is traced here. A convolution becomes a
grouped one, a linear layer a batched product; batch norms, pooling and pointwise operators stay the
same, as they act on each channel separately. A module with an operator that is in none of the
tables below has no wide form. *Mapped* (`vmap.py`): `torch.func.vmap` over other modules.

A stack's tensors are *wide*: the first dimension is clients x rows, client by client.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from submodel.engines.batched.layers import TORCH_KERNELS
from submodel.model.inputs import Inputs, first_column
from submodel.model.norm import Scaler, StaticBatchNorm

Wide = Mapping[str, Tensor]
"""A stack's tensors, by name."""


class UnstackableError(Exception):
    """Raised with the reason if a module cannot be computed in this form."""


class Forward(Protocol):
    """The forward pass of a stack."""

    module: nn.Module
    """The module to compute for every client; its tensors are not used."""

    def largest(self, rows: Mapping[str, int]) -> int:
        """The values per example in the largest activation, given the rows of the tensors."""
        ...

    def __call__(self, wide: Wide, clients: int, x: Inputs) -> Tensor:
        """Map inputs (batch, clients, ...) to outputs (batch, clients, ...)."""
        ...


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""The attributes of a layer with its hooks."""
RELU, POINTWISE, ADD, BETWEEN, MEAN, FLATTEN = range(6)
"""Kinds of functions in a graph: pointwise, between tensors, along dimensions."""
_FUNCTIONS: dict[object, int] = {
    **dict.fromkeys((torch.relu, functional.relu, functional.relu_, "relu", "relu_"), RELU),
    **dict.fromkeys((torch.sigmoid, torch.tanh, "sigmoid", "tanh", "contiguous"), POINTWISE),
    **dict.fromkeys((functional.gelu, functional.silu, functional.leaky_relu), POINTWISE),
    **dict.fromkeys((functional.elu, functional.max_pool2d), POINTWISE),
    **dict.fromkeys((functional.avg_pool2d, functional.adaptive_avg_pool2d), POINTWISE),
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_"), ADD),
    **dict.fromkeys((operator.sub, operator.mul, operator.imul, torch.sub, torch.mul), BETWEEN),
    **dict.fromkeys(("sub", "mul", "mul_"), BETWEEN),
    **dict.fromkeys((torch.mean, "mean"), MEAN),
    **dict.fromkeys((torch.flatten, "flatten"), FLATTEN),
}
_TENSORS = ("weight", "bias", "running_mean", "running_var")


@dataclass(frozen=True)
class GraphStep:
    """One layer or function of a graph."""

    node: fx.Node
    layer: nn.Module | None  # None: a function
    function: int | None  # RELU, ...; None: another function, or a layer
    inputs: tuple[int, ...]  # numbers of values; 0: input of the graph, n: output of step n - 1
    shapes: tuple[tuple[int, ...], ...]  # of the inputs
    shape: tuple[int, ...]
    names: tuple[str | None, ...]  # of the layer's weight, bias and running statistics

    @property
    def dims(self) -> list[int]:
        """The dimensions of a mean."""
        args = self.node.args
        dims: Any = self.node.kwargs.get("dim", args[1] if len(args) > 1 else ())
        dims = (dims,) if isinstance(dims, int) else dims or ()
        return [d % len(self.shapes[0]) for d in dims]

    def refuse(self, reason: str) -> UnstackableError:
        """An error that names this step."""
        return UnstackableError(f"{self.node.format_node()} {reason}")


@dataclass(frozen=True)
class Graph:
    """The steps of a module for one batch of inputs; it contains no sizes of cuts."""

    steps: Sequence[GraphStep]
    output: int  # the number of the returned value
    shape: tuple[int, ...]  # of an example


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_ours = isinstance(m, StaticBatchNorm | Scaler)
        return is_ours or super().is_leaf_module(m, module_qualified_name)


class _Measuring(fx.Interpreter):
    """Notes the shape of every tensor; torch's `ShapeProp` would import the compiler."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.extra_traceback = False  # the message of an error is enough

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            n.meta["shape"] = tuple(result.shape)
        return result


def read_graph(module: nn.Module, example: Inputs) -> Graph:
    """Trace the graph of a module; raise `UnstackableError` if it cannot be traced."""
    if not isinstance(example, Tensor):
        raise UnstackableError("it does not take a single batch of inputs")
    try:
        traced = fx.GraphModule(module, _Tracer().trace(module))
        with torch.no_grad():
            place = next((p.device for p in module.parameters()), example.device)
            _Measuring(traced).run(example.to(place))  # the module may be on the meta device
    except Exception as error:
        raise UnstackableError(f"its graph cannot be traced: {error}") from error
    layers = dict(module.named_modules(remove_duplicate=False))
    names = {id(p): n for n, p in module.named_parameters()}
    names |= {id(b): n for n, b in module.named_buffers()}
    numbers: dict[fx.Node, int] = {}
    steps: list[GraphStep] = []
    for node in traced.graph.nodes:
        if node.op == "output":
            out = node.args[0]
            if not isinstance(out, fx.Node) or len(_shape(out)) < 2:
                raise UnstackableError("it does not return a single batch of outputs")
            return Graph(steps, numbers[out], tuple(example.shape[1:]))
        if node.op != "placeholder":
            steps.append(_step(node, numbers, layers, names))
        elif numbers or len(_shape(node)) < 2:
            raise UnstackableError("it does not take a single batch of inputs")
        numbers[node] = len(numbers)
    raise UnstackableError("it returns nothing")


def _step(
    node: fx.Node,
    numbers: Mapping[fx.Node, int],
    layers: Mapping[str, nn.Module],
    names: Mapping[int, str],
) -> GraphStep:
    sources = [a for a in node.args if isinstance(a, fx.Node)]
    if any(isinstance(a, fx.Node) for a in node.kwargs.values()) or not sources:
        raise UnstackableError(f"the inputs of {node.name!r} are of an unknown kind")
    layer = layers[str(node.target)] if node.op == "call_module" else None
    own_names: list[str | None] = []
    if layer is not None:
        kind = type(layer).__name__
        if "forward" in vars(layer) or any(getattr(layer, hooks) for hooks in HOOKS):
            raise UnstackableError(f"a {kind} has hooks or a replaced forward")
        tensors = [getattr(layer, name, None) for name in _TENSORS]
        if any(tensor is not None and id(tensor) not in names for tensor in tensors):
            raise UnstackableError(f"a {kind} uses a tensor that is not the model's")
        own_names = [None if tensor is None else names[id(tensor)] for tensor in tensors]
    return GraphStep(
        node,
        layer,
        None if layer is not None else _FUNCTIONS.get(node.target),
        tuple(numbers[source] for source in sources),
        tuple(_shape(source) for source in sources),
        _shape(node),
        tuple(own_names),
    )


def _shape(node: fx.Node) -> tuple[int, ...]:
    shape: tuple[int, ...] | None = node.meta.get("shape")
    if shape is None:
        raise UnstackableError(f"{node.name!r} is not a tensor")
    return shape


_Operator = Callable[..., Tensor]
"""(a stack's tensors, number of clients, inputs ...) -> the wide output."""
_CHANNEL_BY_CHANNEL: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh),
    *(nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Softplus, nn.Identity),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
    Scaler,  # the clients of a stack have one capacity
)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class WideForward:
    """The module's graph, in which every operator acts on each client's channels separately.

    The graph contains no sizes, so that of the whole module serves every cut.
    """

    def __init__(self, module: nn.Module, example: Inputs) -> None:
        self.module = module
        self.graph = read_graph(module, example)
        self._steps = [(_operator_of(step), step.inputs) for step in self.graph.steps]
        self._inputs = math.prod(self.graph.shape)
        weighted = (step for step in self.graph.steps if step.names and step.names[0] is not None)
        self._pixels = {  # weight -> outputs per row of it
            str(step.names[0]): math.prod(step.shape[2:])
            for step in weighted
            if not isinstance(step.layer, _BATCH_NORMS)
        }

    def largest(self, rows: Mapping[str, int]) -> int:
        """The largest activation; only convolutions and linear layers enlarge activations."""
        return max(self._inputs, *(rows[n] * k for n, k in self._pixels.items()), 0)

    def __call__(self, wide: Wide, clients: int, x: Inputs) -> Tensor:
        """Run the graph; images are channels-last, which is faster on CPUs for few channels."""
        batch = first_column(x).flatten(1, 2)
        if batch.dim() == 4:
            batch = batch.contiguous(memory_format=torch.channels_last)
        values = [batch]
        for run, inputs in self._steps:
            values.append(run(wide, clients, *(values[i] for i in inputs)))
        out = values[self.graph.output]
        return out.reshape(len(out), clients, -1, *out.shape[2:])


def _operator_of(step: GraphStep) -> _Operator:
    if step.layer is not None:
        return _layer(step.layer, step)
    node, shapes = step.node, step.shapes
    plain = all(isinstance(a, fx.Node) for a in node.args[: len(shapes)])
    is_same_dims = len({len(shape) for shape in shapes}) == 1
    fits = {
        RELU: plain and len(shapes) == 1 and len(shapes[0]) > 1,
        POINTWISE: plain and len(shapes) == 1 and len(shapes[0]) > 1,
        ADD: not node.kwargs and is_same_dims,  # scalars, or tensors whose channels line up
        BETWEEN: not node.kwargs and is_same_dims,
        MEAN: plain and step.function == MEAN and bool(step.dims) and min(step.dims) > 1,
        FLATTEN: plain and (*node.args[1:], *node.kwargs.values()) == (1,),
    }
    if step.function is None or not fits[step.function]:
        raise step.refuse("may mix the channels of clients")
    return _as_is(node)


def _layer(layer: nn.Module, step: GraphStep) -> _Operator:
    kind, (weight, bias, *_) = type(layer), step.names
    if kind in _CHANNEL_BY_CHANNEL and not getattr(layer, "return_indices", False):
        return lambda _wide, _clients, x: layer(x)
    if isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1):
        return lambda _wide, _clients, x: x.flatten(1)
    if isinstance(layer, nn.Linear) and len(step.shapes[0]) != 2:
        raise UnstackableError("a linear layer acts on another dimension than the first")
    if kind in _BATCH_NORMS:
        return _batch_norm(layer, step.names)
    if weight is not None:
        if kind in _CONVOLUTIONS:
            return _convolution(layer, weight, bias)
        if kind is nn.Linear:
            return _linear(weight, bias)
        if kind is StaticBatchNorm:
            return _static_norm(layer, weight, str(bias))
    raise UnstackableError(f"there is no wide form of {kind.__name__}")


def _convolution(layer: Any, weight: str, bias: str | None) -> _Operator:
    assert isinstance(layer, _ConvNd)
    if layer.transposed or layer.padding_mode != "zeros":
        raise UnstackableError("a transposed or specially padded convolution has no grouped form")
    convolve = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}[
        layer.weight.dim()
    ]

    point = all(size == 1 for size in layer.kernel_size) and not any(layer.padding)
    # oneDNN's gradient of a strided 1 x 1 filter writes past its workspace if a channels-last image
    # has few channels (uxlfoundation/oneDNN#6035); slicing the image first is equivalent
    thin: tuple[Any, ...] = (..., *(slice(None, None, step) for step in layer.stride))
    stride = (1,) * len(layer.stride) if point else layer.stride

    def run(wide: Wide, _clients: int, x: Tensor) -> Tensor:
        return convolve(
            x[thin] if point else x,
            wide[weight],
            None if bias is None else wide[bias],
            stride,
            layer.padding,
            layer.dilation,
            x.shape[1] // wide[weight].shape[1],
        )

    return run


def _linear(weight: str, bias: str | None) -> _Operator:
    """(rows, clients x inputs) -> (rows, clients x outputs)."""

    def run(wide: Wide, clients: int, x: Tensor) -> Tensor:
        weights = wide[weight].view(clients, -1, wide[weight].shape[1])
        rows = x.reshape(len(x), clients, -1).transpose(0, 1)
        out = TORCH_KERNELS.linear(rows, weights, None).transpose(0, 1).reshape(len(x), -1)
        return out if bias is None else out + wide[bias]

    return run


def _static_norm(layer: Any, weight: str, bias: str) -> _Operator:
    assert isinstance(layer, StaticBatchNorm)

    def run(wide: Wide, _clients: int, x: Tensor) -> Tensor:
        return torch.batch_norm(
            x, wide[weight], wide[bias], None, None, True, 0.0, layer.eps, False
        )

    return run


def _batch_norm(layer: Any, names: tuple[str | None, ...]) -> _Operator:
    """Batch norm in training, which updates the running statistics; ``names`` of its tensors."""
    momentum, eps = layer.momentum, layer.eps
    if momentum is None:
        raise UnstackableError("a cumulative average counts the batches of one client")

    def run(wide: Wide, _clients: int, x: Tensor) -> Tensor:
        scale, shift, mean, variance = (None if n is None else wide[n] for n in names)
        return functional.batch_norm(x, mean, variance, scale, shift, True, momentum, eps)

    return run


def _as_is(node: fx.Node) -> _Operator:
    """The node's function with its constants; tensors are inserted."""
    target, constants = node.target, dict(node.kwargs)
    places = [i for i, a in enumerate(node.args) if isinstance(a, fx.Node)]
    arguments: list[Any] = list(node.args)

    def run(_wide: Wide, _clients: int, *tensors: Tensor) -> Tensor:
        values = list(arguments)
        for place, tensor in zip(places, tensors, strict=True):
            values[place] = tensor
        function = getattr(torch.Tensor, target) if isinstance(target, str) else target
        out: Tensor = function(*values, **constants)
        return out

    return run
