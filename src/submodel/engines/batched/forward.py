"""Many equal modules computed as one: what the forward pass of a stack of clients is.

There are two ways, both exact up to the order of floating-point sums. *Wide* (`wide.py`): the
client axis is folded into the channels, along the module's own graph, which is read here. *Mapped*
(`vmap.py`): `torch.func.vmap` over the module, for everything else that it can take, with rules of
ours for transformers (`folding.py`).

A stack's tensors are *wide*: the first dimension is clients x rows, client by client.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from submodel.model.inputs import Inputs
from submodel.model.norm import Scaler, StaticBatchNorm

Wide = Mapping[str, Tensor]
"""A stack's tensors, by name."""


class UnstackableError(Exception):
    """Why a module cannot be computed in this way, in words."""


class Forward(Protocol):
    """The forward pass of a stack."""

    module: nn.Module
    """What is computed for every client; its tensors are not used."""

    def largest(self, rows: Mapping[str, int]) -> int:
        """The most values that an example has in any activation, by the rows of the tensors."""
        ...

    def __call__(self, wide: Wide, clients: int, x: Inputs) -> Tensor:
        """Inputs of shape (batch, clients, ...) to outputs of shape (batch, clients, ...)."""
        ...


HOOKS = (*("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),)
"""Where a layer keeps what is to be called with it."""
RELU, POINTWISE, ADD, BETWEEN, MEAN, FLATTEN = range(6)
"""What functions in a graph do: to one tensor value by value, between tensors, along dimensions."""
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
    function: int | None  # RELU, ...; None: none of these, or a layer
    inputs: tuple[int, ...]  # numbers of values; 0 is the input of the graph, n that of step n - 1
    shapes: tuple[tuple[int, ...], ...]  # of the inputs
    shape: tuple[int, ...]
    names: tuple[str | None, ...]  # of a layer's weight, bias and running statistics

    @property
    def dims(self) -> list[int]:
        """The dimensions that a mean is taken over."""
        args = self.node.args
        dims: Any = self.node.kwargs.get("dim", args[1] if len(args) > 1 else ())
        dims = (dims,) if isinstance(dims, int) else dims or ()
        return [d % len(self.shapes[0]) for d in dims]

    def refuse(self, reason: str) -> UnstackableError:
        """An error that names this step."""
        return UnstackableError(f"{self.node.format_node()} {reason}")


@dataclass(frozen=True)
class Graph:
    """What a module computes, step by step, for one batch of inputs; it holds no sizes of cuts."""

    steps: Sequence[GraphStep]
    output: int  # the number of the value that is returned
    shape: tuple[int, ...]  # of an example


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_ours = isinstance(m, StaticBatchNorm | Scaler)
        return is_ours or super().is_leaf_module(m, module_qualified_name)


class _Measuring(fx.Interpreter):
    """Notes the shape of every tensor; torch's own `ShapeProp` loads the compiler to do so."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.extra_traceback = False  # an error's own words are enough

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            n.meta["shape"] = tuple(result.shape)
        return result


def read_graph(module: nn.Module, example: Inputs) -> Graph:
    """The graph of a module; raises `UnstackableError` if it has none that can be read.

    Args:
        module: whose weights and statistics steps have by name.
        example: a batch of inputs.
    """
    if not isinstance(example, Tensor):
        raise UnstackableError("it takes something else than one batch of inputs")
    try:
        traced = fx.GraphModule(module, _Tracer().trace(module))
        with torch.no_grad():
            place = next((p.device for p in module.parameters()), example.device)
            _Measuring(traced).run(example.to(place))  # a forecast's has no values
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
                raise UnstackableError("it returns something else than one batch of outputs")
            return Graph(steps, numbers[out], tuple(example.shape[1:]))
        if node.op != "placeholder":
            steps.append(_step(node, numbers, layers, names))
        elif numbers or len(_shape(node)) < 2:
            raise UnstackableError("it takes something else than one batch of inputs")
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
            raise UnstackableError(f"a {kind} has hooks, or a forward of its own")
        tensors = [getattr(layer, name, None) for name in _TENSORS]
        if any(tensor is not None and id(tensor) not in names for tensor in tensors):
            raise UnstackableError(f"a {kind} computes with a tensor that it does not own")
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
