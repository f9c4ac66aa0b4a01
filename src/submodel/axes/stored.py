"""Which plain integers of a module are sizes, and of what: watched while its forward is traced.

`self.heads = 4` in a user's attention is a size that a cut changes, and nothing marks it as one.
So for the time of one forward such integers are replaced by integers that know where they come
from. Where one arrives in a view, a split, a slice or the shape of a new tensor, the dimension that
it makes tells what it counts. An integer that makes no dimension (the number of a layer, a width
that only enters a scale) is not a size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from submodel.axes.layout import Layout

D = TypeVar("D")


@dataclass
class Uses(Generic[D]):
    """Where one integer arrived: the dimensions that it made, as the tracer describes them."""

    exact: list[D] = field(default_factory=list)
    computed: list[D] = field(default_factory=list)  # made by a number computed from it
    elsewhere: bool = False  # it arrived in some other argument


@dataclass
class Watched(Generic[D]):
    """What a forward did with the integers that its modules store."""

    uses: dict[str, Uses[D]] = field(default_factory=dict)
    parts: list[list[D]] = field(default_factory=list)  # of tensors cut into equal parts

    def alike(self) -> Iterator[list[D]]:
        """Dimensions that must keep equal sizes: one number counts them, or they are equal parts.

        A sub-model in which they differed could not be built.
        """
        yield from (uses.exact for uses in self.uses.values() if len(uses.exact) > 1)
        yield from self.parts


@dataclass(frozen=True)
class StoredSize:
    """What an integer attribute counts."""

    exact: tuple[Layout, ...] = ()
    computed: tuple[Layout, ...] = ()
    elsewhere: bool = False


class _Size(int):
    """An integer that remembers the attributes it comes from, also through arithmetic."""

    sources: frozenset[str]
    computed: bool

    def __new__(cls, value: int, sources: frozenset[str], computed: bool = False) -> _Size:
        made = super().__new__(cls, value)
        made.sources, made.computed = sources, computed
        return made

    def __deepcopy__(self, memo: object) -> _Size:
        return self


def _remembering(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def operate(self: _Size, *others: Any) -> Any:
        value = plain(self, *others)
        if type(value) is not int:
            return value
        sources = [o.sources for o in others if isinstance(o, _Size)]
        return _Size(value, self.sources.union(*sources), computed=True)

    return operate


for _name in ("add", "sub", "mul", "floordiv", "mod", "pow"):
    setattr(_Size, f"__{_name}__", _remembering(f"__{_name}__"))
    setattr(_Size, f"__r{_name}__", _remembering(f"__r{_name}__"))
for _name in ("__neg__", "__abs__"):
    setattr(_Size, _name, _remembering(_name))


class _Watch(TorchFunctionMode):
    """Notes what the integers that know their source are used for."""

    def __init__(self, dimensions: Callable[[Tensor], Sequence[D] | None]) -> None:
        super().__init__()
        self.dimensions = dimensions
        self.watched: Watched[Any] = Watched()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        result = func(*args, **given)
        if func.__name__ == "chunk":
            self._note_parts(args[2] if len(args) > 2 else given.get("dim", 0), result)
        arrived = [size for size in _integers((args, given)) if isinstance(size, _Size)]
        if arrived:
            placed = set()
            for size, tensor, dimension in _places(func.__name__, args, given, result):
                known = self.dimensions(tensor)
                if isinstance(size, _Size) and known is not None:
                    placed.add(id(size))
                    self._note(size, known[dimension])
            for size in arrived:
                if id(size) not in placed:
                    for source in size.sources:
                        self.watched.uses.setdefault(source, Uses()).elsewhere = True
        return result

    def _note_parts(self, dimension: int, parts: Sequence[Tensor]) -> None:
        known = [self.dimensions(p) for p in parts if p.shape == parts[0].shape]
        self.watched.parts.append([k[dimension] for k in known if k is not None])

    def _note(self, size: _Size, dimension: Any) -> None:
        for source in size.sources:
            uses = self.watched.uses.setdefault(source, Uses())
            (uses.computed if size.computed else uses.exact).append(dimension)


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


def _places(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> Iterator[tuple[int, Tensor, int]]:
    """Which integer among the arguments makes which dimension of which resulting tensor."""
    if name in ("split", "split_with_sizes"):
        sizes = args[1] if len(args) > 1 else next(iter(_sequences((), kwargs)), 0)
        dimension = args[2] if len(args) > 2 else kwargs.get("dim", 0)
        parts = [sizes] * len(result) if isinstance(sizes, int) else sizes
        for size, part in zip(parts, result, strict=False):
            if part.shape[dimension] == size:
                yield size, part, dimension
        return
    if not isinstance(result, Tensor):
        return
    if name == "unflatten" and len(args) == 3:
        for offset, size in enumerate(args[2]):
            yield size, result, args[1] % args[0].dim() + offset
    elif name in ("layer_norm", "rms_norm"):
        for back, size in enumerate(reversed(args[1])):
            yield size, result, result.dim() - 1 - back
    elif name == "narrow" and len(args) == 4:
        yield args[3], result, args[1]
    elif name == "__getitem__":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        for part in index:
            if isinstance(part, slice) and part.start is None and isinstance(part.stop, int):
                matching = [d for d, n in enumerate(result.shape) if n == part.stop]
                if len(matching) == 1:
                    yield part.stop, result, matching[0]
    elif name in _SHAPED:
        for shape in _sequences(args, kwargs):
            pairs = list(zip(shape, result.shape, strict=False))
            if len(shape) == result.dim() and all(s in (-1, n) for s, n in pairs):
                for dimension, size in enumerate(shape):
                    yield size, result, dimension
                return


_SHAPED = {"view", "reshape", "expand", "zeros", "ones", "empty", "full", "rand", "randn"}
_SHAPED |= {f"new_{name}" for name in ("zeros", "ones", "empty", "full")}


def _sequences(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    """Each list or tuple among the arguments, and the bare integers as one."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, tuple | list) and all(isinstance(item, int) for item in value):
            yield value
    yield [value for value in args if isinstance(value, int)]


@contextmanager
def watch_integers(
    module: nn.Module, dimensions: Callable[[Tensor], Sequence[D] | None]
) -> Iterator[Watched[D]]:
    """Collect what the integers of all modules that are not torch's own are used for.

    ``dimensions`` tells what is known of a tensor that a function returned. Attributes are named
    as tensors are, by the path of their module.

    >>> import torch
    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.heads, self.number = 4, 7
    ...     def forward(self, x):
    ...         return x.view(len(x), self.heads, -1)
    >>> net = Net()
    >>> with watch_integers(net, lambda tensor: [f"of size {n}" for n in tensor.shape]) as seen:
    ...     _ = net(torch.ones(2, 12))
    >>> seen.uses
    {'heads': Uses(exact=['of size 4'], computed=[], elsewhere=False)}
    """
    replaced: list[tuple[nn.Module, str, int]] = []
    mode = _Watch(dimensions)
    try:
        for path, layer in module.named_modules():
            if type(layer).__module__.startswith("torch."):
                continue
            for name, value in list(vars(layer).items()):
                if type(value) is int:
                    replaced.append((layer, name, value))
                    source = f"{path}.{name}" if path else name
                    vars(layer)[name] = _Size(value, frozenset((source,)))
        with mode:
            yield mode.watched
    finally:
        for layer, name, value in replaced:
            vars(layer)[name] = value
