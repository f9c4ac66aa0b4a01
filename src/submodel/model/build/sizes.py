"""What a plain number stored in a module becomes under a cut, where the layouts leave no doubt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, combinations

from torch import nn

from submodel.model.axes.layout import Along, Concatenation, FixedPart, Layout, Product
from submodel.model.cut import UnitCut

Choices = Mapping[int, frozenset[int]]
"""A size in the full model -> what the parts of that size become in the sub-model."""


def kept_size(layout: Layout, sizes: Mapping[str, int]) -> int:
    """The size that is left of a layout when each axis keeps ``sizes[axis]`` units.

    >>> kept_size(Product((Along("heads", 4), FixedPart(6))), {"heads": 3})
    18
    """
    match layout:
        case FixedPart(size):
            return size
        case Along(axis, size):
            return sizes.get(axis, size)
        case Product(parts):
            product = 1
            for part in parts:
                product *= kept_size(part, sizes)
            return product
        case Concatenation(parts):
            return sum(kept_size(part, sizes) for part in parts)


def kept_groups(
    layout: Layout, width: int, sizes: Mapping[str, int]
) -> list[tuple[int, int]] | None:
    """A layout read as groups of ``width`` units: how many are left, and how many units of each.

    None where the layout does not say which group a unit belongs to, so that it would depend on
    the units drawn.

    >>> kept_groups(Product((Along("group", 4), Along("unit", 6))), 6, {"group": 3, "unit": 2})
    [(3, 2)]
    """
    if layout.size % width:
        return None
    if layout.size == width:
        return [(1, kept_size(layout, sizes))]
    if width == 1:
        return [(kept_size(layout, sizes), 1)]
    if kept_size(layout, sizes) == layout.size:
        return [(layout.size // width, width)]
    if isinstance(layout, Concatenation):
        parts = [kept_groups(part, width, sizes) for part in layout.parts]
        return None if None in parts else [g for part in parts if part is not None for g in part]
    if isinstance(layout, Product):
        first, rest = layout.parts[0], Product(layout.parts[1:])
        outer = kept_size(first, sizes)
        if rest.size > width:
            inner = kept_groups(rest, width, sizes)
            return None if inner is None else [(outer * n, units) for n, units in inner]
        if width % rest.size == 0:
            inner = kept_groups(first, width // rest.size, sizes)
            units_left = kept_size(rest, sizes)
            return None if inner is None else [(n, units * units_left) for n, units in inner]
    return None


def pieces(layout: Layout) -> Iterator[Layout]:
    """The layout and all that views and splits can make of it: runs of its parts, and theirs.

    >>> [p.size for p in pieces(Product((Along("heads", 4), FixedPart(6))))]
    [24, 4, 6]
    """
    yield layout
    if isinstance(layout, Product | Concatenation):
        kind, parts = type(layout), layout.parts
        for start, end in combinations(range(len(parts) + 1), 2):
            if 1 < end - start < len(parts):
                yield kind(parts[start:end])
        for part in parts:
            yield from pieces(part)


def _choices(layouts: Iterable[Layout], sizes: Mapping[str, int]) -> Choices:
    choices: dict[int, set[int]] = {}
    for piece in chain.from_iterable(pieces(layout) for layout in set(layouts)):
        choices.setdefault(piece.size, set()).add(kept_size(piece, sizes))
    return {size: frozenset(becomes) for size, becomes in choices.items()}


class Sizes:
    """For each module of a model: which sizes its own tensors and those around it have and keep."""

    def __init__(self, module: nn.Module, cut: UnitCut) -> None:
        self.kept_counts = {
            axis: len(cut.units[axis]) if axis in cut.units else size
            for axis, size in cut.axes.sizes.items()
        }
        tensors = chain(
            module.named_parameters(remove_duplicate=False),
            module.named_buffers(remove_duplicate=False),
        )
        first: dict[int, str] = {}  # a tied tensor is known by the first of its names
        self._layouts: dict[str, list[Layout]] = {}
        for name, tensor in tensors:
            name_of_all = first.setdefault(id(tensor), name)
            layouts = cut.axes.layouts.get(name_of_all, cut.axes.layouts.get(name, ()))
            self._layouts.setdefault(name.rpartition(".")[0], []).extend(layouts)
        self._modules = dict(module.named_modules(remove_duplicate=False))
        self._levels: dict[str, list[Choices]] = {}

    def stored_integer(self, name: str) -> int:
        """An integer that the full model stores."""
        path, _, attribute = name.rpartition(".")
        return int(getattr(self._modules[path], attribute))

    def inside(self, path: str, size: int) -> frozenset[int]:
        """What ``size`` becomes in the nearest tensors of a module: its own, its children's, ...

        Empty: none has a part of that size. More than one: it cannot be told.
        """
        if path not in self._levels:
            self._levels[path] = [
                _choices(
                    chain.from_iterable(self._layouts.get(p, ()) for p in level), self.kept_counts
                )
                for level in self._by_depth(path)
            ]
        return next((level[size] for level in self._levels[path] if size in level), frozenset())

    def around(self, path: str, size: int) -> frozenset[int]:
        """The same for a module without tensors: in the nearest module that contains it."""
        while path:
            path = path.rpartition(".")[0]
            if choices := self.inside(path, size):
                return choices
        return frozenset()

    def _by_depth(self, path: str) -> Iterator[list[str]]:
        """The module, its children, their children, ...; plain containers are looked through."""
        level = [path]
        while level:
            yield level
            level = [child for parent in level for child in self._children(parent)]

    def _children(self, path: str) -> Iterator[str]:
        for name, child in self._modules[path].named_children():
            below = f"{path}.{name}" if path else name
            if isinstance(child, nn.Sequential | nn.ModuleList | nn.ModuleDict):
                yield from self._children(below)
            else:
                yield below
