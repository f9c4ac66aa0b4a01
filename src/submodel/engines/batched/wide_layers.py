"""The layers with weights of a wide forward: one call computes them for all clients of a stack.

A convolution becomes a grouped one, a linear layer a batched product; batch norms stay what they
are, as they go channel by channel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from submodel.engines.batched.forward import UnstackableError, Wide
from submodel.model.norm import StaticBatchNorm

Operator = Callable[..., Tensor]
"""(a stack's tensors, number of clients, inputs ...) -> the wide output."""


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
        weights = weight.view(clients, -1, weight.shape[1])
        return _join_clients(torch.bmm(_split_clients(x, clients), weights.transpose(1, 2)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        upstream = _split_clients(gradients[0], ctx.clients)
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = _join_clients(torch.bmm(upstream, weight.view(ctx.clients, -1, weight.shape[1])))
        if ctx.needs_input_grad[1]:
            of_weight = torch.bmm(upstream.transpose(1, 2), _split_clients(x, ctx.clients)).view(
                weight.shape
            )
        return of_x, of_weight, None


def _split_clients(x: Tensor, clients: int) -> Tensor:
    return x.reshape(len(x), clients, -1).transpose(0, 1)


def _join_clients(x: Tensor) -> Tensor:
    return x.transpose(0, 1).reshape(x.shape[1], -1)


def _in_one_type(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """What autocast would do with the inputs of a product."""
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    return x.to(dtype), weight.to(dtype)


def _linear(_layer: nn.Linear, weight: str, bias: str | None) -> Operator:
    def run(wide: Wide, clients: int, x: Tensor) -> Tensor:
        x, weights = _in_one_type(x, wide[weight])
        out: Tensor = _WideLinear.apply(x, weights, clients)  # type: ignore[no-untyped-call]
        return out if bias is None else out + wide[bias]

    return run


def _static_norm(layer: StaticBatchNorm, weight: str, bias: str | None) -> Operator:
    assert bias is not None

    def run(wide: Wide, _clients: int, x: Tensor) -> Tensor:
        return torch.batch_norm(
            x, wide[weight], wide[bias], None, None, True, 0.0, layer.eps, False
        )

    return run


def wide_batch_norm(layer: _BatchNorm, names: Sequence[str | None]) -> Operator:
    """Batch norm by the batch, which updates the running statistics; ``names`` are its tensors'."""
    momentum, eps = layer.momentum, layer.eps
    if momentum is None:
        raise UnstackableError("a cumulative average counts the batches of one client")

    def run(wide: Wide, _clients: int, x: Tensor) -> Tensor:
        scale, shift, mean, variance = (None if n is None else wide[n] for n in names)
        return functional.batch_norm(x, mean, variance, scale, shift, True, momentum, eps)

    return run


WITH_WEIGHTS: dict[type[nn.Module], Callable[..., Operator]] = {
    nn.Conv1d: _conv,
    nn.Conv2d: _conv,
    nn.Conv3d: _conv,
    nn.Linear: _linear,
    StaticBatchNorm: _static_norm,
}
"""A layer with its weight and bias by name -> how a stack computes it."""
