"""Tracing of integers in a module's code: the dimensions that they make.

`self.heads = 4` in a user's attention is a size that a cut changes, but nothing marks it as such.
So during one forward pass such integers, and the sizes of tensors, are replaced by integers with
their origin (`TracedInt`). If one is passed to a view, a split, a slice or the shape of a new
tensor, the dimension that it makes shows its meaning: `x.view(-1, self.heads, 3)` makes the last
two dimensions of its result, `x[:, :n]` a dimension of the slice, `group_norm(x, 4)` divides the
channels. An integer that makes no dimension (the index of a layer, a width used in a scale only) is
not a size. Integers inside torch's own layers are corrected by `submodel.model.build.layers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as global_hooks
from torch.overrides import TorchFunctionMode

from submodel.model.axes.number import (
    Attribute,
    Comparison,
    Number,
    NumberLog,
    SizeOf,
    Sizing,
    TracedInt,
    Uses,
    leaves,
    multiply,
    number_of,
)
from submodel.model.axes.record import source_line

SizePlace = tuple[int, Tensor, int, bool]
"""(integer, tensor, dimension, groups): it makes the dimension, or if true its groups."""

_SHAPE_TAKING = {"view", "reshape", "expand", "zeros", "ones", "empty", "full", "rand", "randn"}
_SHAPE_TAKING |= {f"new_{name}" for name in ("zeros", "ones", "empty", "full")}
_CONVOLUTIONS = {f"{kind}{n}d" for kind in ("conv", "conv_transpose") for n in (1, 2, 3)}

MAKING = _SHAPE_TAKING | {"split", "split_with_sizes", "unflatten", "narrow", "pad"}
MAKING |= {"__getitem__", "__setitem__", "tensor_split", "hsplit", "vsplit", "dsplit"}
"""Functions whose integers `size_places` inspects."""

PARTING = {"chunk", "unsafe_chunk", "tensor_split", "hsplit", "vsplit", "dsplit"}
"""Functions that cut a tensor into parts; those of equal size stay equal."""

TAKING_NO_SIZES = {"roll", "topk", "permute", "transpose", "flatten", "movedim"}
TAKING_NO_SIZES |= {"unsqueeze", "squeeze", "flip", "select", "unbind", "cat", "stack"}
TAKING_NO_SIZES |= {"softmax", "log_softmax", "normalize", "interpolate", "sort", "cumsum"}
TAKING_NO_SIZES |= {"sum", "mean", "amax", "amin", "argmax", "argmin"}
TAKING_NO_SIZES |= {f"{kind}_pool{n}d" for kind in ("max", "avg") for n in (1, 2, 3)}
"""Functions whose integers are dimensions, positions or steps, never numbers of units."""

SHOWING_NO_SIZE = {"dim", "ndimension", "element_size", "get_device", "__int__", "__index__"}
SHOWING_NO_SIZE |= {"__bool__", "is_floating_point", "is_complex", "is_contiguous", "item", "equal"}
SHOWING_NO_SIZE |= {"allclose", "is_same_size", "__contains__", "is_nonzero", "is_inference"}
"""Functions whose results show no size of their operands."""


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
    """The integers in a call that make, or group, a dimension of a tensor."""

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
            if part.step in (None, 1):  # other steps take no runs
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
    elif name in _CONVOLUTIONS and (groups := argument(6, "groups", 1)) > 1:
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
    """The numbers of the calling layer that count, or group, a dimension of a tensor."""
    if name in ("layer_norm", "rms_norm"):
        shape = args[1] if len(args) > 1 else kwargs["normalized_shape"]
        for place in range(len(shape)):
            yield f"normalized_shape[{place}]", result, result.dim() - len(shape) + place, False
    elif name in ("batch_norm", "instance_norm"):
        yield "num_features", result, 1, False
    elif name == "group_norm":
        yield "num_channels", result, 1, False
        yield "num_groups", result, 1, True
    elif name in _CONVOLUTIONS:
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
        if isinstance(part, Tensor | list | bool):  # these may index several dimensions
            return
        if isinstance(part, slice):
            yield at, part
        if part is Ellipsis:
            at += dimensions - taking
        elif part is not None:
            at += 1


def _prefixes(tensor: Tensor, dimension: int, ends: Sequence[int | None]) -> Iterator[SizePlace]:
    """The part before each end of a slice, taken again so that the tracer records it."""
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


DimensionLookup = Callable[[Tensor], Sequence[Any] | None]
"""The dimensions of a tensor in the trace; None if the trace does not contain it."""


class _WatchedUses(Uses):
    """The numbers that a forward pass uses in untracked arithmetic or compares.

    Computations inside torch's own layers are not noted.
    """

    def __init__(self, mode: _Watch) -> None:
        super().__init__()
        self.mode = mode

    def append(self, number: Number) -> None:
        if self.mode.running[-1][1]:
            self.mode.log.values.append(number)

    def compare(self, one: Number, other: Number, equal: bool) -> None:
        is_traced = any(not isinstance(leaf, int) for n in (one, other) for leaf in leaves(n))
        if self.mode.running[-1][1] and is_traced and (line := source_line(nearest=2)):
            self.mode.log.comparisons[Comparison(one, other, equal, line)] = None


class _Watch(TorchFunctionMode):
    """Replaces sizes by integers with their origin, and notes the arguments they are passed as."""

    def __init__(self, dimensions: DimensionLookup, log: NumberLog) -> None:
        super().__init__()
        self.dimensions = dimensions
        self.log = log
        self.running: list[tuple[str, bool]] = [("", True)]  # path, and whether to trace
        self.known_shapes: set[int] = set()  # ids of shapes that building corrects
        self.uses = _WatchedUses(self)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name, keywords = func.__name__, kwargs or {}
        result = func(*args, **keywords)
        path, watching = self.running[-1]
        if not watching:
            self._note_layer(name, path, args, keywords, result)
            return result
        if isinstance(result, torch.Size) or name == "size":
            return self._sizes(result, *args, **keywords)
        if name == "_grouped_mm":
            self.log.grouping_modules.add(path)
        if name in _LIKE:
            self._note_like(args[_LIKE[name]], result)
        if name == "multi_head_attention_forward":
            self._note_attention(args, keywords)
        if name == "numel":
            return self._count(result, args[0])
        shows_size = isinstance(result, int | list | np.ndarray | tuple) and not _of_tensors(result)
        if shows_size and name not in SHOWING_NO_SIZE and args and isinstance(args[0], Tensor):
            self._note_sizes(args[0])  # a length, strides, an array, ...
        if name in PARTING:
            parted = parted_dimension(name, args, keywords)
            self._note_alike([(p, parted) for p in result if p.shape == result[0].shape])
        size_values = set()
        if any(id(value) in self.known_shapes for value in (*args, *keywords.values())):
            return result
        for value, tensor, dimension, groups in size_places(name, args, keywords, result):
            dimensions = self.dimensions(tensor)
            if dimensions is not None and value != -1 and tensor.shape[dimension] > 1:
                size_values.add(id(value))
                number = number_of(value)
                sizing = Sizing(number, dimensions[dimension], path, groups, source_line())
                self.log.sizings.append(sizing)
        # an operator on integer tensors alone computes positions, which are never cut
        operands = [a for a in args if isinstance(a, Tensor)]
        of_values = any(t.is_floating_point() or t.is_complex() for t in operands)
        no_sizes = name in TAKING_NO_SIZES or (bool(operands) and not of_values)
        for value in integers_in((args, keywords)):
            if isinstance(value, TracedInt) and id(value) not in size_values and name not in MAKING:
                sources = () if no_sizes else leaves(value.number)
                self.log.elsewhere |= {s.name for s in sources if isinstance(s, Attribute)}
                self.log.values.append(value.number)
        return result

    def _sizes(self, result: Any, tensor: Any, dim: int | None = None) -> Any:
        dimensions = self.dimensions(tensor) if isinstance(tensor, Tensor) else None
        if dimensions is None:
            return result
        if dim is not None:
            self.log.sizes_read[dimensions[dim]] = None
            return TracedInt(result, SizeOf(dimensions[dim]), self.uses)
        self._note_sizes(tensor)
        pairs = zip(result, dimensions, strict=True)
        return torch.Size([TracedInt(n, SizeOf(d), self.uses) for n, d in pairs])

    def _count(self, result: int, tensor: Tensor) -> int:
        dimensions = self._note_sizes(tensor)
        if dimensions is None:
            return result
        return TracedInt(result, multiply([SizeOf(d) for d in dimensions]), self.uses)

    def _note_sizes(self, tensor: Tensor) -> Sequence[Any] | None:
        """Note that the code reads all sizes of a tensor, and return its dimensions."""
        dimensions = self.dimensions(tensor)
        self.log.sizes_read.update(dict.fromkeys(dimensions or ()))
        return dimensions

    def _note_alike(self, places: Iterable[tuple[Tensor, int]]) -> None:
        """Note that dimensions of tensors must stay equal."""
        known = [(self.dimensions(tensor), d) for tensor, d in places]
        self.log.parts.append([dimensions[d] for dimensions, d in known if dimensions is not None])

    def _note_attention(self, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """Note that the width of input, heads and output in torch's attention must be equal."""
        names = list(signature(functional.multi_head_attention_forward).parameters)
        arguments = dict(zip(names, args, strict=False)) | dict(keywords)
        width, joint_weight = arguments["query"].shape[-1], arguments.get("in_proj_weight")
        heads = [arguments.get(f"{part}_proj_weight") for part in "qkv"]
        if joint_weight is not None and joint_weight.numel():
            heads += joint_weight.split(width)
        output_weight = arguments["out_proj_weight"]
        alike = [(arguments["query"], -1), (output_weight, 0), (output_weight, 1)]
        self._note_alike([*alike, *((weight, 0) for weight in heads if weight is not None)])

    def _note_like(self, model: Tensor, result: Tensor) -> None:
        """Note that a tensor made in the shape of another keeps that shape."""
        pairs = list(zip(self.dimensions(model) or (), self.dimensions(result) or (), strict=False))
        for pair, size, other in zip(pairs, model.shape, result.shape, strict=False):
            if size == other > 1 and model.dim() == result.dim():
                self.log.parts.append(list(pair))

    def _note_layer(
        self, name: str, path: str, args: tuple[Any, ...], keywords: Mapping[str, Any], result: Any
    ) -> None:
        """Note the dimensions that numbers of torch's own layers count."""
        if not isinstance(result, Tensor):
            return
        for what, tensor, dimension, groups in layer_places(name, args, keywords, result):
            dimensions = self.dimensions(tensor)
            if dimensions is not None and tensor.shape[dimension] > 1:
                number = Attribute(f"{path}.{what}" if path else what)
                self.log.layers.append(Sizing(number, dimensions[dimension], path, groups))


def _of_tensors(result: Any) -> bool:
    """Return whether a result is a sequence with tensors, which are traced themselves."""
    return isinstance(result, list | tuple) and any(isinstance(item, Tensor) for item in result)


_LIKE = dict.fromkeys(("zeros_like", "ones_like", "full_like", "empty_like"), 0)
_LIKE |= dict.fromkeys(("view_as", "reshape_as", "expand_as"), 1)


def _is_of_torch(layer: nn.Module) -> bool:
    """Return whether a layer is of, or derived from, a type of torch that stores sizes."""
    torch_types = [k for k in type(layer).__mro__ if k.__module__.startswith("torch.nn.modules.")]
    return any(k is not nn.Module and not issubclass(k, _CONTAINERS) for k in torch_types)


_CONTAINERS = nn.Sequential | nn.ModuleList | nn.ModuleDict


@contextmanager
def watch_numbers(
    module: nn.Module, dimensions: DimensionLookup, log: NumberLog | None = None
) -> Iterator[NumberLog]:
    """Collect the numbers with which a forward pass of ``module`` makes dimensions.

    They are added to ``log``, which may have entries of an earlier forward pass.

    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.heads, self.number = 4, 7
    ...     def forward(self, x):
    ...         return x.view(-1, self.heads, 3)
    >>> net, x = Net(), torch.ones(2, 12)
    >>> with watch_numbers(net, lambda tensor: tensor.shape) as log:
    ...     _ = net(x)
    >>> [(sizing.number, sizing.dimension) for sizing in log.sizings]
    [(Attribute(name='heads'), 4), (3, 3)]
    """
    mode = _Watch(dimensions, log or NumberLog())
    with ExitStack() as undo:
        paths = {}
        for path, layer in module.named_modules():
            is_of_torch = type(layer).__module__.startswith("torch.")
            paths[layer] = (path, not is_of_torch)
            if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
                mode.known_shapes.add(id(layer.normalized_shape))
            for name, value in list(vars(layer).items()):
                if type(value) is int:
                    undo.callback(vars(layer).__setitem__, name, value)
                    source = Attribute(f"{path}.{name}" if path else name)
                    vars(layer)[name] = TracedInt(value, source, mode.uses)
                    if value > 1 and _is_of_torch(layer):
                        mode.log.of_layers[source] = [
                            (dimensions(p) or p.shape)[d]
                            for p in layer.parameters(recurse=False)
                            for d, size in enumerate(p.shape)
                            if size % value == 0
                        ]

        def enter(layer: nn.Module, _: object) -> None:
            mode.running.append(paths.get(layer, mode.running[-1]))

        def leave(*_: object) -> None:
            mode.running.pop()

        undo.callback(global_hooks.register_module_forward_pre_hook(enter).remove)
        undo.callback(global_hooks.register_module_forward_hook(leave, always_call=True).remove)
        undo.enter_context(mode)
        yield mode.log
