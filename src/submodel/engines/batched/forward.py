"""Many equal modules computed as one: the forward pass of a stack of clients.

Two ways, both exact up to the order of floating-point sums. *Wide*: the client axis is folded into
the channels, so that a convolution becomes a grouped one, a linear layer a batched product, and
batch norm, pooling and pointwise layers stay what they are; the module's own graph says where, and
one operator that is not in the tables below refuses the whole module. *Mapped*: `torch.func.vmap`
over the module, for everything else that it can take.

A stack's tensors are *wide*: the first dimension is clients x rows, client by client.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from submodel.model.axes.record import storage
from submodel.model.build import tensors_of
from submodel.model.build.foreign import Reads
from submodel.model.norm import Scaler, StaticBatchNorm

Wide = Mapping[str, Tensor]
Operator = Callable[..., Tensor]
"""(a stack's tensors, number of clients, inputs ...) -> the wide output."""


class UnstackableError(Exception):
    """Why a module cannot be computed in this way, in words."""


class Forward(Protocol):
    """The forward pass of a stack."""

    module: nn.Module
    """What is computed for every client; its tensors are not used."""

    def largest(self, rows: Mapping[str, int]) -> int:
        """The most values that an example has in any activation, by the rows of the tensors."""
        ...

    def __call__(self, wide: Wide, clients: int, x: Tensor) -> Tensor:
        """Inputs of shape (batch, clients, ...) to outputs of shape (batch, clients, ...)."""
        ...


def _conv(layer: _ConvNd, weight: str, bias: str | None) -> Operator:
    if layer.transposed or layer.padding_mode != "zeros":
        raise UnstackableError("a transposed or specially padded convolution has no grouped form")
    convolve = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}[
        layer.weight.dim()
    ]

    point = all(size == 1 for size in layer.kernel_size) and not any(layer.padding)
    # oneDNN's gradient of a strided 1 x 1 filter writes past its workspace where a channels-last
    # image has few channels (uxlfoundation/oneDNN#6035); thinning the image first is the same
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


class _WideLinear(torch.autograd.Function):
    """(rows, clients x inputs), (clients x outputs, inputs) -> (rows, clients x outputs).

    Batched products; the gradient of the weights comes out as they lie in memory, for which
    autograd's own would need a copy as large as the weights.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, clients: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.clients = clients
        own = weight.view(clients, -1, weight.shape[1])
        return _joined(torch.bmm(_apart(x, clients), own.transpose(1, 2)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        given = _apart(gradients[0], ctx.clients)
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = _joined(torch.bmm(given, weight.view(ctx.clients, -1, weight.shape[1])))
        if ctx.needs_input_grad[1]:
            of_weight = torch.bmm(given.transpose(1, 2), _apart(x, ctx.clients)).view(weight.shape)
        return of_x, of_weight, None


def _apart(x: Tensor, clients: int) -> Tensor:
    return x.reshape(len(x), clients, -1).transpose(0, 1)


def _joined(x: Tensor) -> Tensor:
    return x.transpose(0, 1).reshape(x.shape[1], -1)


def _in_one_type(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """What autocast would do with the inputs of a product."""
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    return x.to(dtype), weight.to(dtype)


def _linear(_layer: nn.Linear, weight: str, bias: str | None) -> Operator:
    def run(wide: Wide, clients: int, x: Tensor) -> Tensor:
        x, own = _in_one_type(x, wide[weight])
        out: Tensor = _WideLinear.apply(x, own, clients)  # type: ignore[no-untyped-call]
        return out if bias is None else out + wide[bias]

    return run


def _static_norm(layer: StaticBatchNorm, weight: str, bias: str | None) -> Operator:
    assert bias is not None

    def run(wide: Wide, _clients: int, x: Tensor) -> Tensor:
        return torch.batch_norm(
            x, wide[weight], wide[bias], None, None, True, 0.0, layer.eps, False
        )

    return run


_WITH_WEIGHTS: dict[type[nn.Module], Callable[..., Operator]] = {
    nn.Conv1d: _conv,
    nn.Conv2d: _conv,
    nn.Conv3d: _conv,
    nn.Linear: _linear,
    StaticBatchNorm: _static_norm,
}
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
_HOOKS = (*("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),)
_MEANS: set[object] = {torch.mean, "mean"}
_FLATTENS: set[object] = {torch.flatten, "flatten"}


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = isinstance(m, StaticBatchNorm | Scaler)
        return own or super().is_leaf_module(m, module_qualified_name)


class WideForward:
    """The module's graph, every operator of which acts on each client's channels alone.

    The graph holds no sizes, so the one of the whole module serves every cut of it.
    """

    def __init__(self, module: nn.Module, example: Tensor) -> None:
        self.module = module
        self._names = {id(p): n for n, p in module.named_parameters()}
        self._names |= {id(b): n for n, b in module.named_buffers()}
        self._layers = dict(module.named_modules(remove_duplicate=False))
        try:
            traced = fx.GraphModule(module, _Tracer().trace(module))
            with torch.no_grad():
                ShapeProp(traced).propagate(example)
        except Exception as error:
            raise UnstackableError(f"its graph cannot be traced: {error}") from error
        self._nodes: dict[fx.Node, int] = {}
        self._steps: list[tuple[Operator, list[int]]] = []
        self._pixels: dict[str, int] = {}  # weight -> outputs per row of it
        self._inputs = math.prod(example.shape[1:])
        for node in traced.graph.nodes:
            self._add(node)

    def largest(self, rows: Mapping[str, int]) -> int:
        """Convolutions and linear layers alone change the size of an activation upwards."""
        return max(self._inputs, *(rows[n] * k for n, k in self._pixels.items()), 0)

    def __call__(self, wide: Wide, clients: int, x: Tensor) -> Tensor:
        """Run the graph; images in channels-last order, which CPU kernels of few channels want."""
        x = x.flatten(1, 2)
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        values = [x]
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
        target = self._layers[str(node.target)] if node.op == "call_module" else node.target
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
        if "forward" in vars(layer) or any(getattr(layer, hooks) for hooks in _HOOKS):
            raise UnstackableError(f"a {kind.__name__} has hooks, or a forward of its own")
        if kind in _CHANNEL_BY_CHANNEL and not getattr(layer, "return_indices", False):
            return lambda _wide, _clients, x: layer(x)
        if isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1):
            return lambda _wide, _clients, x: x.flatten(1)
        if isinstance(layer, nn.Linear) and len(shape) != 2:
            raise UnstackableError("a linear layer acts on another dimension than the first")
        names = [
            None if (tensor := getattr(layer, name, None)) is None else self._names[id(tensor)]
            for name in ("weight", "bias", "running_mean", "running_var")
        ]
        if kind in _WITH_WEIGHTS:
            self._pixels[str(names[0])] = math.prod(out[2:])
            return _WITH_WEIGHTS[kind](layer, *names[:2])
        if kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            return self._batch_norm(layer, names)
        raise UnstackableError(f"there is no wide form of {kind.__name__}")

    def _batch_norm(self, layer: nn.Module, names: Sequence[str | None]) -> Operator:
        assert isinstance(layer, _BatchNorm)
        momentum, eps = layer.momentum, layer.eps
        if momentum is None:
            raise UnstackableError("a cumulative average counts the batches of one client")

        def run(wide: Wide, _clients: int, x: Tensor) -> Tensor:
            scale, shift, mean, variance = (None if n is None else wide[n] for n in names)
            return functional.batch_norm(x, mean, variance, scale, shift, True, momentum, eps)

        return run


def _shape(node: fx.Node) -> tuple[int, ...]:
    meta = node.meta.get("tensor_meta")
    if meta is None or not hasattr(meta, "shape"):
        raise UnstackableError(f"{node.name!r} is not a tensor")
    return tuple(meta.shape)


def _dims(node: fx.Node) -> list[int]:
    given: Any = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else ())
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return [d % len(_shape(source)) for d in ((given,) if isinstance(given, int) else given)]


def _as_is(node: fx.Node) -> Operator:
    """The node's own function; only its tensors are put in."""
    target, constants = node.target, dict(node.kwargs)
    places = [i for i, a in enumerate(node.args) if isinstance(a, fx.Node)]
    arguments: list[Any] = list(node.args)

    def run(_wide: Wide, _clients: int, *tensors: Tensor) -> Tensor:
        filled = list(arguments)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        function = getattr(torch.Tensor, target) if isinstance(target, str) else target
        out: Tensor = function(*filled, **constants)
        return out

    return run


class MappedForward:
    """The module under `torch.func.vmap`; tried once, so that a refusal comes at once."""

    def __init__(self, module: nn.Module, whole: nn.Module, example: Tensor) -> None:
        distinct, all_ = (
            len(list(module.named_modules(remove_duplicate=once))) for once in (True, False)
        )
        if distinct != all_:
            raise UnstackableError("a layer that stands in two places cannot be swapped out")
        exchanged = tensors_of(module)
        for name, buffer in module.named_buffers():
            if name not in exchanged and buffer.shape != whole.get_buffer(name).shape:
                raise UnstackableError(f"every client has its own part of the buffer {name!r}")
        if any(isinstance(x, _BatchNorm) and x.momentum is None for x in module.modules()):
            raise UnstackableError("a cumulative average counts the batches of one client")
        self.module = module
        self._shapes = {n: t.shape for n, t in tensors_of(module).items()}
        self._largest = 0
        hooks = [layer.register_forward_hook(self._see) for layer in module.modules()]
        try:
            with torch.no_grad():
                module(example)
                for hook in hooks:
                    hook.remove()
                two = {n: torch.stack([t, t]).flatten(0, min(t.dim(), 1)) for n, t in
                       tensors_of(module).items()}  # fmt: skip
                fixed: list[str] = []
                memories = {storage(t): n for n, t in tensors_of(module).items() if t.numel()}
                with Reads(memories, fixed.append):
                    out = self(two, 2, torch.stack([example, example], 1))
                if fixed:
                    raise UnstackableError(
                        f"its code holds {fixed[0]} itself, which cannot be swapped out"
                    )
                if not isinstance(out, Tensor) or out.dim() < 2:
                    raise UnstackableError("it returns something else than one batch of outputs")
        except UnstackableError:
            raise
        except Exception as error:
            raise UnstackableError(f"vmap refuses it: {str(error).splitlines()[0]}") from error

    def _see(self, _layer: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            self._largest = max(self._largest, math.prod(output.shape[1:]))

    def largest(self, rows: Mapping[str, int]) -> int:  # noqa: ARG002 - one shape only
        """The largest output of a layer."""
        return self._largest

    def __call__(self, wide: Wide, clients: int, x: Tensor) -> Tensor:
        """One call over all clients."""
        stacked = {n: wide[n].view(clients, *shape) for n, shape in self._shapes.items()}

        def one(tensors: dict[str, Tensor], inputs: Tensor) -> Tensor:
            out: Tensor = torch.func.functional_call(self.module, tensors, (inputs,))
            return out

        mapped = torch.func.vmap(one, in_dims=(0, 1), out_dims=1, randomness="error")
        outputs: Tensor = mapped(stacked, x)
        return outputs
