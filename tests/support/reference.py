"""Reference for sub-models: the full model with the dropped units zeroed.

Statistics of norms over units are taken over the kept units only. Both run the full model, so they
share no code with the builder of small models.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from submodel.model.cut import UnitCut

aten = torch.ops.aten


def kept_mask(cut: UnitCut, name: str, tensor: Tensor) -> Tensor:
    """Return ones for the held parts of a tensor, zeros elsewhere."""
    mask = torch.zeros_like(tensor)
    cut.add(name, mask, 1)
    return mask


@torch.no_grad()
def masked(module: nn.Module, cut: UnitCut) -> nn.Module:
    """Return the full model with everything dropped set to zero."""
    zeroed = copy.deepcopy(module)
    for name, tensor in [*zeroed.named_parameters(), *zeroed.named_buffers()]:
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.mul_(kept_mask(cut, name, tensor))
    return zeroed


class RestrictedStatistics(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Statistics over width, and the scale of attention derived from it, from kept units only.

    The dropped units of a norm are those whose weight is masked, or without a weight, those that
    are zero for every example and position.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if func is aten.native_layer_norm.default:
            return _layer_norm(*args)
        if func is aten.native_group_norm.default:
            return _group_norm(*args)
        if func is aten.mean.dim:
            return _mean(func(*args, **options), *args)
        if "scaled_dot_product" in str(func) and options.get("scale") is None:
            options["scale"] = 1 / math.sqrt(int(_kept(args[0], -1).sum()))
        return func(*args, **options)


def _kept(x: Tensor, dim: int) -> Tensor:
    """Return the indices along ``dim`` that are not zero everywhere."""
    return (x != 0).movedim(dim, -1).flatten(0, -2).any(0)


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    assert len(shape) == 1
    y = x[..., _kept(x, -1) if weight is None else weight != 0]
    mean, variance = y.mean(-1, keepdim=True), y.var(-1, correction=0, keepdim=True)
    scale = (variance + eps).rsqrt()
    normed = (x - mean) * scale
    if weight is not None:
        normed = normed * weight
    return normed if bias is None else normed + bias, mean, scale


def _group_norm(
    x: Tensor, weight: Tensor, bias: Tensor, n: int, channels: int, _: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    out, width = torch.zeros_like(x), channels // groups
    for start in range(0, channels, width):
        group = x[:, start : start + width].reshape(n, width, -1)
        y = group[:, weight[start : start + width] != 0].flatten(1)
        if y.shape[1]:
            mean, variance = y.mean(-1), y.var(-1, correction=0)
            normed = (group - mean[:, None, None]) * (variance + eps).rsqrt()[:, None, None]
            out[:, start : start + width] = normed.view_as(out[:, start : start + width])
    shape = (1, channels, *(1 for _ in x.shape[2:]))
    return out * weight.view(shape) + bias.view(shape), x.new_zeros(()), x.new_zeros(())


def _mean(plain: Tensor, x: Tensor, dims: Sequence[int], *_: object) -> Tensor:
    for dim in dims:
        plain = plain * (x.shape[dim] / int(_kept(x, dim).sum()))
    return plain


@contextmanager
def plain_attention() -> Iterator[None]:
    """Disable the fused encoder layer, whose inner statistics are inaccessible."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
