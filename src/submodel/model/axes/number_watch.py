"""Watching the numbers in a module's code while its forward is traced: which dimensions they make.

`self.heads = 4` in a user's attention is a size that a cut changes, and nothing marks it as one.
So for the time of one forward such integers, and the sizes that tensors tell, are replaced by
integers that know where they come from. Where one arrives in a view, a split, a slice or the shape
of a new tensor, the dimension that it makes tells what it counts. An integer that makes no
dimension (the number of a layer, a width that only enters a scale) is not a size. What happens
inside torch's own layers is left to those who know them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as global_hooks
from torch.overrides import TorchFunctionMode

from submodel.model.axes.code_numbers import Comparison, NumberLog, Sizing
from submodel.model.axes.number import (
    Attribute,
    Number,
    SizeOf,
    TracedInt,
    Uses,
    leaves,
    multiply,
    number_of,
)
from submodel.model.axes.size_arguments import (
    MAKING,
    PARTING,
    SHOWING_NO_SIZE,
    TAKING_NO_SIZES,
    integers_in,
    layer_places,
    parted_dimension,
    size_places,
)
from submodel.model.axes.source import source_line

DimensionLookup = Callable[[Tensor], Sequence[Any] | None]
"""What the tracer knows of the dimensions of a tensor; None if it has not seen it."""


class _WatchedUses(Uses):
    """The numbers that a forward loses, and those that it compares, where it is watched.

    What torch's own layers compute from their numbers is not.
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
    """Hands out integers that know their origin, and notes where they arrive."""

    def __init__(self, dimensions: DimensionLookup, log: NumberLog) -> None:
        super().__init__()
        self.dimensions = dimensions
        self.log = log
        self.running: list[tuple[str, bool]] = [("", True)]  # path, and whether to watch
        self.known_shapes: set[int] = set()  # shapes that building corrects with their layer
        self.uses = _WatchedUses(self)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = kwargs or {}
        return self._watch(func.__name__, args, keywords, func(*args, **keywords))

    def _watch(
        self, name: str, args: tuple[Any, ...], keywords: Mapping[str, Any], result: Any
    ) -> Any:
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
        if isinstance(result, int | list | np.ndarray | tuple) and name not in SHOWING_NO_SIZE:
            self._tell(args, result)
        if name in PARTING:
            self._note_parts(parted_dimension(name, args, keywords), result)
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
        no_sizes = name in TAKING_NO_SIZES or _of_positions(args)
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
        self.log.sizes_read.update(dict.fromkeys(dimensions))
        pairs = zip(result, dimensions, strict=True)
        return torch.Size([TracedInt(n, SizeOf(d), self.uses) for n, d in pairs])

    def _count(self, result: int, tensor: Tensor) -> int:
        dimensions = self.dimensions(tensor)
        if dimensions is None:
            return result
        self.log.sizes_read.update(dict.fromkeys(dimensions))
        return TracedInt(result, multiply([SizeOf(d) for d in dimensions]), self.uses)

    def _tell(self, args: tuple[Any, ...], result: Any) -> None:
        """A length, strides, an array, ... show the sizes of the tensor that they come from."""
        if args and isinstance(args[0], Tensor) and not _of_tensors(result):
            dimensions = self.dimensions(args[0])
            self.log.sizes_read.update(dict.fromkeys(dimensions or ()))

    def _note_parts(self, dimension: int, parts: Sequence[Tensor]) -> None:
        parts_dimensions = [self.dimensions(p) for p in parts if p.shape == parts[0].shape]
        self.log.parts.append([k[dimension] for k in parts_dimensions if k is not None])

    def _note_attention(self, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """Torch's attention as a function has one width for its input, its heads and its output."""
        names = list(signature(functional.multi_head_attention_forward).parameters)
        arguments = dict(zip(names, args, strict=False)) | dict(keywords)
        width, joint_weight = arguments["query"].shape[-1], arguments.get("in_proj_weight")
        heads = [arguments.get(f"{part}_proj_weight") for part in "qkv"]
        if joint_weight is not None and joint_weight.numel():
            heads += joint_weight.split(width)
        alike = [
            (arguments["query"], -1),
            (arguments["out_proj_weight"], 0),
            (arguments["out_proj_weight"], 1),
        ]
        alike += [(weight, 0) for weight in heads if weight is not None]
        dimensions = [(self.dimensions(tensor), d) for tensor, d in alike]
        self.log.parts.append([dims[d] for dims, d in dimensions if dims is not None])

    def _note_like(self, model: Tensor, result: Tensor) -> None:
        """A tensor made in the shape of another keeps to it."""
        model_dimensions, result_dimensions = self.dimensions(model), self.dimensions(result)
        if (
            model_dimensions is not None
            and result_dimensions is not None
            and len(model_dimensions) == len(result_dimensions)
        ):
            for d, size in enumerate(model.shape):
                if size > 1 and result.shape[d] == size:
                    self.log.parts.append([model_dimensions[d], result_dimensions[d]])

    def _note_layer(
        self, name: str, path: str, args: tuple[Any, ...], keywords: Mapping[str, Any], result: Any
    ) -> None:
        """What the numbers of torch's own layers count."""
        if not isinstance(result, Tensor):
            return
        for what, tensor, dimension, groups in layer_places(name, args, keywords, result):
            dimensions = self.dimensions(tensor)
            if dimensions is not None and tensor.shape[dimension] > 1:
                number = Attribute(f"{path}.{what}" if path else what)
                self.log.layers.append(Sizing(number, dimensions[dimension], path, groups))


def _of_positions(args: tuple[Any, ...]) -> bool:
    """Whether a function computes with whole numbers only: positions, which are never cut."""
    operands = [a for a in args if isinstance(a, Tensor)]
    return bool(operands) and not any(t.is_floating_point() or t.is_complex() for t in operands)


def _of_tensors(result: Any) -> bool:
    """Whether a result is a list of tensors, which tell what they know themselves."""
    return isinstance(result, list | tuple) and any(isinstance(item, Tensor) for item in result)


_LIKE = dict.fromkeys(("zeros_like", "ones_like", "full_like", "empty_like"), 0)
_LIKE |= dict.fromkeys(("view_as", "reshape_as", "expand_as"), 1)


def _is_of_torch(layer: nn.Module) -> bool:
    """Whether a layer is of a type of torch, or derived from one, that has sizes of its own."""
    torch_types = [k for k in type(layer).__mro__ if k.__module__.startswith("torch.nn.modules.")]
    return any(k is not nn.Module and not issubclass(k, _CONTAINERS) for k in torch_types)


_CONTAINERS = nn.Sequential | nn.ModuleList | nn.ModuleDict


@contextmanager
def watch_numbers(
    module: nn.Module, dimensions: DimensionLookup, log: NumberLog | None = None
) -> Iterator[NumberLog]:
    """Collect what numbers the forward of ``module`` makes dimensions with.

    It is added to ``log``, in which an earlier forward may have written.

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
