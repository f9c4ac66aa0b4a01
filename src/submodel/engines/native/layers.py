"""The layers of transformers by the compiled kernels: what stacks call instead of torch's.

Where numbers are not float32 or autocast is on, torch computes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from submodel.engines.batched.layers import TORCH_KERNELS, Gradients, Kernel, LayerKernels
from submodel.engines.native import operators
from submodel.engines.native.library import load_library
from submodel.engines.native.operators import GELU, GELU_TANH, SILU

_LONGEST, _LARGEST_HEAD = 256, 128
"""Of attention: weights of all places are kept, and heads stay in the nearest cache."""


def native_kernels() -> LayerKernels:
    """What computes layers by the compiled kernels; raises `BuildError` where there are none."""
    load_library()
    torchs = TORCH_KERNELS.kernels
    own = {
        "linear": Kernel(_linear, _linear_backward, _fits),
        "layer_norm": _norm(has_mean=True),
        "rms_norm": _norm(has_mean=False),
        "gelu_tanh": _activation(GELU_TANH),
        "gelu": _activation(GELU),
        "silu": _activation(SILU),
        "cross_entropy": Kernel(_cross_entropy, _cross_entropy_backward, _fits),
        "attention": Kernel(_attention, _attention_backward, _fits_attention),
    }
    kernels = {name: [kernel, *torchs.get(name, ())] for name, kernel in own.items()}
    return LayerKernels({**torchs, **kernels}, fuses_norms=True)


def _fits(*tensors: Tensor | None) -> bool:
    """Whether the kernels take these."""
    return not torch.is_autocast_enabled("cpu") and all(
        t is None or (t.dtype == torch.float32 and t.device.type == "cpu" and t.numel() > 0)
        for t in tensors
    )


def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, inputs_first: bool
) -> tuple[Tensor, Gradients]:
    return operators.linear(x, weight, bias, inputs_first), (x, weight)


def _linear_backward(
    upstream: Tensor, needs: Sequence[bool], x: Tensor, weight: Tensor, inputs_first: bool
) -> Gradients:
    parts = operators.linear_backward(upstream, x, weight, inputs_first, *needs)
    return _needed_only(parts, needs)


def _needed_only(parts: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor | None]:
    return [part if is_needed else None for part, is_needed in zip(parts, needs, strict=False)]


def _norm(*, has_mean: bool) -> Kernel:
    """Layer norm, or RMS norm without a mean."""

    def forward(x: Tensor, scale: Tensor, *rest: Tensor | float | None) -> tuple[Tensor, Gradients]:
        *shift, eps = rest
        out, statistics = operators.norm_rows(x, scale, *(shift or [None]), has_mean, eps)
        return out, (x, scale, statistics)

    def backward(
        upstream: Tensor,
        needs: Sequence[bool],
        x: Tensor,
        scale: Tensor,
        statistics: Tensor,
        _eps: float,
    ) -> Gradients:
        wanted = (*needs, False)[:3]
        parts = operators.norm_rows_backward(upstream, x, scale, statistics, has_mean, *wanted)
        return _needed_only(parts, needs)

    return Kernel(forward, backward, _fits)


def _activation(kind: int) -> Kernel:
    return Kernel(
        lambda x: (operators.activation(x, kind), (x,)),
        lambda upstream, _needs, x: (operators.activation_backward(upstream, x, kind),),
        _fits,
    )


def _fits_attention(query: Tensor, key: Tensor, value: Tensor) -> bool:
    size, length = max(query.shape[-1], value.shape[-1]), max(query.shape[2], key.shape[2])
    return _fits(query, key, value) and length <= _LONGEST and size <= _LARGEST_HEAD


def _attention(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Gradients]:
    out, weights = operators.attend_heads(query, key, value, is_causal, scale)
    return out, (query, key, value, weights)


def _attention_backward(upstream: Tensor, _needs: Sequence[bool], *rest: object) -> Gradients:
    parts: tuple[Tensor, ...] = operators.attend_heads_backward(upstream, *rest)
    return parts


def _cross_entropy(x: Tensor, labels: Tensor, no_label: int) -> tuple[Tensor, Gradients]:
    losses, logs = operators.cross_entropy(x, labels, no_label)
    return losses, (x, logs)


def _cross_entropy_backward(
    upstream: Tensor, _needs: Sequence[bool], x: Tensor, logs: Tensor, labels: Tensor, no_label: int
) -> Gradients:
    return (operators.cross_entropy_backward(upstream, x, labels, no_label, logs),)
