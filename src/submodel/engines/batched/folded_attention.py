"""Attention for all clients of a stack at once: the client axis comes first."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_LARGEST_HEAD, _LENGTHS, _MOST_SCORES = 8, range(16, 129), 1 << 19
"""Where batched products are quicker than torch's kernel, which goes head by head.

Twice as quick with heads of 4 or 8 values (32 sequences of 32 or 64 places, four heads, forward and
back), 0.8 to 1.2 times with 16, half as quick with 8 places.
"""


def fold_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    attend: Callable[..., Tensor | None] | None = None,
    **options: Any,
) -> Tensor:
    """Scaled dot-product attention with the clients in the batch, where its kernels are fast.

    Args:
        query: (clients, ..., length, size).
        key: as the query, with a length of its own.
        value: as the key.
        mask: (clients, ...) or, with a first dimension of 1, everybody's; or none.
        attend: tried first where there is no mask; None, or one that returns it: torch's kernels.
        options: ``is_causal``, ``scale`` and ``enable_gqa`` as torch has them.

    >>> x = torch.ones(2, 3, 4, 5, 6)
    >>> fold_attention(x, x, x, None, is_causal=True).shape
    torch.Size([2, 3, 4, 5, 6])
    """
    clients, lead, width = len(query), query.shape[1:-2], query.dim() - 3
    if width == 0:  # of each client: a length and a size only
        query, key, value = (t.unsqueeze(1) for t in (query, key, value))
        mask = mask if mask is None or mask.dim() < 3 else mask.unsqueeze(1)
    parts = [query, key, value]
    batch = query.shape[1]
    if not all(t.dim() == query.dim() and t.shape[1] == batch for t in parts):
        batch = max(t.shape[1] for t in map(_padded_to(query.dim()), parts))
        parts = [
            t.expand(-1, batch, *[-1] * (t.dim() - 2)) for t in map(_padded_to(query.dim()), parts)
        ]
    parts = [t.flatten(0, 1) for t in parts]
    if mask is not None:
        mask = _padded_to(query.dim())(mask)
        if len(mask) == 1 and mask.shape[1] == 1:
            mask = mask[0]
        else:
            mask = mask.expand(clients, batch, *mask.shape[2:]).flatten(0, 1)
    if width < 2:  # the kernels want heads
        parts = [t.unsqueeze(1) for t in parts]
        mask = None if mask is None else mask.unsqueeze(-3)
    query, key, value = parts
    out = None
    if attend is not None and mask is None and _heads_fit(query, key, value, **options):
        out = attend(query, key, value, options.get("is_causal", False), options.get("scale"))
    if out is None:
        out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, **options)
    if width < 2:
        out = out.squeeze(1)
    out = out.reshape(clients, batch, *out.shape[1:])
    return out if lead else out.squeeze(1)


def _padded_to(dims: int) -> Callable[[Tensor], Tensor]:
    """With dimensions of one after the clients', so that there are so many."""
    return lambda t: t.reshape(len(t), *[1] * (dims - t.dim()), *t.shape[1:])


def _heads_fit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool = False,
    enable_gqa: bool = False,
    **_options: Any,
) -> bool:
    """Whether shapes are those of one attention, perhaps with heads that share their keys."""
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    (batch, heads, places, _), (key_batch, key_heads, others, _) = query.shape, key.shape
    return (
        key.shape[:3] == value.shape[:3]
        and batch == key_batch
        and (heads == key_heads or (enable_gqa and heads % key_heads == 0))
        and (places == others or not is_causal)
    )


def attend_small_heads(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float | None
) -> Tensor | None:
    """Attention by batched products; None where torch's kernel is quicker.

    Args:
        query: (batch, heads, places, values).
        key: as the query, perhaps of fewer heads, each of which several share.
        value: as the key.
        is_causal: whether a place sees only itself and those before.
        scale: of the products; None: one over the root of the head's size.
    """
    (batch, heads, places, size), others = query.shape, key.shape[2]
    is_quicker = (
        query.dtype in (torch.float32, torch.float64)
        and not torch.is_autocast_enabled(query.device.type)
        and max(size, value.shape[-1]) <= _LARGEST_HEAD
        and places in _LENGTHS
        and others in _LENGTHS
        and batch * heads * places * others <= _MOST_SCORES
    )
    if not is_quicker:
        return None
    scale = size**-0.5 if scale is None else scale
    out: Tensor = _Attention.apply(query, key, value, is_causal, scale)  # type: ignore[no-untyped-call]
    return out


class _Attention(torch.autograd.Function):
    """(batch, heads, places, values), keys and values perhaps of fewer heads, each of several.

    Heads that share their keys are further places of one. Products have their long side last, as
    narrow ones are slow.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float
    ) -> Tensor:
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
        ctx.save_for_backward(rows, keys, values, weights)
        ctx.scale, ctx.shapes = scale, [t.shape for t in (query, key, value)]
        return torch.bmm(values.mT, weights.mT).mT.reshape(batch, heads, places, -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, keys, values, weights = ctx.saved_tensors
        upstream = gradients[0].reshape(*rows.shape[:2], -1)
        of_values = torch.bmm(upstream.mT, weights).mT
        of_scores = torch.ops.aten._softmax_backward_data(
            torch.bmm(upstream, values.mT), weights, -1, weights.dtype
        ).mul_(ctx.scale)
        of_rows = torch.bmm(keys.mT, of_scores.mT).mT
        of_keys = torch.bmm(rows.mT, of_scores).mT
        parts = zip((of_rows, of_keys, of_values), ctx.shapes, strict=True)
        return *(part.reshape(shape) for part, shape in parts), None, None
