"""Which integer among the arguments of torch's functions makes, or groups, which dimension.

`x.view(-1, self.heads, 3)` makes the last two dimensions of its result, `x[:, :n]` one of what it
takes, `group_norm(x, 4)` divides the channels. A place is such an integer with the dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

SizePlace = tuple[int, Tensor, int, bool]
"""An integer, the tensor and its dimension that it makes; or, if true, the groups of it."""

_SHAPE_TAKING = {"view", "reshape", "expand", "zeros", "ones", "empty", "full", "rand", "randn"}
_SHAPE_TAKING |= {f"new_{name}" for name in ("zeros", "ones", "empty", "full")}
_GROUPS_POSITION = {f"conv{n}d": 6 for n in (1, 2, 3)}
_GROUPS_POSITION |= {f"conv_transpose{n}d": 6 for n in (1, 2, 3)}

MAKING = _SHAPE_TAKING | {"split", "split_with_sizes", "unflatten", "narrow", "pad"}
MAKING |= {"__getitem__", "__setitem__", "tensor_split", "hsplit", "vsplit", "dsplit"}
"""Functions whose integers are looked at by `size_places`."""

PARTING = {"chunk", "unsafe_chunk", "tensor_split", "hsplit", "vsplit", "dsplit"}
"""Functions that cut a tensor into parts; those of equal size stay equal."""

TAKING_NO_SIZES = {"roll", "topk", "permute", "transpose", "flatten", "movedim"}
TAKING_NO_SIZES |= {"unsqueeze", "squeeze", "flip", "select", "unbind", "cat", "stack"}
TAKING_NO_SIZES |= {"softmax", "log_softmax", "normalize", "interpolate", "sort", "cumsum"}
TAKING_NO_SIZES |= {"sum", "mean", "amax", "amin", "argmax", "argmin"}
TAKING_NO_SIZES |= {f"{kind}_pool{n}d" for kind in ("max", "avg") for n in (1, 2, 3)}
"""Functions whose integers tell dimensions, places or steps, never how many units there are."""

SHOWING_NO_SIZE = {"dim", "ndimension", "element_size", "get_device", "__int__", "__index__"}
SHOWING_NO_SIZE |= {"__bool__", "is_floating_point", "is_complex", "is_contiguous", "item", "equal"}
SHOWING_NO_SIZE |= {"allclose", "is_same_size", "__contains__", "is_nonzero", "is_inference"}
"""Functions whose results show no size of the tensors that they take."""


def integers_in(value: Any) -> Iterator[int]:
    """The integers in nested arguments."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from integers_in(item)
    elif isinstance(value, Mapping):
        yield from integers_in(tuple(value.values()))
    elif isinstance(value, slice):
        yield from integers_in((value.start, value.stop))


def parted_dimension(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """The dimension that an operator cuts into parts."""
    if name in ("hsplit", "vsplit", "dsplit"):
        return {"hsplit": min(1, int(args[0].dim()) - 1), "vsplit": 0, "dsplit": 2}[name]
    return int(args[2] if len(args) > 2 else kwargs.get("dim", 0))


def size_places(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> Iterator[SizePlace]:
    """Which integer makes, or groups, which dimension of which tensor."""

    def argument(position: int, keyword: str, default: Any) -> Any:
        return args[position] if len(args) > position else kwargs.get(keyword, default)

    if name in ("split", "split_with_sizes"):
        sizes = argument(1, "split_size" if "split_size" in kwargs else "split_size_or_sections", 0)
        dimension = argument(2, "dim", 0)
        parts = [sizes] * len(result) if isinstance(sizes, int) else sizes
        for size, part in zip(parts, result, strict=False):
            if part.shape[dimension] == size:
                yield size, part, dimension, False
    elif name == "multi_head_attention_forward":
        yield argument(3, "embed_dim_to_check", 0), result[0], -1, False
        yield argument(4, "num_heads", 1), argument(11, "out_proj_weight", result[0]), 1, True
    elif name in ("__getitem__", "__setitem__"):
        for dimension, part in _slices(args[1], args[0].dim()):
            if part.step in (None, 1):  # every n-th unit is not a run
                yield from _prefixes(args[0], dimension, (part.start, part.stop))
    elif name in PARTING and name not in ("chunk", "unsafe_chunk"):
        ends = argument(1, "indices_or_sections", kwargs.get("sections", kwargs.get("indices", 1)))
        if isinstance(ends, tuple | list):
            yield from _prefixes(args[0], parted_dimension(name, args, kwargs), ends)
    elif not isinstance(result, Tensor):
        return
    elif name == "unflatten":
        dimension, sizes = argument(1, "dim", 0), argument(2, "sizes", ())
        for offset, size in enumerate(sizes):
            yield size, result, dimension % args[0].dim() + offset, False
    elif name in ("layer_norm", "rms_norm"):
        for back, size in enumerate(reversed(argument(1, "normalized_shape", ()))):
            yield size, result, result.dim() - 1 - back, False
    elif name == "narrow":
        dimension, start = argument(1, "dim", 0), argument(2, "start", 0)
        yield from _prefixes(args[0], dimension, (start,))
        yield argument(3, "length", 0), result, dimension, False
    elif name == "pad":
        pads = list(argument(1, "pad", ()))
        for back, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
            dimension = result.dim() - 1 - back
            yield from _prefixes(result, dimension, (before, -after))
    elif name == "group_norm":
        yield argument(1, "num_groups", 1), result, 1, True
    elif name in _GROUPS_POSITION and (groups := argument(_GROUPS_POSITION[name], "groups", 1)) > 1:
        yield groups, argument(1, "weight", result), 0, True
    elif name in _SHAPE_TAKING:
        for shape in _shapes(args, kwargs):
            pairs = list(zip(shape, result.shape, strict=False))
            if len(shape) == result.dim() and all(s in (-1, n) for s, n in pairs):
                for dimension, size in enumerate(shape):
                    yield size, result, dimension, False
                return


def layer_places(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Tensor
) -> Iterator[tuple[str, Tensor, int, bool]]:
    """Which number of the layer that calls a function counts, or groups, which dimension."""
    if name in ("layer_norm", "rms_norm"):
        shape = args[1] if len(args) > 1 else kwargs["normalized_shape"]
        for place in range(len(shape)):
            yield f"normalized_shape[{place}]", result, result.dim() - len(shape) + place, False
    elif name in ("batch_norm", "instance_norm"):
        yield "num_features", result, 1, False
    elif name == "group_norm":
        yield "num_channels", result, 1, False
        yield "num_groups", result, 1, True
    elif name in _GROUPS_POSITION:
        yield "groups", args[1] if len(args) > 1 else kwargs["weight"], 0, True
    elif name == "unflatten":
        dimension, sizes = args[1] % args[0].dim(), args[2]
        for place in range(len(sizes)):
            yield f"unflattened_size[{place}]", result, dimension + place, False


def _slices(index: Any, dimensions: int) -> Iterator[tuple[int, slice]]:
    """The slices of an index, each with the dimension of the indexed tensor that it slices."""
    parts = index if isinstance(index, tuple) else (index,)
    taking = sum(part is not None and part is not Ellipsis for part in parts)
    at = 0
    for part in parts:
        if isinstance(part, Tensor | list | bool):  # these may take several dimensions
            return
        if isinstance(part, slice):
            yield at, part
        if part is Ellipsis:
            at += dimensions - taking
        elif part is not None:
            at += 1


def _prefixes(tensor: Tensor, dimension: int, ends: Sequence[int | None]) -> Iterator[SizePlace]:
    """What lies before each end of a slice; taken once more, so that the tracer sees it."""
    size = tensor.shape[dimension]
    for end in ends:
        if isinstance(end, int) and not isinstance(end, bool) and 0 < end < size:
            yield end, tensor.narrow(dimension, 0, end), dimension, False
        elif isinstance(end, int) and -size < end < 0:
            rest = tensor.narrow(dimension, size + end, -end)
            yield -end, rest, dimension, False


def _shapes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    """Each list or tuple among the arguments, and the bare integers as one."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, tuple | list) and all(isinstance(item, int) for item in value):
            yield value
    yield [value for value in args if isinstance(value, int)]
