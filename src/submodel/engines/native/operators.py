"""The layers of transformers by the compiled kernels, which stacks call instead of torch's.

The kernels are operators of torch, so that `engines/batched/recording.py` records them like others.
All take tensors with the clients first, in float32 on the CPU, and return contiguous tensors. For
other types, or with autocast, torch computes the layers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any

import torch
from torch import Tensor

from submodel.engines.batched.layers import TORCH_KERNELS, Gradients, Kernel, LayerKernels
from submodel.engines.batched.recording import DIRECT_CALLS
from submodel.engines.native.library import load_library

GELU_TANH, GELU, SILU = range(3)
"""The kinds of activations, as in `code/functions.h`."""
_I64, _AT, _DOUBLE = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double


class _Heads(ctypes.Structure):
    """``heads`` of `code/attention.h`."""

    _fields_ = (("data", _AT), ("batch", _I64), ("head", _I64), ("place", _I64))


class _Attention(ctypes.Structure):
    """``attention`` of `code/attention.h`."""

    _fields_ = (
        *((name, _I64) for name in (
            "batch", "heads", "key_heads", "places", "keys", "size", "value_size", "causal",
        )),
        ("scale", _DOUBLE),
    )  # fmt: skip


_ARGUMENTS = {
    "linear_forward": [_AT] * 4 + [_I64] * 5,
    "linear_backward": [_AT] * 6 + [_I64] * 5,
    "activation_forward": [_I64, _AT, _AT, _I64],
    "activation_backward": [_I64, _AT, _AT, _AT, _I64],
    "norm_rows_forward": [_AT, _AT, _AT, _I64, _AT, _AT, _I64, _I64, _I64, _DOUBLE],
    "norm_rows_backward": [_AT] * 4 + [_I64] + [_AT] * 3 + [_I64] * 3,
    "attention_forward": [_AT] * 6,
    "attention_backward": [_AT] * 10,
    "cross_entropy_forward": [_AT, _AT, _I64, _AT, _AT, _I64, _I64],
    "cross_entropy_backward": [_AT, _AT, _AT, _I64, _AT, _AT, _I64, _I64],
}
_ANSWERS = ("cross_entropy_forward",)


@lru_cache(maxsize=1)
def _kernels() -> ctypes.CDLL:
    library = load_library()
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, _I64 if name in _ANSWERS else None
    return library


_operators: Any = torch.library.Library("submodel", "DEF")  # type: ignore[no-untyped-call]


def _operator(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as an operator of torch, and return the operator."""
    name = signature.partition("(")[0]

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any) -> Any:
            with torch._C.DisableTorchFunction():  # allocations must not be recorded
                return function(*arguments)

        _operators.define(signature)
        _operators.impl(name, call, "CPU")
        operator: Any = getattr(torch.ops.submodel, name).default
        DIRECT_CALLS[operator] = function
        result: Callable[..., Any] = operator
        return result

    return register


def _gradient_buffer(like: Tensor, is_wanted: bool) -> tuple[Tensor, int | None]:
    """Memory for a gradient and its address; an empty tensor and None if it is not needed."""
    if not is_wanted:
        return like.new_empty(0), None
    buffer = torch.empty(like.shape)
    return buffer, buffer.data_ptr()


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


@_operator("linear(Tensor x, Tensor weight, Tensor? bias, bool inputs_first) -> Tensor")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None, inputs_first: bool) -> Tensor:
    """Linear layer (clients, rows, inputs) -> (clients, rows, outputs), one weight per client."""
    x, weight = x.contiguous(), weight.contiguous()
    bias = None if bias is None else bias.contiguous()
    (clients, rows, inputs), outputs = x.shape, weight.shape[2 if inputs_first else 1]
    out = torch.empty(clients, rows, outputs)
    _kernels().linear_forward(
        x.data_ptr(), weight.data_ptr(), _at(bias), out.data_ptr(),
        clients, rows, inputs, outputs, inputs_first,
    )  # fmt: skip
    return out


@_operator(
    "linear_backward(Tensor upstream, Tensor x, Tensor weight, bool inputs_first, bool of_x,"
    " bool of_weight, bool of_bias) -> (Tensor, Tensor, Tensor)"
)
def linear_backward(
    upstream: Tensor,
    x: Tensor,
    weight: Tensor,
    inputs_first: bool,
    of_x: bool,
    of_weight: bool,
    of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The needed gradients of `linear`."""
    upstream, x, weight = upstream.contiguous(), x.contiguous(), weight.contiguous()
    (clients, rows, inputs), outputs = x.shape, upstream.shape[2]
    (dx, x_at), (dweight, weight_at) = (
        _gradient_buffer(x, of_x),
        _gradient_buffer(weight, of_weight),
    )
    dbias, bias_at = _gradient_buffer(upstream[:, 0], of_bias)
    _kernels().linear_backward(
        upstream.data_ptr(), x.data_ptr(), weight.data_ptr(), x_at, weight_at, bias_at,
        clients, rows, inputs, outputs, inputs_first,
    )  # fmt: skip
    return dx, dweight, dbias


@_operator("activation(Tensor x, int kind) -> Tensor")
def activation(x: Tensor, kind: int) -> Tensor:
    """GELU or SiLU."""
    x = x.contiguous()
    out = torch.empty(x.shape)
    _kernels().activation_forward(kind, x.data_ptr(), out.data_ptr(), x.numel())
    return out


@_operator("activation_backward(Tensor upstream, Tensor x, int kind) -> Tensor")
def activation_backward(upstream: Tensor, x: Tensor, kind: int) -> Tensor:
    """The gradient of `activation`."""
    upstream, x = upstream.contiguous(), x.contiguous()
    out = torch.empty(x.shape)
    at = x.data_ptr(), upstream.data_ptr(), out.data_ptr()
    _kernels().activation_backward(kind, *at, x.numel())
    return out


@_operator(
    "norm_rows(Tensor x, Tensor scale, Tensor? shift, bool has_mean, float eps) -> (Tensor, Tensor)"
)
def norm_rows(
    x: Tensor, scale: Tensor, shift: Tensor | None, has_mean: bool, eps: float
) -> tuple[Tensor, Tensor]:
    """Layer norm, or RMS norm without a mean, of (clients, rows, width); and row statistics."""
    x, scale = x.contiguous(), scale.contiguous()
    shift = None if shift is None else shift.contiguous()
    clients, rows, width = x.shape
    out, statistics = torch.empty(x.shape), torch.empty(clients, rows, 2)
    _kernels().norm_rows_forward(
        x.data_ptr(), scale.data_ptr(), _at(shift), has_mean, out.data_ptr(), statistics.data_ptr(),
        clients, rows, width, eps,
    )  # fmt: skip
    return out, statistics


@_operator(
    "norm_rows_backward(Tensor upstream, Tensor x, Tensor scale, Tensor statistics, bool has_mean,"
    " bool of_x, bool of_scale, bool of_shift) -> (Tensor, Tensor, Tensor)"
)
def norm_rows_backward(
    upstream: Tensor,
    x: Tensor,
    scale: Tensor,
    statistics: Tensor,
    has_mean: bool,
    of_x: bool,
    of_scale: bool,
    of_shift: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The needed gradients of `norm_rows`."""
    upstream, x, scale = upstream.contiguous(), x.contiguous(), scale.contiguous()
    clients, rows, width = x.shape
    (dx, x_at), (dscale, scale_at) = _gradient_buffer(x, of_x), _gradient_buffer(scale, of_scale)
    dshift, shift_at = _gradient_buffer(scale, of_shift)
    _kernels().norm_rows_backward(
        upstream.data_ptr(), x.data_ptr(), scale.data_ptr(), statistics.data_ptr(), has_mean,
        x_at, scale_at, shift_at, clients, rows, width,
    )  # fmt: skip
    return dx, dscale, dshift


def _heads(tensor: Tensor) -> _Heads:
    return _Heads(tensor.data_ptr(), *tensor.stride()[:3])


def _dense_values(tensor: Tensor) -> Tensor:
    """Make the values of a place contiguous."""
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()


def _empty_heads(shape: torch.Size) -> Tensor:
    """An empty (batch, heads, places, values) with memory order (batch, places, heads, values)."""
    batch, heads, places, size = shape
    return torch.empty(batch, places, heads, size).transpose(1, 2)


def _describe(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> _Attention:
    (batch, heads, places, size), (_, key_heads, keys, _) = query.shape, key.shape
    return _Attention(batch, heads, key_heads, places, keys, size, value.shape[3], causal, scale)


@_operator(
    "attend_heads(Tensor query, Tensor key, Tensor value, bool causal, float scale)"
    " -> (Tensor, Tensor)"
)
def attend_heads(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention of (batch, heads, places, values), perhaps with fewer key heads; and weights."""
    query, key, value = map(_dense_values, (query, key, value))
    out = _empty_heads(torch.Size((*query.shape[:3], value.shape[3])))
    batch, heads, places, _ = query.shape
    weights = torch.empty(batch, heads, key.shape[2], places)
    parts = [ctypes.byref(_heads(t)) for t in (query, key, value, out)]
    form = _describe(query, key, value, causal, scale)
    _kernels().attention_forward(ctypes.byref(form), *parts, weights.data_ptr())
    return out, weights


@_operator(
    "attend_heads_backward(Tensor upstream, Tensor query, Tensor key, Tensor value, Tensor weights,"
    " bool causal, float scale) -> (Tensor, Tensor, Tensor)"
)
def attend_heads_backward(
    upstream: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `attend_heads`."""
    inputs = [_dense_values(t) for t in (upstream, query, key, value)]
    results = _empty_heads(query.shape), _empty_heads(key.shape), _empty_heads(value.shape)
    scratch = torch.empty(key.shape[2], query.shape[2])
    form = _describe(query, key, value, causal, scale)
    _kernels().attention_backward(
        ctypes.byref(form), *(ctypes.byref(_heads(t)) for t in inputs), weights.data_ptr(),
        *(ctypes.byref(_heads(t)) for t in results), scratch.data_ptr(),
    )  # fmt: skip
    return results


@_operator("cross_entropy(Tensor x, Tensor labels, int no_label) -> (Tensor, Tensor)")
def cross_entropy(x: Tensor, labels: Tensor, no_label: int) -> tuple[Tensor, Tensor]:
    """The loss of every row, 0 without a label; and the logarithms of the sums."""
    x, labels = x.contiguous(), labels.contiguous()
    rows, width = x.shape
    losses, logs = torch.empty(rows), torch.empty(rows)
    outside: int = _kernels().cross_entropy_forward(
        x.data_ptr(), labels.data_ptr(), no_label, losses.data_ptr(), logs.data_ptr(), rows, width
    )
    if outside:
        raise IndexError(f"Target {int(labels[outside - 1])} is out of bounds.")
    return losses, logs


@_operator(
    "cross_entropy_backward(Tensor upstream, Tensor x, Tensor labels, int no_label, Tensor logs)"
    " -> Tensor"
)
def cross_entropy_backward(
    upstream: Tensor, x: Tensor, labels: Tensor, no_label: int, logs: Tensor
) -> Tensor:
    """The gradient of `cross_entropy`."""
    upstream, x, labels = upstream.contiguous(), x.contiguous(), labels.contiguous()
    out = torch.empty(x.shape)
    _kernels().cross_entropy_backward(
        upstream.data_ptr(), x.data_ptr(), labels.data_ptr(), no_label, logs.data_ptr(),
        out.data_ptr(), *x.shape,
    )  # fmt: skip
    return out


_LONGEST, _LARGEST_HEAD = 256, 128
"""Limits of attention: weights of all places are kept, and heads fit in the nearest cache."""


def native_kernels() -> LayerKernels:
    """The layers by the compiled kernels; raise `BuildError` if these cannot be built."""
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
    """Return whether the kernels support these tensors."""
    return not torch.is_autocast_enabled("cpu") and all(
        t is None or (t.dtype == torch.float32 and t.device.type == "cpu" and t.numel() > 0)
        for t in tensors
    )


def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, inputs_first: bool
) -> tuple[Tensor, Gradients]:
    return linear(x, weight, bias, inputs_first), (x, weight)


def _linear_backward(
    upstream: Tensor, needs: Sequence[bool], x: Tensor, weight: Tensor, inputs_first: bool
) -> Gradients:
    parts = linear_backward(upstream, x, weight, inputs_first, *needs)
    return _needed_only(parts, needs)


def _needed_only(parts: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor | None]:
    return [part if is_needed else None for part, is_needed in zip(parts, needs, strict=False)]


def _norm(*, has_mean: bool) -> Kernel:
    """Layer norm, or RMS norm without a mean."""

    def forward(x: Tensor, scale: Tensor, *rest: Tensor | float | None) -> tuple[Tensor, Gradients]:
        *shift, eps = rest
        out, statistics = norm_rows(x, scale, *(shift or [None]), has_mean, eps)
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
        parts = norm_rows_backward(upstream, x, scale, statistics, has_mean, *wanted)
        return _needed_only(parts, needs)

    return Kernel(forward, backward, _fits)


def _activation(kind: int) -> Kernel:
    return Kernel(
        lambda x: (activation(x, kind), (x,)),
        lambda upstream, _needs, x: (activation_backward(upstream, x, kind),),
        _fits,
    )


def _fits_attention(query: Tensor, key: Tensor, value: Tensor) -> bool:
    size, length = max(query.shape[-1], value.shape[-1]), max(query.shape[2], key.shape[2])
    return _fits(query, key, value) and length <= _LONGEST and size <= _LARGEST_HEAD


def _attention(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Gradients]:
    out, weights = attend_heads(query, key, value, is_causal, scale)
    return out, (query, key, value, weights)


def _attention_backward(upstream: Tensor, _needs: Sequence[bool], *rest: object) -> Gradients:
    parts: tuple[Tensor, ...] = attend_heads_backward(upstream, *rest)
    return parts


def _cross_entropy(x: Tensor, labels: Tensor, no_label: int) -> tuple[Tensor, Gradients]:
    losses, logs = cross_entropy(x, labels, no_label)
    return losses, (x, logs)


def _cross_entropy_backward(
    upstream: Tensor, _needs: Sequence[bool], x: Tensor, logs: Tensor, labels: Tensor, no_label: int
) -> Gradients:
    return (cross_entropy_backward(upstream, x, labels, no_label, logs),)
