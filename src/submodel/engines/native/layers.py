"""The layers of transformers by the compiled kernels, with their gradients.

Where numbers are not float32 or autocast is on, torch computes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from submodel.engines.batched.layer_kernels import TORCH_KERNELS, LayerKernels
from submodel.engines.native import operators
from submodel.engines.native.library import load_library
from submodel.engines.native.operators import GELU, GELU_TANH, SILU

_LONGEST, _LARGEST_HEAD = 256, 128
"""Of attention: weights of all places are kept, and heads stay in the nearest cache."""


def native_kernels() -> LayerKernels:
    """What computes layers by the compiled kernels; raises `BuildError` where there are none."""
    load_library()
    return LayerKernels(
        _linear,
        _layer_norm,
        _rms_norm,
        _attend,
        {
            "gelu_tanh": partial(_activate, GELU_TANH, torch_gelu_tanh),
            "gelu": partial(_activate, GELU, torch.nn.functional.gelu),
            "silu": partial(_activate, SILU, torch.nn.functional.silu),
        },
        _cross_entropy,
        fuses_norms=True,
    )


torch_gelu_tanh = TORCH_KERNELS.activations["gelu_tanh"]


def _fits(*tensors: Tensor | None) -> bool:
    """Whether the kernels take these."""
    return not torch.is_autocast_enabled("cpu") and all(
        t is None or (t.dtype == torch.float32 and t.device.type == "cpu" and t.numel() > 0)
        for t in tensors
    )


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, inputs_first: bool) -> Tensor:
    if not _fits(x, weight, bias):
        return TORCH_KERNELS.linear(x, weight, bias, inputs_first)
    out: Tensor = _Linear.apply(x, weight, bias, inputs_first)  # type: ignore[no-untyped-call]
    return out


class _Linear(torch.autograd.Function):
    """(clients, ..., inputs) -> (clients, ..., outputs)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, inputs_first: bool
    ) -> Tensor:
        rows = x.reshape(len(x), -1, x.shape[-1])
        ctx.save_for_backward(rows, weight)
        ctx.inputs_first, ctx.shape = inputs_first, x.shape
        out: Tensor = operators.linear(rows, weight, bias, inputs_first)
        return out.view(*x.shape[:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        upstream = gradients[0].reshape(*x.shape[:2], -1)
        needs = ctx.needs_input_grad[:3]
        parts = operators.linear_backward(upstream, x, weight, ctx.inputs_first, *needs)
        of_x, of_weight, of_bias = _needed_only(parts, needs)
        return None if of_x is None else of_x.view(ctx.shape), of_weight, of_bias, None


def _needed_only(parts: tuple[Tensor, ...], needs: tuple[bool, ...]) -> list[Tensor | None]:
    return [part if is_wanted else None for part, is_wanted in zip(parts, needs, strict=True)]


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    if not _fits(x, weight, bias):
        return TORCH_KERNELS.layer_norm(x, weight, bias, eps)
    out: Tensor = _Norm.apply(x, weight, bias, True, eps)  # type: ignore[no-untyped-call]
    return out


def _rms_norm(x: Tensor, weight: Tensor, eps: float | None) -> Tensor:
    if not _fits(x, weight):
        return TORCH_KERNELS.rms_norm(x, weight, eps)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    out: Tensor = _Norm.apply(x, weight, None, False, eps)  # type: ignore[no-untyped-call]
    return out


class _Norm(torch.autograd.Function):
    """(clients, ..., values) -> the same shape."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, has_mean: bool, eps: float
    ) -> Tensor:
        values = math.prod(weight.shape[1:])
        rows, scale = x.reshape(len(x), -1, values), weight.reshape(len(x), values)
        shift = None if bias is None else bias.reshape(len(x), values)
        out, statistics = operators.norm_rows(rows, scale, shift, has_mean, eps)
        ctx.save_for_backward(rows, scale, statistics)
        ctx.has_mean, ctx.shapes = has_mean, (x.shape, weight.shape, weight.shape)
        result: Tensor = out.view(x.shape)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, scale, statistics = ctx.saved_tensors
        upstream, needs = gradients[0].reshape(rows.shape), ctx.needs_input_grad[:3]
        parts = operators.norm_rows_backward(
            upstream, rows, scale, statistics, ctx.has_mean, *needs
        )
        parts_by_shape = zip(_needed_only(parts, needs), ctx.shapes, strict=True)
        return *(None if p is None else p.view(shape) for p, shape in parts_by_shape), None, None


def _activate(kind: int, otherwise: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if not _fits(x):
        return otherwise(x)
    out: Tensor = _Activation.apply(x, kind)  # type: ignore[no-untyped-call]
    return out


class _Activation(torch.autograd.Function):
    """Any shape -> the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kind: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.kind = kind
        out: Tensor = operators.activation(x, kind)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return operators.activation_backward(gradients[0], x, ctx.kind), None


def _attend(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float | None
) -> Tensor | None:
    size = max(query.shape[-1], value.shape[-1])
    length = max(query.shape[2], key.shape[2])
    if not _fits(query, key, value) or length > _LONGEST or size > _LARGEST_HEAD:
        return TORCH_KERNELS.attend(query, key, value, is_causal, scale)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    out: Tensor = _Attention.apply(query, key, value, is_causal, scale)  # type: ignore[no-untyped-call]
    return out


class _Attention(torch.autograd.Function):
    """(batch, heads, places, values), keys and values perhaps of fewer heads."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float
    ) -> Tensor:
        out, weights = operators.attend_heads(query, key, value, is_causal, scale)
        ctx.save_for_backward(query, key, value, weights)
        ctx.is_causal, ctx.scale = is_causal, scale
        result: Tensor = out
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        parts = operators.attend_heads_backward(
            gradients[0], *ctx.saved_tensors, ctx.is_causal, ctx.scale
        )
        return *parts, None, None


def _cross_entropy(rows: Tensor, labels: Tensor, no_label: int, smoothing: float) -> Tensor:
    if smoothing or not _fits(rows):
        return TORCH_KERNELS.cross_entropy(rows, labels, no_label, smoothing)
    out: Tensor = _CrossEntropy.apply(rows, labels, no_label)  # type: ignore[no-untyped-call]
    return out


class _CrossEntropy(torch.autograd.Function):
    """(rows, classes), (rows) -> (rows)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, labels: Tensor, no_label: int) -> Tensor:
        losses, logs = operators.cross_entropy(x, labels, no_label)
        ctx.save_for_backward(x, labels, logs)
        ctx.no_label = no_label
        result: Tensor = losses
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        x, labels, logs = ctx.saved_tensors
        return (
            operators.cross_entropy_backward(gradients[0], x, labels, ctx.no_label, logs),
            None,
            None,
        )
