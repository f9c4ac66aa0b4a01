"""The wide forward: the client axis is folded into the channels, along the module's own graph.

Layers with weights have wide forms (`wide_layers.py`); pooling and pointwise operators stay what
they are. One operator that is in none of the tables below refuses the whole module.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from submodel.engines.batched.forward import UnstackableError, Wide
from submodel.engines.batched.wide_layers import WITH_WEIGHTS, Operator, wide_batch_norm
from submodel.model.inputs import Inputs, first_column
from submodel.model.norm import Scaler, StaticBatchNorm

_CHANNEL_BY_CHANNEL: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh),
    *(nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Softplus, nn.Identity),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
    Scaler,  # the clients of a stack have one capacity
)
_POINTWISE: set[object] = {
    *(torch.relu, functional.relu, functional.relu_, torch.sigmoid, torch.tanh),
    *(functional.gelu, functional.silu, functional.leaky_relu, functional.elu),
    *(functional.max_pool2d, functional.avg_pool2d, functional.adaptive_avg_pool2d),
    *("relu", "relu_", "sigmoid", "tanh", "contiguous"),
}
_BETWEEN: set[object] = {
    *(operator.add, operator.sub, operator.mul, operator.iadd, operator.imul),
    *(torch.add, torch.sub, torch.mul, "add", "sub", "mul", "add_", "mul_"),
}
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
HOOKS = (*("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),)
"""Where a layer keeps what is to be called with it."""
_MEANS: set[object] = {torch.mean, "mean"}
_FLATTENS: set[object] = {torch.flatten, "flatten"}


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


class WideForward:
    """The module's graph, every operator of which acts on each client's channels alone.

    The graph holds no sizes, so the one of the whole module serves every cut of it.
    """

    def __init__(self, module: nn.Module, example: Inputs) -> None:
        if not isinstance(example, Tensor):
            raise UnstackableError("it takes something else than one batch of inputs")
        self.module = module
        self.names = {id(p): n for n, p in module.named_parameters()}
        self.names |= {id(b): n for n, b in module.named_buffers()}
        self.layers = dict(module.named_modules(remove_duplicate=False))
        self.example_shape = tuple(example.shape[1:])
        try:
            graph_module = fx.GraphModule(module, _Tracer().trace(module))
            with torch.no_grad():
                place = next((p.device for p in module.parameters()), example.device)
                _Measuring(graph_module).run(example.to(place))  # a forecast's has no values
        except Exception as error:
            raise UnstackableError(f"its graph cannot be traced: {error}") from error
        self.graph = graph_module.graph
        self._nodes: dict[fx.Node, int] = {}
        self._steps: list[tuple[Operator, list[int]]] = []
        self._pixels: dict[str, int] = {}  # weight -> outputs per row of it
        self._inputs = math.prod(example.shape[1:])
        for node in graph_module.graph.nodes:
            self._add(node)

    def largest(self, rows: Mapping[str, int]) -> int:
        """Convolutions and linear layers alone change the size of an activation upwards."""
        return max(self._inputs, *(rows[n] * k for n, k in self._pixels.items()), 0)

    def __call__(self, wide: Wide, clients: int, x: Inputs) -> Tensor:
        """Run the graph; images in channels-last order, which CPU kernels of few channels want."""
        batch = first_column(x).flatten(1, 2)
        if batch.dim() == 4:
            batch = batch.contiguous(memory_format=torch.channels_last)
        values = [batch]
        for run, inputs in self._steps:
            values.append(run(wide, clients, *(values[i] for i in inputs)))
        out = values[self._output]
        return out.reshape(len(out), clients, -1, *out.shape[2:])

    def _add(self, node: fx.Node) -> None:
        if node.op == "output":
            out = node.args[0]
            if not isinstance(out, fx.Node) or len(_shape(out)) < 2:
                raise UnstackableError("it returns something else than one batch of outputs")
            self._output = self._nodes[out]
            return
        shape = _shape(node)
        if node.op != "placeholder":
            inputs = [a for a in node.args if isinstance(a, fx.Node)]
            if any(isinstance(a, fx.Node) for a in node.kwargs.values()) or not inputs:
                raise UnstackableError(f"the inputs of {node.name!r} are of an unknown kind")
            self._steps.append((self._operator(node), [self._nodes[i] for i in inputs]))
        elif self._nodes or len(shape) < 2:
            raise UnstackableError("it takes something else than one batch of inputs")
        self._nodes[node] = len(self._nodes)

    def _operator(self, node: fx.Node) -> Operator:
        shapes = [_shape(a) for a in node.args if isinstance(a, fx.Node)]
        plain = all(isinstance(a, fx.Node) for a in node.args[: len(shapes)])
        target = self.layers[str(node.target)] if node.op == "call_module" else node.target
        if isinstance(target, nn.Module):
            return self._layer(target, shapes[0], _shape(node))
        if plain and target in _POINTWISE and len(shapes) == 1 and len(shapes[0]) > 1:
            return _as_is(node)
        if target in _BETWEEN and not node.kwargs and len({len(s) for s in shapes}) == 1:
            return _as_is(node)  # scalars, or tensors whose channels line up
        if plain and target in _MEANS and _dims(node) and min(_dims(node)) > 1:
            return _as_is(node)
        if plain and target in _FLATTENS and (*node.args[1:], *node.kwargs.values()) == (1,):
            return _as_is(node)
        raise UnstackableError(f"{node.format_node()} may mix the channels of clients")

    def _layer(self, layer: nn.Module, shape: Sequence[int], out: Sequence[int]) -> Operator:
        kind = type(layer)
        if "forward" in vars(layer) or any(getattr(layer, hooks) for hooks in HOOKS):
            raise UnstackableError(f"a {kind.__name__} has hooks, or a forward of its own")
        if kind in _CHANNEL_BY_CHANNEL and not getattr(layer, "return_indices", False):
            return lambda _wide, _clients, x: layer(x)
        if isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1):
            return lambda _wide, _clients, x: x.flatten(1)
        if isinstance(layer, nn.Linear) and len(shape) != 2:
            raise UnstackableError("a linear layer acts on another dimension than the first")
        if kind not in WITH_WEIGHTS and kind not in _BATCH_NORMS:
            raise UnstackableError(f"there is no wide form of {kind.__name__}")
        tensors = [
            getattr(layer, n, None) for n in ("weight", "bias", "running_mean", "running_var")
        ]
        if any(tensor is not None and id(tensor) not in self.names for tensor in tensors):
            raise UnstackableError(f"a {kind.__name__} computes with a tensor that it does not own")
        names = [None if tensor is None else self.names[id(tensor)] for tensor in tensors]
        if kind in WITH_WEIGHTS:
            self._pixels[str(names[0])] = math.prod(out[2:])
            return WITH_WEIGHTS[kind](layer, *names[:2])
        assert isinstance(layer, _BatchNorm)
        return wide_batch_norm(layer, names)


def _shape(node: fx.Node) -> tuple[int, ...]:
    shape: tuple[int, ...] | None = node.meta.get("shape")
    if shape is None:
        raise UnstackableError(f"{node.name!r} is not a tensor")
    return shape


def _dims(node: fx.Node) -> list[int]:
    dims: Any = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else ())
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return [d % len(_shape(source)) for d in ((dims,) if isinstance(dims, int) else dims)]


def _as_is(node: fx.Node) -> Operator:
    """The node's own function; only its tensors are put in."""
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
