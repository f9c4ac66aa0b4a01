"""The axes of a model: which dimensions of which tensors are cut together; declared by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from submodel.errors import ConfigError
from submodel.model.axes.code_numbers import CodeNumbers
from submodel.model.axes.layout import Along, FixedPart, Layout, Product
from submodel.model.axes.notebook import axes_html
from submodel.model.axes.table import table

Dimension = str | None | tuple[str | int, ...]
"""An axis by name; None, never cut; or a row-major product of axes and plain sizes."""

CLASSES = "classes"
"""The axis of the output classes: never cut by a capacity, only by the labels a client has."""


@dataclass(frozen=True)
class Axes:
    """The axes of one model and where they lie in its tensors.

    Args:
        sizes: how many units each axis has.
        layouts: by the name of a tensor, how units lie along each of its dimensions.
        frozen: dimensions that are never cut, or only in part, as ``tensor[dimension]``, and why.
        kept_whole: axes that could be cut but that a capacity leaves whole, and why.
        inexact: axes whose units some operators mix other than by weights: cutting is not masking.
        unused_tensors: tensors that the forward never read.
        code_numbers: what numbers in the code make dimensions, for building small modules; None if
            not traced.
        measured: the capacities at which a sub-model was built and held against the masked model.
        doubt: why it is not known whether the axes that nothing speaks against are exact; or empty.
        lines: of ``frozen`` and ``kept_whole``, the lines of the model's code to change, where
            there is one.
        notes: where the code left a choice what a cut changes, and why a cut of unequal shares, as
            Bernoulli draws make, cannot be built.
    """

    sizes: Mapping[str, int]
    layouts: Mapping[str, tuple[Layout, ...]] = field(repr=False)
    frozen: Mapping[str, str] = field(default_factory=dict, repr=False)
    kept_whole: Mapping[str, str] = field(default_factory=dict, repr=False)
    inexact: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    unused_tensors: tuple[str, ...] = field(default=(), repr=False)
    code_numbers: CodeNumbers | None = field(default=None, repr=False)
    measured: tuple[float, ...] = field(default=(), repr=False, compare=False)
    doubt: str = field(default="nobody has measured it", repr=False, compare=False)
    lines: Mapping[str, str] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @property
    def cut_by_capacity(self) -> dict[str, int]:
        """The axes that a capacity cuts: all but the classes and those kept whole."""
        return {
            n: size for n, size in self.sizes.items() if n != CLASSES and n not in self.kept_whole
        }

    @cached_property
    def cut_dimensions(self) -> Sequence[tuple[str, int, Layout, frozenset[str]]]:
        """Every tensor's dimensions that some axis cuts: how, and which axes.

        Equal layouts are one and the same object here, so that its id tells it from others.
        """
        layouts_by_value: dict[Layout, Layout] = {}
        return [
            (name, d, layouts_by_value.setdefault(layout, layout), frozenset(layout.axes()))
            for name, layouts in self.layouts.items()
            for d, layout in enumerate(layouts)
            if not isinstance(layout, FixedPart)
        ]

    @property
    def exact(self) -> bool | None:
        """Whether a sub-model computes what the masked model does; None if that is not known.

        No: `inexact` names an operator, a size that became a value, or a measured difference. Yes:
        it was measured, or the code never had the size of such an axis in hand.
        """
        if any(axis in self.inexact for axis in self.cut_by_capacity):
            return False
        return None if self.doubt else True

    def table(self, most: int = 4) -> str:
        """The axes as text.

        Args:
            most: how many members of each axis are shown at most.

        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
        >>> members = {"0.weight": ("hidden",), "0.bias": ("hidden",), "1.weight": (None, "hidden")}
        >>> print(declare(dict(net.named_parameters()), members))
        axis    size  members
        hidden     8  0.weight[0], 0.bias[0], 1.weight[1]
        """
        return table(self, most)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return axes_html(self)


def declare(
    tensors: Mapping[str, torch.Tensor], members: Mapping[str, tuple[Dimension, ...]]
) -> Axes:
    """Axes from a table: tensor name -> what lies along each of its dimensions.

    Sizes are read off the tensors and must agree; trailing dimensions may be left out, and tensors
    that are not named are never cut.

    Args:
        tensors: the model's parameters and buffers by name.
        members: by the name of a tensor, the axis along each of its dimensions, or None.

    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> table = {"0.weight": ("hidden",), "0.bias": ("hidden",), "2.weight": (None, "hidden")}
    >>> declare(dict(net.named_parameters()), table).sizes
    {'hidden': 8}
    """
    if not isinstance(tensors, Mapping):
        raise ConfigError(
            [
                f"axes: a {type(tensors).__name__} is not tensors by name; "
                "give dict(model.named_parameters())"
            ]
        )
    if not isinstance(members, Mapping):
        raise ConfigError(
            [f"axes: a {type(members).__name__} is not a table of tensor name -> dimensions"]
        )
    sizes: dict[str, int] = {}
    problems: list[str] = []

    def one(axis: str, size: int, where: str) -> Along:
        if sizes.setdefault(axis, size) != size:
            problems.append(f"{where}: axis {axis!r} has size {size} here, {sizes[axis]} before")
        return Along(axis, size)

    def layout(entry: Dimension, size: int, where: str) -> Layout:
        if entry is None:
            return FixedPart(size)
        if isinstance(entry, str):
            return one(entry, size, where)
        parts = entry if isinstance(entry, tuple | list) else ()
        plain_sizes = [part for part in parts if isinstance(part, int)]
        names = [part for part in parts if isinstance(part, str)]
        plain_size = 1
        for part in plain_sizes:
            plain_size *= part
        if len(names) != 1 or min(plain_sizes, default=1) < 1 or size % plain_size:
            problems.append(f"{where}: {entry!r} does not make up a dimension of size {size}")
            return FixedPart(size)
        return Product(
            tuple(
                FixedPart(p) if isinstance(p, int) else one(p, size // plain_size, where)
                for p in entry
            )
        )

    layouts: dict[str, tuple[Layout, ...]] = {
        name: tuple(FixedPart(size) for size in tensor.shape) for name, tensor in tensors.items()
    }
    for name, dimensions in members.items():
        if name not in tensors:
            problems.append(f"axes: {name!r} is not a tensor of the model")
            continue
        if isinstance(dimensions, str) or not isinstance(dimensions, Sequence):
            problems.append(
                f"axes.{name}: {dimensions!r} is not a tuple with an entry for each dimension, "
                "as ('hidden', None)"
            )
            continue
        shape = tensors[name].shape
        if len(dimensions) > len(shape):
            problems.append(f"axes.{name}: {len(dimensions)} dimensions given, it has {len(shape)}")
            continue
        entries = (*dimensions, *(None for _ in range(len(shape) - len(dimensions))))
        layouts[name] = tuple(
            layout(entry, size, f"axes.{name}[{d}]")
            for d, (entry, size) in enumerate(zip(entries, shape, strict=True))
        )
    if problems:
        raise ConfigError(problems)
    return Axes(sizes, layouts)
