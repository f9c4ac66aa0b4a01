"""The axes of a model: the dimensions of tensors that are cut together; declaration by hand.

Axes are saved as JSON for later processes of the same run. The dataclasses of axes, layouts and
numbers define the form of the file; their aliases are the original keys, which stay when attributes
are renamed (`tests/compatibility` checks this).
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from submodel.core.errors import ConfigError, PlanError, refuse
from submodel.core.files import UnreadableError, parse_typed
from submodel.core.tables import card, cell, grid_of_cells, line_of_text, strip
from submodel.model.axes.layout import (
    KIND,
    Along,
    FixedPart,
    Indices,
    Layout,
    Product,
    Saved,
    Size,
    atoms,
)
from submodel.model.axes.number import CodeNumbers


@lru_cache(maxsize=1 << 12)
def units_held(capacity: float, size: int) -> int:
    """The number of ``size`` units that a capacity holds: capacity x size, rounded up.

    >>> units_held(0.25, 64), units_held(0.25, 10), units_held(1 / 16, 4)
    (16, 3, 1)
    """
    return math.ceil(Fraction(capacity).limit_denominator(1 << 20) * size)


def prefix(size: int, length: int) -> NDArray[np.bool_]:
    """A mask of the first ``length`` units."""
    return np.arange(size) < length


def pack_units(units: Indices, size: int) -> str:
    """Encode positions as one bit per unit, the first unit first, in base64.

    >>> pack_units(np.array([0, 2, 3]), 4)
    'sA=='
    """
    mask = np.zeros(size, np.bool_)
    mask[units] = True
    return base64.b64encode(np.packbits(mask).tobytes()).decode("ascii")


def unpack_units(text: str, size: int) -> NDArray[np.bool_]:
    """Decode the mask of `pack_units`; raise `ValueError` for a text of another length.

    >>> unpack_units("sA==", 4)
    array([ True, False,  True,  True])
    """
    bits = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    if len(bits) != -(-size // 8):
        raise ValueError(f"{len(bits)} bytes are not the bits of {size} units")
    return np.unpackbits(bits, count=size).astype(np.bool_)


def members(axes: Axes, axis: str) -> list[tuple[str, Layout]]:
    """The dimensions that contain an axis, as ``tensor[dimension]``, with their layouts."""
    return [
        (f"{name}[{d}]", layout)
        for name, layouts in axes.layouts.items()
        for d, layout in enumerate(layouts)
        if axis in layout.axes()
    ]


def _first(names: list[str], most: int) -> str:
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return ", ".join(names[:most] + more)


def _part(layout: Layout, axis: str, outermost: bool = False) -> str:
    if isinstance(layout, Along) and layout.axis == axis:
        return "_"
    if isinstance(layout, FixedPart | Along) or axis not in layout.axes():
        return str(layout.size)
    sign = " x " if isinstance(layout, Product) else " + "
    text = sign.join(_part(part, axis) for part in layout.parts)
    return text if outermost else f"({text})"


_MOST_AXES = 24
_MOST_MEMBERS = 3


def _bar(size: int, largest: int) -> str:
    cells = 48
    filled_cells = max(1, round(cells * size / largest))
    levels = [1.0] * filled_cells + [0.0] * (cells - filled_cells)
    return strip(levels, f"{size} units")


def _members(axes: Axes, axis: str) -> str:
    names = [where for where, _ in members(axes, axis)]
    more = len(names) - _MOST_MEMBERS
    return ", ".join(names[:_MOST_MEMBERS]) + (f" and {more} more" if more > 0 else "")


def _exactness(axes: Axes) -> str:
    if axes.exact is None:
        return f"not known; {axes.doubt}"
    if not axes.exact:
        names = [axis for axis in axes.inexact if axis in axes.cut_by_capacity]
        return f"no; with {', '.join(names)} cut, statistics or sizes depend on the units kept"
    at = ", ".join(f"{capacity:g}" for capacity in axes.measured)
    return f"yes, exactly (measured at capacities {at})" if at else "yes, by its operators"


Dimension = str | None | tuple[str | int, ...]
"""An axis by name; None, never cut; or a row-major product of axes and plain sizes."""

CLASSES = "classes"
"""The axis of the output classes: cut by the labels of a client, never by a capacity."""


@dataclass(frozen=True)
class Axes(Saved):
    """The axes of one model and their layout in its tensors.

    Args:
        sizes: the number of units of each axis.
        layouts: by the name of a tensor, the layout of units along each of its dimensions.
        frozen: dimensions that are never, or only partly, cut, as ``tensor[dimension]``, with the
            reason.
        kept_whole: axes that could be cut but that a capacity leaves whole, with the reason.
        inexact: axes whose units some operators mix other than by weights, so that cutting is not
            masking.
        unused_tensors: tensors that the forward pass never read.
        code_numbers: the numbers in the code that make dimensions, for building small modules; None
            without a trace.
        measured: the capacities at which a sub-model was compared with the masked model.
        doubt: the reason why exactness is not known for axes that are not inexact; or empty.
        lines: the lines of the model's code to change for entries of ``frozen`` and ``kept_whole``.
        notes: ambiguous choices of the trace, and reasons why a cut with unequal fractions of axes,
            as by Bernoulli draws, cannot be built.
        kind: the name of the class in a saved object; not to be passed.
    """

    kind: Annotated[Literal["Axes"], KIND] = field(default="Axes", kw_only=True, repr=False)
    sizes: Mapping[str, Size]
    layouts: Mapping[str, tuple[Layout, ...]] = field(repr=False)
    frozen: Mapping[str, str] = field(default_factory=dict, repr=False)
    kept_whole: Annotated[Mapping[str, str], Field(alias="kept")] = field(
        default_factory=dict, repr=False
    )
    inexact: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    unused_tensors: Annotated[tuple[str, ...], Field(alias="unused")] = field(
        default=(), repr=False
    )
    code_numbers: Annotated[CodeNumbers | None, Field(alias="stored")] = field(
        default=None, repr=False
    )
    measured: tuple[float, ...] = field(default=(), repr=False, compare=False)
    doubt: str = field(default="not measured", repr=False, compare=False)
    lines: Mapping[str, str] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @property
    def cut_by_capacity(self) -> dict[str, int]:
        """The axes that a capacity cuts: all except the classes and those kept whole."""
        return {
            n: size for n, size in self.sizes.items() if n != CLASSES and n not in self.kept_whole
        }

    @cached_property
    def cut_dimensions(self) -> Sequence[tuple[str, int, Layout, frozenset[str]]]:
        """The dimensions that some axis cuts: tensor, dimension, layout, axes.

        Equal layouts are one object, so that their id is a key.
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
        """Whether a sub-model computes the masked model; None if not known.

        False: `inexact` names an operator, a size that became a value, or a measured difference.
        True: it was measured, or the code cannot compute with the size of such an axis.
        """
        if any(axis in self.inexact for axis in self.cut_by_capacity):
            return False
        return None if self.doubt else True

    def table(self, most: int = 4) -> str:
        """Table of the axes, at most ``most`` members of each, and of the frozen dimensions.

        Within a product or a concatenation, ``_`` stands for the axis and a number for another
        part: ``fc.weight[1] = _ x 16`` results from a flatten of 4 x 4 images.

        Args:
            most: the largest number of members to show per axis.

        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
        >>> members = {"0.weight": ("hidden",), "0.bias": ("hidden",), "1.weight": (None, "hidden")}
        >>> print(declare(dict(net.named_parameters()), members))
        axis    size  members
        hidden     8  0.weight[0], 0.bias[0], 1.weight[1]
        """
        width = max([4, *(len(name) for name in self.sizes)])
        lines = [f"{'axis':{width}}  size  members"]
        for axis, size in self.sizes.items():
            places = [
                where if isinstance(layout, Along) else f"{where} = {_part(layout, axis, True)}"
                for where, layout in members(self, axis)
            ]
            lines.append(f"{axis:{width}}  {size:4}  {_first(places, most)}")
            remarks = [f"not exact: {words}" for words in self.inexact.get(axis, ())]
            if axis in self.kept_whole:
                remarks.insert(0, f"kept whole: {self.kept_whole[axis]}{self._at(axis)}")
            lines += [f"{'':{width}}        {remark}" for remark in remarks]
        reasons: dict[str, list[str]] = {}
        for dimension, reason in self.frozen.items():
            reasons.setdefault(f"{reason}{self._at(dimension)}", []).append(dimension)
        lines += [f"frozen, {why}: {_first(places, most)}" for why, places in reasons.items()]
        if self.unused_tensors:
            lines.append(f"never read: {', '.join(self.unused_tensors)}")
        return "\n".join(lines)

    def _at(self, where: str) -> str:
        return f", at {self.lines[where]}" if where in self.lines else ""

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        """The representation in a notebook."""
        largest = max(self.sizes.values(), default=1)
        rows = [
            [cell(axis), cell(f"{size:,}"), _bar(size, largest), cell(_members(self, axis))]
            for axis, size in list(self.sizes.items())[:_MOST_AXES]
        ]
        cut_axes = self.cut_by_capacity
        lines = []
        if (more := len(self.sizes) - _MOST_AXES) > 0:
            lines.append(f"and {more} more axes")
        lines += [f"kept whole: {axis}: {reason}" for axis, reason in self.kept_whole.items()]
        lines.append(f"sub-model = masked model: {_exactness(self)}")
        if self.frozen:
            count = len(self.frozen)
            dimensions = "1 dimension is" if count == 1 else f"{count} dimensions are"
            lines.append(f"{dimensions} never or only partly cut: print(axes) shows the reasons")
        title = f"Axes: {len(self.sizes)}, of which capacities cut {len(cut_axes)}"
        table = grid_of_cells(("axis", "units", "", "where"), rows, numbers=(1,))
        return card(title, table, *map(line_of_text, lines))


def declare(
    tensors: Mapping[str, torch.Tensor], members: Mapping[str, tuple[Dimension, ...]]
) -> Axes:
    """Make axes from a table: tensor name -> the axis along each of its dimensions.

    Sizes are those of the tensors and must agree; trailing dimensions may be omitted, and tensors
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
        problem = "is not a mapping of names to tensors; give dict(model.named_parameters())"
        raise ConfigError(f"axes: a {type(tensors).__name__} {problem}")
    if not isinstance(members, Mapping):
        problem = "is not a table of tensor name -> dimensions"
        raise ConfigError(f"axes: a {type(members).__name__} {problem}")
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
        plain_size = math.prod(plain_sizes)
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
                "such as ('hidden', None)"
            )
            continue
        shape = tensors[name].shape
        if len(dimensions) > len(shape):
            problems.append(
                f"axes.{name}: {len(dimensions)} dimensions given, the tensor has {len(shape)}"
            )
            continue
        entries = (*dimensions, *(None for _ in range(len(shape) - len(dimensions))))
        layouts[name] = tuple(
            layout(entry, size, f"axes.{name}[{d}]")
            for d, (entry, size) in enumerate(zip(entries, shape, strict=True))
        )
    refuse(problems)
    return Axes(sizes, layouts)


def to_json(axes: Axes) -> str:
    """All fields of the axes as JSON.

    >>> from submodel.model.axes.layout import Along
    >>> axes = Axes({"hidden": 8}, {"w": (Along("hidden", 8), FixedPart(3))})
    >>> from_json(to_json(axes)) == axes
    True
    """
    return json.dumps(_adapter().dump_python(axes, mode="json", by_alias=True))


def from_json(text: str) -> Axes:
    """Read the JSON of `to_json`; raise `PlanError` for anything else.

    >>> from_json('{"": "Axes", "sizes": {"hidden": -1}, "layouts": {}}')
    Traceback (most recent call last):
    submodel.core.errors.PlanError: not the axes of a model: Axes.sizes.hidden: input should be ...
    """
    try:
        axes = parse_typed(_adapter(), text)
        if not isinstance(axes, Axes):
            raise ValueError("a layout")
        for layouts in axes.layouts.values():
            for part in (atom for layout in layouts for atom in atoms(layout)):
                if axes.sizes.get(part.axis) != part.size:
                    raise ValueError(f"no axis {part.axis[:60]!r} of {part.size}")
    except (UnreadableError, ValueError) as error:  # ValueError: text that cannot be encoded
        raise PlanError(f"not the axes of a model: {str(error)[:200]}") from None
    return axes


@cache
def _adapter() -> TypeAdapter[Axes | FixedPart]:
    """The adapter of axes; it has a second type, so that objects must contain their kind."""
    return TypeAdapter(Annotated[Axes | FixedPart, Field(discriminator="kind")])


def axes_fingerprint(axes: Axes) -> str:
    """A hash that is equal for axes that cut equally, to compare server and client.

    >>> from submodel.model.axes.layout import Along
    >>> axes_fingerprint(Axes({"hidden": 8}, {"w": (Along("hidden", 8), FixedPart(3))}))
    '7e197dc5eccb3290'
    """
    layouts = sorted(axes.layouts.items(), key=lambda item: item[0])
    text = repr((sorted(axes.sizes.items()), layouts)).replace("FixedPart(", "Fixed(")
    return hashlib.sha256(text.encode()).hexdigest()[:16]
