"""Layers for all clients of a stack at once; the client axis is the first.

A layer is computed by the first of its kernels that fits: operators of torch here, and C code in
`engines/native`. Products are batched, and gradients of weights have the weights' memory layout,
for which autograd would need a copy as large as the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Gradients = Sequence[Tensor | None]


@dataclass(frozen=True)
class Kernel:
    """An implementation of a layer, for tensors with the clients first, and of its gradients."""

    forward: Callable[..., tuple[Tensor, Gradients]]
    """(tensors, settings ...) -> the output, and the tensors saved for the gradients."""
    backward: Callable[..., Gradients]
    """(gradient of the output, needed gradients, saved tensors, settings ...) -> gradients."""
    fits: Callable[..., bool] = lambda *_: True
    """Whether it supports these tensors."""


class _Layer(torch.autograd.Function):
    """A kernel as an autograd function."""

    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, settings: tuple[Any, ...], *tensors: Tensor | None
    ) -> Tensor:
        out, kept_tensors = kernel.forward(*tensors, *settings)
        ctx.save_for_backward(*kept_tensors)
        ctx.kernel, ctx.settings = kernel, settings
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad[2:]
        parts = ctx.kernel.backward(gradients[0], needs, *ctx.saved_tensors, *ctx.settings)
        return None, None, *parts


def run_kernel(kernel: Kernel, tensors: Sequence[Tensor | None], *settings: Any) -> Tensor:
    """Apply a kernel to tensors."""
    out: Tensor = _Layer.apply(kernel, settings, *tensors)  # type: ignore[no-untyped-call]
    return out


@dataclass(frozen=True)
class LayerKernels:
    """Layers by the first of their kernels that fits; methods correspond to torch's functions."""

    kernels: Mapping[str, Sequence[Kernel]]
    fuses_norms: bool = False
    """Whether norms written as several operators are replaced by one kernel."""

    def find(self, name: str, *tensors: Tensor | None) -> Kernel | None:
        """The kernel for a layer of these tensors, if any."""
        return next((one for one in self.kernels.get(name, ()) if one.fits(*tensors)), None)

    def _run(self, name: str, tensors: Sequence[Tensor | None], *settings: Any) -> Tensor:
        kernel = self.find(name, *tensors)
        assert kernel is not None  # kernels of torch always fit
        return run_kernel(kernel, tensors, *settings)

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, inputs_first: bool = False
    ) -> Tensor:
        """A linear layer per client.

        ``x`` is (clients, ..., inputs), ``weight`` (clients, outputs, inputs), or with
        ``inputs_first`` (clients, inputs, outputs), as in GPT-2; ``bias`` (clients, outputs).

        >>> x, weight = torch.ones(2, 3, 4), torch.ones(2, 5, 4)
        >>> TORCH_KERNELS.linear(x, weight, torch.zeros(2, 5)).shape
        torch.Size([2, 3, 5])
        """
        x, weight, bias = in_one_type(x, weight, bias)
        rows = x.reshape(len(x), -1, x.shape[-1])
        out = self._run("linear", (rows, weight, bias), inputs_first)
        return out.view(*x.shape[:-1], out.shape[-1])

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """Layer norm with a scale and shift per client.

        ``x`` is (clients, ..., *normalised dimensions), scale and shift (clients, *these
        dimensions).

        >>> TORCH_KERNELS.layer_norm(torch.eye(2).view(2, 1, 2), torch.ones(2, 2), None, 0.0)[0]
        tensor([[ 1., -1.]])
        """
        return self._run("layer_norm", _rows_of(x, weight, bias), eps).view(x.shape)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float | None) -> Tensor:
        """RMS norm with a scale per client; see `layer_norm`.

        >>> TORCH_KERNELS.rms_norm(torch.tensor([[[3.0, 4.0]]]), torch.ones(1, 2), 0.0)
        tensor([[[0.8485, 1.1314]]])
        """
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        return self._run("rms_norm", _rows_of(x, weight)[:2], eps).view(x.shape)

    @property
    def activations(self) -> Mapping[str, Callable[[Tensor], Tensor]]:
        """The activations with a kernel, of gelu_tanh, gelu and silu."""
        return {
            name: lambda x, name=name: self._activate(name, x)  # type: ignore[misc]
            for name in (*_PLAIN, "gelu_tanh")
            if name in self.kernels
        }

    def _activate(self, name: str, x: Tensor) -> Tensor:
        kernel = self.find(name, x)
        return _PLAIN[name](x) if kernel is None else run_kernel(kernel, (x,))

    def cross_entropy(
        self, rows: Tensor, labels: Tensor, no_label: int, smoothing: float
    ) -> Tensor:
        """The loss of every row of (rows, classes); 0 if the label is ``no_label``."""
        kernel = None if smoothing else self.find("cross_entropy", rows)
        if kernel is None:
            return functional.cross_entropy(
                rows, labels, ignore_index=no_label, label_smoothing=smoothing, reduction="none"
            )
        return run_kernel(kernel, (rows,), labels, no_label)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float | None
    ) -> Tensor | None:
        """Attention without a mask; None if no kernel fits.

        ``key`` and ``value`` may have fewer heads than ``query``, each shared by several.
        """
        kernel = self.find("attention", query, key, value)
        if kernel is None:
            return None
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return run_kernel(kernel, (query, key, value), is_causal, scale)

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
    ) -> Tensor:
        """Scaled dot-product attention with the clients in the batch dimension.

        ``query`` is (clients, ..., length, size); ``key`` and ``value`` may have another length;
        ``mask`` is (clients, ...), or for all clients with a first dimension of 1.

        >>> x = torch.ones(2, 3, 4, 5, 6)
        >>> TORCH_KERNELS.attention(x, x, x, None, is_causal=True).shape
        torch.Size([2, 3, 4, 5, 6])
        """
        clients, lead, width = len(query), query.shape[1:-2], query.dim() - 3
        if width == 0:  # of each client: a length and a size only
            query, key, value = (t.unsqueeze(1) for t in (query, key, value))
            mask = mask if mask is None or mask.dim() < 3 else mask.unsqueeze(1)
        dims, batch, parts = query.dim(), query.shape[1], [query, key, value]
        if not all(t.dim() == dims and t.shape[1] == batch for t in parts):
            parts = [_pad_to(dims, t) for t in parts]
            batch = max(t.shape[1] for t in parts)
            parts = [t.expand(-1, batch, *[-1] * (dims - 2)) for t in parts]
        parts = [t.flatten(0, 1) for t in parts]
        if mask is not None:
            mask = _pad_to(dims, mask)
            if len(mask) == 1 and mask.shape[1] == 1:
                mask = mask[0]
            else:
                mask = mask.expand(clients, batch, *mask.shape[2:]).flatten(0, 1)
        if width < 2:  # the kernels need a dimension of heads
            parts = [t.unsqueeze(1) for t in parts]
            mask = None if mask is None else mask.unsqueeze(-3)
        query, key, value = parts
        out = None
        if mask is None and _heads_fit(query, key, value, **options):
            is_causal = options.get("is_causal", False)
            out = self.attend(query, key, value, is_causal, options.get("scale"))
        if out is None:
            out = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, **options
            )
        if width < 2:
            out = out.squeeze(1)
        out = out.reshape(clients, batch, *out.shape[1:])
        return out if lead else out.squeeze(1)

    def embedding(self, ids: Tensor, table: Tensor, padding: int | None) -> Tensor:
        """Rows of a table per client; the row of the padding token has no gradient.

        ``ids`` are (clients, ...), ``table`` is (clients, rows, values); ``padding`` is the number
        of the padding token, if any.

        >>> ids, table = torch.tensor([[0], [1]]), torch.arange(4.0).view(2, 2, 1)
        >>> TORCH_KERNELS.embedding(ids, table, None).flatten()
        tensor([0., 3.])
        """
        rows = table.shape[1]
        if ids.device.type == "cpu" and ids.numel():
            least, most = ids.aminmax()
            if bool(least < 0) or bool(most >= rows):  # this would read another client's rows
                raise IndexError("index out of range in self")
        first = torch.arange(0, len(table) * rows, rows, device=ids.device)
        places = ids + first.view(-1, *[1] * (ids.dim() - 1))
        no_gradient = None if padding is None else ids == padding % rows
        return self._run("embedding", (table, places, no_gradient), table.shape)


_PLAIN: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "silu": functional.silu,
}


def in_one_type(
    x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Convert the operands of a product as autocast would."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return x, weight, bias
    dtype = torch.get_autocast_dtype(kind)
    return x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _rows_of(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> list[Tensor | None]:
    """Reshape to (clients, rows, values), and scale and shift to (clients, values)."""
    flat = [None if t is None else t.reshape(len(x), -1) for t in (weight, bias)]
    return [x.reshape(len(x), -1, math.prod(weight.shape[1:])), *flat]


def _pad_to(dims: int, tensor: Tensor) -> Tensor:
    """Insert dimensions of one after the clients' up to ``dims`` dimensions."""
    return tensor.reshape(len(tensor), *[1] * (dims - tensor.dim()), *tensor.shape[1:])


def _heads_fit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool = False,
    enable_gqa: bool = False,
    **_options: Any,
) -> bool:
    """Return whether shapes fit one attention, perhaps with heads that share keys."""
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    (batch, heads, places, _), (key_batch, key_heads, others, _) = query.shape, key.shape
    return (
        key.shape[:3] == value.shape[:3]
        and batch == key_batch
        and (heads == key_heads or (enable_gqa and heads % key_heads == 0))
        and (places == others or not is_causal)
    )


# Layers by operators of torch: forward and backward functions. ----------------------------------


def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, inputs_first: bool
) -> tuple[Tensor, Gradients]:
    """(clients, rows, inputs) -> (clients, rows, outputs)."""
    factor = weight if inputs_first else weight.transpose(1, 2)
    if bias is None:
        return torch.bmm(x, factor), (x, weight)
    return torch.baddbmm(bias.unsqueeze(1), x, factor), (x, weight)


def _linear_backward(
    upstream: Tensor, needs: Sequence[bool], x: Tensor, weight: Tensor, inputs_first: bool
) -> Gradients:
    of_x = of_weight = None
    if needs[0]:
        of_x = torch.bmm(upstream, weight.transpose(1, 2) if inputs_first else weight)
    if needs[1]:
        first, second = (x, upstream) if inputs_first else (upstream, x)
        of_weight = torch.bmm(first.transpose(1, 2), second)
    return of_x, of_weight, upstream.sum(1) if needs[2] else None


_MANY_VALUES = 1 << 14
"""The number of values from which on operators take longer than their calls."""


def _layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Gradients]:
    """(clients, rows, values) -> the same shape."""
    factor = weight.unsqueeze(1)
    plain, mean, scale = _normalise(x, eps)
    out = plain * factor if bias is None else torch.addcmul(bias.unsqueeze(1), plain, factor)
    return out, (x, plain, mean, scale, factor)


def _normalise(rows: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm without scale and shift, means and factors; 1.3 to 2.4x as fast as torch's."""
    if rows.dtype not in (torch.float32, torch.float64) or rows.numel() < _MANY_VALUES:
        return torch.native_layer_norm(rows, rows.shape[2:], None, None, eps)
    mean = rows.mean(-1, keepdim=True)
    plain = rows - mean
    scale = (plain * plain).mean(-1, keepdim=True).add_(eps).rsqrt_()
    return plain.mul_(scale), mean, scale


def _layer_norm_backward(
    upstream: Tensor,
    needs: Sequence[bool],
    x: Tensor,
    plain: Tensor,
    mean: Tensor,
    scale: Tensor,
    factor: Tensor,
    _eps: float,
) -> Gradients:
    of_x = None
    if needs[0]:
        of_x = torch.ops.aten.native_layer_norm_backward(
            upstream * factor, x, x.shape[2:], mean, scale, None, None, [True, False, False]
        )[0]
    of_weight = (upstream * plain).sum(1) if needs[1] else None
    return of_x, of_weight, upstream.sum(1) if needs[2] else None


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Gradients]:
    """(clients, rows, values) -> the same shape."""
    factor = weight.unsqueeze(1)
    scale = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    plain = x * scale
    return plain * factor, (plain, scale, factor)


def _rms_norm_backward(
    upstream: Tensor,
    needs: Sequence[bool],
    plain: Tensor,
    scale: Tensor,
    factor: Tensor,
    _eps: float,
) -> Gradients:
    of_x, by_unit = None, upstream * plain
    of_weight = by_unit.sum(1) if needs[1] else None
    if needs[0]:
        along = (by_unit * factor).mean(-1, keepdim=True)
        of_x = (upstream * factor).addcmul_(plain, along, value=-1).mul_(scale)
    return of_x, of_weight


# 0.5 x (1 + tanh u) = x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3); torch's own operator
# takes 2.4 times as long, mainly for the hyperbolic tangent
_FIRST = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _FIRST


def _gelu_tanh(x: Tensor) -> tuple[Tensor, Gradients]:
    gate = (x * x).mul_(_CUBIC).add_(_FIRST).mul_(x).sigmoid_()
    return x * gate, (x, gate)


def _gelu_tanh_backward(
    upstream: Tensor, _needs: Sequence[bool], x: Tensor, gate: Tensor
) -> Gradients:
    slope = (x * x).mul_(3 * _CUBIC).add_(_FIRST).mul_(x)
    of_x: Tensor = torch.ops.aten.sigmoid_backward(slope, gate)
    return (of_x.add_(gate).mul_(upstream),)


def _embedding(
    table: Tensor, places: Tensor, no_gradient: Tensor | None, _shape: Sequence[int]
) -> tuple[Tensor, Gradients]:
    """Rows at ``places`` of the concatenated tables."""
    flat = places.reshape(-1)
    rows = table.flatten(0, 1).index_select(0, flat)
    return rows.view(*places.shape, -1), (flat, no_gradient)


def _embedding_backward(
    upstream: Tensor,
    _needs: Sequence[bool],
    places: Tensor,
    no_gradient: Tensor | None,
    shape: Sequence[int],
) -> Gradients:
    """Sum gradients over repeated rows."""
    if no_gradient is not None:
        upstream = upstream.masked_fill(no_gradient.unsqueeze(-1), 0.0)
    clients, rows, values = shape
    total = upstream.new_zeros(clients * rows, values)
    total.index_add_(0, places, upstream.reshape(-1, values))
    return total.view(clients, rows, values), None, None


_LARGEST_HEAD, _LENGTHS, _MOST_SCORES = 8, range(16, 129), 1 << 19
"""Limits within which batched products are faster than torch's kernel, which loops over heads.

They are twice as fast with heads of 4 or 8 values (32 sequences of 32 or 64 places, four heads,
forward and backward), 0.8 to 1.2 times with 16, and half as fast with 8 places.
"""


def _has_small_heads(query: Tensor, key: Tensor, value: Tensor) -> bool:
    (batch, heads, places, size), others = query.shape, key.shape[2]
    return (
        query.dtype in (torch.float32, torch.float64)
        and not torch.is_autocast_enabled(query.device.type)
        and max(size, value.shape[-1]) <= _LARGEST_HEAD
        and places in _LENGTHS
        and others in _LENGTHS
        and batch * heads * places * others <= _MOST_SCORES
    )


def _attention(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Gradients]:
    """Attention of (batch, heads, places, values); keys and values may have fewer heads.

    Heads that share keys are treated as further places of one head. Products have the long side
    last, as narrow ones are slow.
    """
    batch, heads, places, _ = query.shape
    groups = batch * key.shape[1]
    rows, keys, values = (t.reshape(groups, -1, t.shape[-1]) for t in (query, key, value))
    if is_causal:
        size, kind = (places, places), query.dtype  # no `new_full`: this depends on no tensor
        later = torch.full(size, -math.inf, dtype=kind, device=query.device).triu(1)
        later = later.repeat(heads // key.shape[1], 1)
        scores = torch.baddbmm(later, rows, keys.mT, alpha=scale)
    else:
        scores = torch.bmm(rows, keys.mT).mul_(scale)
    weights = torch.softmax(scores, -1)
    out = torch.bmm(values.mT, weights.mT).mT.reshape(batch, heads, places, -1)
    return out, (rows, keys, values, weights)


def _attention_backward(
    gradient: Tensor,
    _needs: Sequence[bool],
    rows: Tensor,
    keys: Tensor,
    values: Tensor,
    weights: Tensor,
    _is_causal: bool,
    scale: float,
) -> Gradients:
    upstream = gradient.reshape(*rows.shape[:2], -1)
    of_values = torch.bmm(upstream.mT, weights).mT
    of_scores = torch.ops.aten._softmax_backward_data(
        torch.bmm(upstream, values.mT), weights, -1, weights.dtype
    ).mul_(scale)
    of_rows = torch.bmm(keys.mT, of_scores.mT).mT
    of_keys = torch.bmm(rows.mT, of_scores).mT
    batch, heads, places, _ = gradient.shape
    of_query = of_rows.reshape(batch, heads, places, -1)
    return of_query, *(part.reshape(batch, -1, *part.shape[1:]) for part in (of_keys, of_values))


TORCH_KERNELS = LayerKernels(
    {
        "linear": [Kernel(_linear, _linear_backward)],
        "layer_norm": [Kernel(_layer_norm, _layer_norm_backward)],
        "rms_norm": [Kernel(_rms_norm, _rms_norm_backward)],
        "gelu_tanh": [Kernel(_gelu_tanh, _gelu_tanh_backward)],
        "embedding": [Kernel(_embedding, _embedding_backward)],
        "attention": [Kernel(_attention, _attention_backward, _has_small_heads)],
    }
)
