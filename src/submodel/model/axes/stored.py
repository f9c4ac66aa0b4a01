"""Which numbers in a module's code make which dimensions: watched while its forward is traced.

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
from dataclasses import dataclass, field
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
    Number,
    SizeOf,
    Tracked,
    Uses,
    factors_of,
    leaves,
    multiplied,
    number_of,
    replace,
)
from submodel.model.axes.source import source_line

Dimensions = Callable[[Tensor], Sequence[Any] | None]
"""What the tracer knows of the dimensions of a tensor; None if it has not seen it."""


@dataclass(frozen=True)
class Made:
    """A number that makes a dimension, or the number of groups into which a layer divides it."""

    number: Number
    dimension: Any  # the tracer's expression; in a `Stored`, its layout
    where: str  # the path of the module that was running
    groups: bool = False
    line: str = field(default="", compare=False)  # of the code, for messages


@dataclass(frozen=True)
class Compared:
    """Two numbers that the code compares: a cut must not change the outcome."""

    one: Number
    other: Number
    equal: bool
    line: str = field(default="", compare=False)


@dataclass(frozen=True)
class Stored:
    """What a forward did with numbers, in terms of layouts."""

    made: tuple[Made, ...] = ()
    elsewhere: frozenset[str] = frozenset()  # attributes that arrived in some other argument
    compared: tuple[Compared, ...] = ()
    layers: tuple[Made, ...] = ()  # numbers of torch's own layers that no tensor of theirs shows
    grouped: frozenset[str] = frozenset()  # paths of modules that multiply matrices in groups
    values: frozenset[str] = frozenset()  # attributes from which a value was computed


@dataclass
class Watched:
    """What a forward did with numbers, in terms of the tracer's expressions."""

    made: list[Made] = field(default_factory=list)
    parts: list[list[Any]] = field(default_factory=list)  # of tensors cut into equal parts
    elsewhere: set[str] = field(default_factory=set)
    values: Uses = field(default_factory=Uses)  # numbers that became values, as scales do
    compared: dict[Compared, None] = field(default_factory=dict)
    layers: list[Made] = field(default_factory=list)
    grouped: set[str] = field(default_factory=set)
    told: dict[Any, None] = field(default_factory=dict)  # dimensions whose size the code has read
    of_layers: dict[Attribute, list[Any]] = field(default_factory=dict)
    """What an integer of torch's own layers may count, as building corrects it with the layer."""

    def scales(self) -> Iterator[Any]:
        """Dimensions whose size became a value: a sub-model computes with its own, smaller one."""
        for leaf in dict.fromkeys(leaf for number in self.values for leaf in leaves(number)):
            if isinstance(leaf, SizeOf):
                yield leaf.dimension
            elif isinstance(leaf, Attribute):
                yield from (m.dimension for m in self.made if m.number == leaf)
                yield from self.of_layers.get(leaf, ())

    def in_hand(self) -> Iterator[Any]:
        """Dimensions whose size the code has read, or stores: it may compute anything from it."""
        yield from self.told
        for made in self.made:
            if any(isinstance(leaf, Attribute) for leaf in leaves(made.number)):
                yield made.dimension

    def multiples(self) -> Iterator[tuple[Any, list[Any]]]:
        """Dimensions made by a product of numbers, each with what those of them count that tell."""
        counts = {m.number: m.dimension for m in self.made if not m.groups}
        for made in self.made:
            factors = list(factors_of(made.number))
            if len(factors) > 1 and not made.groups:
                told = [f.dimension if isinstance(f, SizeOf) else counts.get(f) for f in factors]
                found = [t for f, t in zip(factors, told, strict=True) if not isinstance(f, int)]
                yield made.dimension, [t for t in found if t is not None]

    def alike(self) -> Iterator[list[Any]]:
        """Dimensions that one number counts, or that are equal parts: they must stay equal."""
        counted: dict[Number, list[Any]] = {}

        def count(number: Number, dimension: Any) -> None:
            known = [number.dimension] if isinstance(number, SizeOf) else []
            counted.setdefault(number, known).append(dimension)

        for made in (*self.made, *self.layers):
            if not made.groups and not isinstance(made.number, int):
                count(made.number, made.dimension)
        for seen in self.compared:
            for one, other in ((seen.one, seen.other), (seen.other, seen.one)):
                if seen.equal and isinstance(other, SizeOf) and isinstance(one, Attribute | SizeOf):
                    count(one, other.dimension)
        yield from counted.values()
        yield from self.parts

    def written_out(self) -> dict[Any, str]:
        """Dimensions that a number in the code makes: they must stay as they are. And the lines."""
        found = {m.dimension: m.line for m in self.made if isinstance(m.number, int)}
        for seen in self.compared:
            for one, other in ((seen.one, seen.other), (seen.other, seen.one)):
                if seen.equal and isinstance(one, int) and isinstance(other, SizeOf):
                    found.setdefault(other.dimension, seen.line)
        return found

    def finish(self, layout: Callable[[Any], Any]) -> Stored:
        """The same in terms of layouts, without repetitions."""

        def described(found: Sequence[Made]) -> tuple[Made, ...]:
            return tuple(
                dict.fromkeys(
                    Made(replace(m.number, layout), layout(m.dimension), m.where, m.groups, m.line)
                    for m in found
                )
            )

        compared = dict.fromkeys(
            Compared(replace(c.one, layout), replace(c.other, layout), c.equal, c.line)
            for c in self.compared
        )
        return Stored(
            described(self.made),
            frozenset(self.elsewhere),
            tuple(compared),
            described(self.layers),
            frozenset(self.grouped),
            frozenset(n.name for v in self.values for n in leaves(v) if isinstance(n, Attribute)),
        )


class _Seen(Uses):
    """The numbers that a forward loses, and those that it compares, where it is watched.

    What torch's own layers compute from their numbers is not.
    """

    def __init__(self, mode: _Watch) -> None:
        super().__init__()
        self.mode = mode

    def append(self, number: Number) -> None:
        if self.mode.running[-1][1]:
            self.mode.watched.values.append(number)

    def compare(self, one: Number, other: Number, equal: bool) -> None:
        known = any(not isinstance(leaf, int) for n in (one, other) for leaf in leaves(n))
        if self.mode.running[-1][1] and known and (line := source_line(nearest=2)):
            self.mode.watched.compared[Compared(one, other, equal, line)] = None


class _Watch(TorchFunctionMode):
    """Hands out integers that know their origin, and notes where they arrive."""

    def __init__(self, dimensions: Dimensions, watched: Watched) -> None:
        super().__init__()
        self.dimensions = dimensions
        self.watched = watched
        self.running: list[tuple[str, bool]] = [("", True)]  # path, and whether to watch
        self.known_shapes: set[int] = set()  # shapes that building corrects with their layer
        self.lost = _Seen(self)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        return self._watch(func.__name__, args, given, func(*args, **given))

    def _watch(
        self, name: str, args: tuple[Any, ...], given: Mapping[str, Any], result: Any
    ) -> Any:
        path, watching = self.running[-1]
        if not watching:
            self._note_layer(name, path, args, given, result)
            return result
        if isinstance(result, torch.Size) or name == "size":
            return self._sizes(result, *args, **given)
        if name == "_grouped_mm":
            self.watched.grouped.add(path)
        if name in _LIKE:
            self._note_like(args[_LIKE[name]], result)
        if name == "multi_head_attention_forward":
            self._note_attention(args, given)
        if name == "numel":
            return self._count(result, args[0])
        if isinstance(result, int | list | np.ndarray | tuple) and name not in _TELL_NO_SIZE:
            self._tell(args, result)
        if name in _PARTING:
            self._note_parts(_parted(name, args, given), result)
        placed = set()
        if any(id(value) in self.known_shapes for value in (*args, *given.values())):
            return result
        for value, tensor, dimension, groups in _places(name, args, given, result):
            known = self.dimensions(tensor)
            if known is not None and value != -1 and tensor.shape[dimension] > 1:
                placed.add(id(value))
                made = Made(number_of(value), known[dimension], path, groups, source_line())
                self.watched.made.append(made)
        no_sizes = name in _NO_SIZES or _of_positions(args)
        for value in _integers((args, given)):
            if isinstance(value, Tracked) and id(value) not in placed and name not in _MAKING:
                sources = () if no_sizes else leaves(value.number)
                self.watched.elsewhere |= {s.name for s in sources if isinstance(s, Attribute)}
                self.watched.values.append(value.number)
        return result

    def _sizes(self, result: Any, tensor: Any, dim: int | None = None) -> Any:
        known = self.dimensions(tensor) if isinstance(tensor, Tensor) else None
        if known is None:
            return result
        if dim is not None:
            self.watched.told[known[dim]] = None
            return Tracked(result, SizeOf(known[dim]), self.lost)
        self.watched.told.update(dict.fromkeys(known))
        pairs = zip(result, known, strict=True)
        return torch.Size([Tracked(n, SizeOf(d), self.lost) for n, d in pairs])

    def _count(self, result: int, tensor: Tensor) -> int:
        known = self.dimensions(tensor)
        if known is None:
            return result
        self.watched.told.update(dict.fromkeys(known))
        return Tracked(result, multiplied([SizeOf(d) for d in known]), self.lost)

    def _tell(self, args: tuple[Any, ...], result: Any) -> None:
        """A length, strides, an array, ... show the sizes of the tensor that they come from."""
        if args and isinstance(args[0], Tensor) and not _of_tensors(result):
            known = self.dimensions(args[0])
            self.watched.told.update(dict.fromkeys(known or ()))

    def _note_parts(self, dimension: int, parts: Sequence[Tensor]) -> None:
        known = [self.dimensions(p) for p in parts if p.shape == parts[0].shape]
        self.watched.parts.append([k[dimension] for k in known if k is not None])

    def _note_attention(self, args: tuple[Any, ...], given: Mapping[str, Any]) -> None:
        """Torch's attention as a function has one width for its input, its heads and its output."""
        names = list(signature(functional.multi_head_attention_forward).parameters)
        told = dict(zip(names, args, strict=False)) | dict(given)
        width, joined = told["query"].shape[-1], told.get("in_proj_weight")
        heads = [told.get(f"{part}_proj_weight") for part in "qkv"]
        if joined is not None and joined.numel():
            heads += joined.split(width)
        alike = [(told["query"], -1), (told["out_proj_weight"], 0), (told["out_proj_weight"], 1)]
        alike += [(weight, 0) for weight in heads if weight is not None]
        known = [(self.dimensions(tensor), d) for tensor, d in alike]
        self.watched.parts.append([dims[d] for dims, d in known if dims is not None])

    def _note_like(self, model: Tensor, result: Tensor) -> None:
        """A tensor made in the shape of another keeps to it."""
        known, made = self.dimensions(model), self.dimensions(result)
        if known is not None and made is not None and len(known) == len(made):
            for d, size in enumerate(model.shape):
                if size > 1 and result.shape[d] == size:
                    self.watched.parts.append([known[d], made[d]])

    def _note_layer(
        self, name: str, path: str, args: tuple[Any, ...], given: Mapping[str, Any], result: Any
    ) -> None:
        """What the numbers of torch's own layers count."""
        if not isinstance(result, Tensor):
            return
        for what, tensor, dimension, groups in _numbers_of_layers(name, args, given, result):
            known = self.dimensions(tensor)
            if known is not None and tensor.shape[dimension] > 1:
                number = Attribute(f"{path}.{what}" if path else what)
                self.watched.layers.append(Made(number, known[dimension], path, groups))


def _of_positions(args: tuple[Any, ...]) -> bool:
    """Whether a function computes with whole numbers only: positions, which are never cut."""
    operands = [a for a in args if isinstance(a, Tensor)]
    return bool(operands) and not any(t.is_floating_point() or t.is_complex() for t in operands)


_TELL_NO_SIZE = {"dim", "ndimension", "element_size", "get_device", "__int__", "__index__"}
_TELL_NO_SIZE |= {"__bool__", "is_floating_point", "is_complex", "is_contiguous", "item", "equal"}
_TELL_NO_SIZE |= {"allclose", "is_same_size", "__contains__", "is_nonzero", "is_inference"}


def _of_tensors(result: Any) -> bool:
    """Whether a result is a list of tensors, which tell what they know themselves."""
    return isinstance(result, list | tuple) and any(isinstance(item, Tensor) for item in result)


def _integers(value: Any) -> Iterator[int]:
    """The integers in nested arguments."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _integers(item)
    elif isinstance(value, Mapping):
        yield from _integers(tuple(value.values()))
    elif isinstance(value, slice):
        yield from _integers((value.start, value.stop))


_LIKE = dict.fromkeys(("zeros_like", "ones_like", "full_like", "empty_like"), 0)
_LIKE |= dict.fromkeys(("view_as", "reshape_as", "expand_as"), 1)
_SHAPED = {"view", "reshape", "expand", "zeros", "ones", "empty", "full", "rand", "randn"}
_SHAPED |= {f"new_{name}" for name in ("zeros", "ones", "empty", "full")}
_MAKING = _SHAPED | {"split", "split_with_sizes", "unflatten", "narrow", "pad"}
_MAKING |= {"__getitem__", "__setitem__", "tensor_split", "hsplit", "vsplit", "dsplit"}
_NO_SIZES = {"roll", "topk", "permute", "transpose", "flatten", "unsqueeze", "squeeze", "movedim"}
_NO_SIZES |= {"flip", "select", "unbind", "softmax", "log_softmax", "normalize", "cat", "stack"}
_NO_SIZES |= {"sum", "mean", "amax", "amin", "argmax", "argmin", "sort", "cumsum", "interpolate"}
_NO_SIZES |= {f"{kind}_pool{n}d" for kind in ("max", "avg") for n in (1, 2, 3)}
"""Functions whose integers tell dimensions, places or steps, never how many units there are."""
_GROUPED = {f"conv{n}d": 6 for n in (1, 2, 3)} | {f"conv_transpose{n}d": 6 for n in (1, 2, 3)}
Place = tuple[int, Tensor, int, bool]


_PARTING = {"chunk", "unsafe_chunk", "tensor_split", "hsplit", "vsplit", "dsplit"}


def _parted(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """The dimension that an operator cuts into parts; they stay equal if they are."""
    if name in ("hsplit", "vsplit", "dsplit"):
        return {"hsplit": min(1, int(args[0].dim()) - 1), "vsplit": 0, "dsplit": 2}[name]
    return int(args[2] if len(args) > 2 else kwargs.get("dim", 0))


def _places(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> Iterator[Place]:
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
    elif name in _PARTING and name not in ("chunk", "unsafe_chunk"):
        ends = argument(1, "indices_or_sections", kwargs.get("sections", kwargs.get("indices", 1)))
        if isinstance(ends, tuple | list):
            yield from _prefixes(args[0], _parted(name, args, kwargs), ends)
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
        for back, (left, right) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
            dimension = result.dim() - 1 - back
            yield from _prefixes(result, dimension, (left, -right))
    elif name == "group_norm":
        yield argument(1, "num_groups", 1), result, 1, True
    elif name in _GROUPED and (groups := argument(_GROUPED[name], "groups", 1)) > 1:
        yield groups, argument(1, "weight", result), 0, True
    elif name in _SHAPED:
        for shape in _shapes(args, kwargs):
            pairs = list(zip(shape, result.shape, strict=False))
            if len(shape) == result.dim() and all(s in (-1, n) for s, n in pairs):
                for dimension, size in enumerate(shape):
                    yield size, result, dimension, False
                return


def _numbers_of_layers(
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
    elif name in _GROUPED:
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


def _prefixes(tensor: Tensor, dimension: int, ends: Sequence[int | None]) -> Iterator[Place]:
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


def _is_of_torch(layer: nn.Module) -> bool:
    """Whether a layer is of a type of torch, or derived from one, that has sizes of its own."""
    own = [k for k in type(layer).__mro__ if k.__module__.startswith("torch.nn.modules.")]
    return any(k is not nn.Module and not issubclass(k, _CONTAINERS) for k in own)


_CONTAINERS = nn.Sequential | nn.ModuleList | nn.ModuleDict


@contextmanager
def watch_numbers(
    module: nn.Module, dimensions: Dimensions, before: Watched | None = None
) -> Iterator[Watched]:
    """Collect what numbers the forward of ``module`` makes dimensions with.

    What an earlier forward did, ``before``, is added to.

    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.heads, self.number = 4, 7
    ...     def forward(self, x):
    ...         return x.view(-1, self.heads, 3)
    >>> net, x = Net(), torch.ones(2, 12)
    >>> with watch_numbers(net, lambda tensor: tensor.shape) as seen:
    ...     _ = net(x)
    >>> [(made.number, made.dimension) for made in seen.made]
    [(Attribute(name='heads'), 4), (3, 3)]
    """
    mode = _Watch(dimensions, before or Watched())
    with ExitStack() as undo:
        paths = {}
        for path, layer in module.named_modules():
            own = type(layer).__module__.startswith("torch.")
            paths[layer] = (path, not own)
            if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
                mode.known_shapes.add(id(layer.normalized_shape))
            for name, value in list(vars(layer).items()):
                if type(value) is int:
                    undo.callback(vars(layer).__setitem__, name, value)
                    source = Attribute(f"{path}.{name}" if path else name)
                    vars(layer)[name] = Tracked(value, source, mode.lost)
                    if value > 1 and _is_of_torch(layer):
                        mode.watched.of_layers[source] = [
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
        undo.callback(global_hooks.register_module_forward_hook(leave).remove)
        undo.enter_context(mode)
        yield mode.watched
