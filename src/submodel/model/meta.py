"""Fast shape inference for operators on the meta device.

PyTorch infers the output shapes of many operators directly. For convolutions, pools, products with
a bias, sums, means, activations, embeddings, norms, softmaxes and the initialisation of embeddings
it runs Python code of its compiler, which takes a second to import, and milliseconds per layer. The
functions below replace that code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from submodel.model.axes.keep import DispatchMode

_aten = torch.ops.aten
_ALIKE = {_aten.relu.default, _aten.gelu.default, _aten.silu.default, _aten.tanh.default}
# initialisers: on the meta device they draw nothing and return their argument
_DRAWS = {
    _aten.normal_.default,
    _aten.uniform_.default,
    _aten.exponential_.default,
    _aten.erfinv_.default,
    _aten.clamp_.default,
}
_NONE: list[int] = []
_PRECISE = (torch.float32, torch.float64)
_NORMS = (_aten.native_batch_norm.default, _aten._native_batch_norm_legit.default)


def shortcut(func: OpOverload, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """The result of an operator on the meta device; NotImplemented if there is no shortcut.

    >>> x, w = torch.empty(2, 3, device="meta"), torch.empty(3, 4, device="meta")
    >>> shortcut(torch.ops.aten.addmm.default, (w[0], x, w), {}).shape
    torch.Size([2, 4])
    """
    if func is _aten.addmm.default:
        _, one, other = args[:3]
        if one.is_meta and other.is_meta and one.dtype == other.dtype:
            return one.new_empty((one.shape[0], other.shape[1]))
    elif func in _ALIKE and args[0].is_meta:
        return _empty_like(args[0])
    elif func in _DRAWS and args[0].is_meta:
        return args[0]
    elif func in _NORMS and _trains_on_shapes(args):
        x: Tensor = args[0]
        channels = x.shape[1]
        return _empty_like(x), x.new_empty(channels), x.new_empty(channels)
    elif func in _SHAPES and not keywords:
        return _SHAPES[func](*args)
    return NotImplemented


def _empty_like(x: Tensor) -> Tensor:
    """`torch.empty_like` without importing PyTorch's compiler."""
    return x.new_empty(x.shape) if x.is_contiguous() else torch.empty_like(x)


def _pairwise(one: Any, other: Any) -> Any:
    """The result for a tensor and a number, or for tensors of which one broadcasts to the other."""
    if not (isinstance(one, Tensor) and one.is_meta and one.is_floating_point()):
        return NotImplemented
    if isinstance(other, int | float) and not isinstance(other, bool):
        return _ordered_like(one)
    if not (isinstance(other, Tensor) and other.is_meta and other.dtype == one.dtype):
        return NotImplemented
    if not (one.is_contiguous() and other.is_contiguous()):
        return NotImplemented
    if one.shape == _wider(one.shape, other.shape):
        return _empty_like(one)
    return _empty_like(other) if other.shape == _wider(other.shape, one.shape) else NotImplemented


def _wider(shape: Sequence[int], other: Sequence[int]) -> Sequence[int]:
    """``shape`` if ``other`` broadcasts to it; else the empty tuple."""
    other_sizes = [1] * (len(shape) - len(other)) + list(other)
    fits = len(other_sizes) == len(shape) and all(
        b in (a, 1) for a, b in zip(shape, other_sizes, strict=True)
    )
    return shape if fits else ()


def _ordered_like(x: Tensor) -> Any:
    """The result of a pointwise operator: dense, with the memory order of its argument."""
    if x.is_contiguous():
        return x.new_empty(x.shape)
    if 0 in x.stride() or x.numel() == 0:
        return NotImplemented
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    back = [order.index(i) for i in range(x.dim())]
    return x.new_empty([x.shape[i] for i in order]).permute(back)


def _product(one: Tensor, other: Tensor) -> Any:
    """The product of two matrices, or of two batches of matrices."""
    if not (one.is_meta and other.is_meta and one.dtype == other.dtype):
        return NotImplemented
    if one.shape[:-2] != other.shape[:-2] or one.shape[-1] != other.shape[-2]:
        return NotImplemented
    return one.new_empty((*one.shape[:-1], other.shape[-1]))


def _embedding(table: Tensor, rows: Tensor, *_: Any) -> Any:
    """The looked-up rows; padding and gradient scaling do not change the shape."""
    if not (table.is_meta and rows.is_meta and table.dim() == 2 and table.is_contiguous()):
        return NotImplemented
    return table.new_empty((*rows.shape, table.shape[1]))


def _layer_norm(x: Tensor, shape: list[int], *_: Any) -> Any:
    """The normalised values, and mean and inverse deviation of each normalised slice."""
    outer = x.dim() - len(shape)
    if outer < 0 or list(x.shape[outer:]) != list(shape):
        return NotImplemented
    if not (x.is_meta and x.dtype in _PRECISE and x.is_contiguous()):
        return NotImplemented
    sizes = (*x.shape[:outer], *(1 for _ in shape))
    return _empty_like(x), x.new_empty(sizes), x.new_empty(sizes)


def _softmax(x: Tensor, dimension: int, is_half: bool = False) -> Any:
    if is_half or not (x.is_meta and x.is_contiguous() and x.is_floating_point()):
        return NotImplemented
    return _empty_like(x) if -x.dim() <= dimension < x.dim() else NotImplemented


def _triangle(x: Tensor, _diagonal: int = 0) -> Any:
    return _empty_like(x) if x.is_meta and x.dim() > 1 and x.is_contiguous() else NotImplemented


def _choice(condition: Tensor, one: Tensor, other: Tensor) -> Any:
    """One of two scalars at every position, as in an additive mask made of a boolean one."""
    if not (condition.is_meta and condition.is_contiguous() and one.is_meta and other.is_meta):
        return NotImplemented
    if one.dim() or other.dim() or one.dtype != other.dtype:
        return NotImplemented
    return one.new_empty(condition.shape)


def _mean(x: Tensor, over: list[int] | None, keep: bool = False) -> Any:
    if not (x.is_meta and over and x.is_floating_point()):
        return NotImplemented
    if not all(-x.dim() <= dimension < x.dim() for dimension in over):
        return NotImplemented
    reduced_dims = {dimension % x.dim() for dimension in over}
    sizes = [
        1 if i in reduced_dims else n
        for i, n in enumerate(x.shape)
        if keep or i not in reduced_dims
    ]
    return x.new_empty(sizes) if len(reduced_dims) == len(over) else NotImplemented


def _convolution(
    x: Tensor,
    weight: Tensor,
    _bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    _output_padding: list[int],
    groups: int,
) -> Any:
    if transposed or not (x.is_meta and weight.is_meta and x.dtype == weight.dtype):
        return NotImplemented
    if x.shape[1] != groups * weight.shape[1] or weight.shape[0] % groups or x.numel() == 0:
        return NotImplemented
    places = _places(x.shape[2:], weight.shape[2:], stride, padding, dilation)
    return x.new_empty((x.shape[0], weight.shape[0], *places)) if places else NotImplemented


def _pool(
    x: Tensor,
    window: list[int],
    stride: list[int] = _NONE,
    padding: list[int] = _NONE,
    dilation: list[int] = _NONE,
    ceil: bool = False,
) -> Any:
    """The maximum of every window in a batch of images, and its index."""
    if ceil or not (x.is_meta and x.dim() == 4 and x.numel() and x.is_contiguous()):
        return NotImplemented
    places = _places(x.shape[2:], window, stride or window, padding or [0, 0], dilation or [1, 1])
    if not places or any(2 * pad > width for pad, width in zip(padding, window, strict=False)):
        return NotImplemented
    result = x.new_empty((*x.shape[:2], *places))
    return result, x.new_empty(result.shape, dtype=torch.int64)


def _places(
    sizes: Sequence[int],
    windows: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """The number of window positions per dimension; empty where PyTorch has to raise the error."""
    if not len(sizes) == len(windows) == len(stride) == len(padding) == len(dilation):
        return []
    places = [
        (size + 2 * pad - spread * (window - 1) - 1) // step + 1
        for size, window, step, pad, spread in zip(
            sizes, windows, stride, padding, dilation, strict=True
        )
    ]
    return places if min(places) > 0 else []


_SHAPES: dict[OpOverload, Callable[..., Any]] = {
    _aten.add.Tensor: _pairwise,
    _aten.mul.Tensor: _pairwise,
    _aten.mul.Scalar: _pairwise,
    _aten.mm.default: _product,
    _aten.bmm.default: _product,
    _aten.embedding.default: _embedding,
    _aten.native_layer_norm.default: _layer_norm,
    _aten._softmax.default: _softmax,
    _aten._safe_softmax.default: _softmax,
    _aten.tril.default: _triangle,
    _aten.where.self: _choice,
    _aten.mean.dim: _mean,
    _aten.convolution.default: _convolution,
    _aten.max_pool2d_with_indices.default: _pool,
}


def _trains_on_shapes(args: tuple[Any, ...]) -> bool:
    """Return whether a batch norm computes batch statistics of a meta tensor in full precision."""
    x, training = args[0], args[5]
    return bool(training) and x.is_meta and x.dtype in _PRECISE


class Shapes(DispatchMode):
    """Context in which operators on the meta device use `shortcut`.

    >>> with Shapes():
    ...     torch.nn.Linear(3, 4, device="meta")(torch.empty(2, 3, device="meta")).shape
    torch.Size([2, 4])
    """

    def _see(self, func: OpOverload, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        result = shortcut(func, args, keywords)
        return func(*args, **keywords) if result is NotImplemented else result
