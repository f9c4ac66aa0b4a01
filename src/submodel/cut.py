"""Cuts: what one client holds in one round, and how it is gathered from and added to the whole.

A *unit* cut keeps whole units of every axis, so the client's tensors are really smaller. A
*coordinate* cut keeps single weights: the tensors keep their shape and the rest is zero.
Both are immutable and know nothing of models, engines or rounds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor, nn

from submodel.axes import CLASSES, Axes
from submodel.axes.layout import Fixed, Indices, Units
from submodel.errors import PlanError
from submodel.randomness import generator
from submodel.schemes import Draw, Scheme, draw_mask

T = TypeVar("T")
Tensors = Mapping[str, Tensor]
Granularity = Literal["unit", "coordinate"]
Where = slice | Tensor
Plan = Mapping[str, tuple[tuple[int, Indices], ...]]
"""Tensor -> (dimension, kept positions), for each dimension that is cut."""
COORDINATES = "coordinates"
"""The name of the one axis at coordinate granularity: all weights as a flat vector."""


class Cut(Protocol):
    """What a client holds of the whole."""

    def part(self, name: str, whole: Tensor) -> Tensor:
        """What the client holds of one tensor; may share its memory."""
        ...

    def add(self, name: str, whole: Tensor, value: Tensor | float, skip: int = 0) -> None:
        """Add ``value`` to the held part of ``whole``, in place; ``skip`` leading dimensions."""
        ...

    def mask(self, name: str) -> Tensor | None:
        """The 0/1 mask that training must respect; None where the tensor itself is smaller."""
        ...

    def shape(self, name: str, whole: Sequence[int]) -> tuple[int, ...]:
        """The shape that a tensor of the shape ``whole`` has at the client."""
        ...

    def held(self, name: str, shape: Sequence[int]) -> int:
        """How many values of a tensor of this shape the client holds."""
        ...

    @property
    def shape_key(self) -> tuple[tuple[str, int], ...]:
        """Equal for cuts whose sub-models have equal shapes."""
        ...

    @property
    def same_key(self) -> Hashable:
        """Equal for cuts that are known to hold the same."""
        ...


class _Planned:
    """A cut by a plan: for each tensor that is cut, the positions kept along its dimensions."""

    plan: Plan

    @cached_property
    def _where(self) -> dict[str, tuple[tuple[int, Where], ...]]:
        """The plan with runs as slices, which need no index arithmetic, and the rest as tensors."""
        made: dict[int, Where] = {}

        def where(kept: Indices) -> Where:
            if id(kept) not in made:
                run = len(kept) and bool((np.diff(kept) == 1).all())  # not so [0, 2, 1, 3]
                made[id(kept)] = (
                    slice(int(kept[0]), int(kept[-1]) + 1) if run else torch.from_numpy(kept)
                )
            return made[id(kept)]

        return {name: tuple((d, where(k)) for d, k in e) for name, e in self.plan.items()}

    def part(self, name: str, whole: Tensor) -> Tensor:
        """The kept rows, columns, ... of one tensor; a view where they are contiguous."""
        for d, where in self._where.get(name, ()):
            if isinstance(where, slice):
                whole = whole.narrow(d, where.start, where.stop - where.start)
            else:
                whole = whole.index_select(d, where.to(whole.device))
        return whole

    def add(self, name: str, whole: Tensor, value: Tensor | float, skip: int = 0) -> None:
        """Add ``value`` to the kept rows, columns, ... of ``whole``, in place."""
        view, lists = whole, {}
        for own, where in self._where.get(name, ()):
            d = own + skip
            if isinstance(where, slice):
                view = view.narrow(d, where.start, where.stop - where.start)
            else:
                lists[d] = where.to(whole.device)
        if not lists:
            view.add_(value)
            return
        first, last = min(lists), max(lists)
        index: list[slice | Tensor] = [slice(None)] * first
        for d in range(first, last + 1):  # index lists that broadcast against each other
            kept = lists.get(d)
            if kept is None:
                kept = torch.arange(view.shape[d], device=whole.device)
            index.append(kept.view(-1, *(1 for _ in range(last - d))))
        view[tuple(index)] += value

    @cached_property
    def same_key(self) -> Hashable:
        """The plan itself."""
        return tuple((n, d, kept.tobytes()) for n, e in self.plan.items() for d, kept in e)

    def mask(self, name: str) -> Tensor | None:  # noqa: ARG002 - the tensors are really smaller
        """None: everything that the client has, it may train."""
        return None

    def shape(self, name: str, whole: Sequence[int]) -> tuple[int, ...]:
        """The kept sizes."""
        sizes = list(whole)
        for d, kept in self.plan.get(name, ()):
            sizes[d] = len(kept)
        return tuple(sizes)

    def held(self, name: str, shape: Sequence[int]) -> int:
        """The product of the kept sizes."""
        return math.prod(self.shape(name, shape))


@dataclass(frozen=True)
class PlannedCut(_Planned):
    """A cut as plain data: it gathers and adds without a model, and travels as JSON.

    Positions may come in any order. Building its module takes ``like``, a cut by axes that has the
    same shapes; it does not travel.
    """

    plan: Plan
    like: UnitCut | None = None

    @property
    def shape_key(self) -> tuple[tuple[str, int], ...]:
        """The kept size of every dimension that is cut, or of every axis."""
        if self.like is not None:
            return self.like.shape_key
        return tuple((f"{n}[{d}]", len(kept)) for n, e in self.plan.items() for d, kept in e)

    def to_json(self) -> str:
        """The plan as text: tensor -> [[dimension, runs of kept positions]].

        >>> PlannedCut({"w": ((0, np.array([0, 1, 2, 7])),)}).to_json()
        '{"w": [[0, [[0, 3], [7, 8]]]]}'
        """
        return json.dumps({n: [[d, runs(k)] for d, k in e] for n, e in self.plan.items()})

    @classmethod
    def from_json(cls, text: str, most: int = 1 << 24) -> PlannedCut:
        """The cut that `to_json` wrote; raises `PlanError` for anything else.

        ``most`` bounds the positions that it may hold (each set once, however many dimensions it
        is kept of): forty bytes can name a thousand million.

        >>> PlannedCut.from_json('{"w": [[0, [[0, 3], [7, 8]]]]}').plan["w"][0][1]
        array([0, 1, 2, 7])
        """
        try:
            given = _plan_text().validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))[:100]
            raise PlanError(f"not a plan: {where or 'it'}: {first['msg'][:100]}") from None
        except ValueError as error:
            raise PlanError(f"not a plan: {str(error)[:100]}") from None
        made: dict[tuple[tuple[int, int], ...], Indices] = {}
        plan = {}
        for name, entries in given.items():
            if len({d for d, _ in entries}) < len(entries):
                raise PlanError(f"not a plan: {name[:100]!r} is cut twice along a dimension")
            for _, pairs in entries:
                key = tuple((a, b) for a, b in pairs)
                if key not in made:
                    most -= _positions(key, most, f"{name[:100]!r}")
                    made[key] = from_runs(key)
            plan[name] = tuple((d, made[tuple((a, b) for a, b in own)]) for d, own in entries)
        return cls(plan)


_Place = Annotated[int, Field(ge=0, lt=1 << 53)]
_PlanText = dict[str, list[tuple[_Place, list[tuple[_Place, _Place]]]]]


@cache
def _plan_text() -> TypeAdapter[_PlanText]:
    return TypeAdapter(_PlanText)


def _positions(pairs: Sequence[tuple[int, int]], most: int, where: str) -> int:
    """How many there are in the runs, none of them twice, and not more than ``most``."""
    count = sum(b - a for a, b in pairs)
    if any(a >= b for a, b in pairs) or count > most:
        raise PlanError(f"not a plan: {where} keeps {count:,} positions; at most {most:,} may be")
    ordered = sorted(pairs)
    if any(b > c for (_, b), (c, _) in pairwise(ordered)):
        raise PlanError(f"not a plan: {where} keeps a position twice")
    return count


def runs(kept: Indices) -> list[list[int]]:
    """Positions, in their order, as [start, stop) pairs of neighbours.

    >>> runs(np.array([0, 1, 2, 7])), from_runs([[0, 3], [7, 8]])
    ([[0, 3], [7, 8]], array([0, 1, 2, 7]))
    """
    if not len(kept):
        return []
    breaks = np.flatnonzero(np.diff(kept) != 1) + 1
    return [[int(run[0]), int(run[-1]) + 1] for run in np.split(kept, breaks)]


def read_runs(pairs: Sequence[tuple[int, int]], size: int, where: str) -> Indices:
    """`from_runs` of what a stranger wrote: positions below ``size``, none of them twice.

    >>> read_runs([(0, 3), (5, 9)], 8, "w")
    Traceback (most recent call last):
    submodel.errors.PlanError: not a plan: w keeps 5 to 8 of 8 positions
    """
    for a, b in pairs:
        if not 0 <= a < b <= size:
            raise PlanError(f"not a plan: {where} keeps {a} to {b - 1} of {size} positions")
    _positions(pairs, size, where)
    return from_runs(pairs)


def from_runs(pairs: Sequence[Sequence[int]]) -> Indices:
    """The positions that `runs` wrote."""
    return np.concatenate([np.arange(0), *(np.arange(a, b) for a, b in pairs)])


@dataclass(frozen=True)
class UnitCut(_Planned):
    """Whole units: ``units[axis]`` are the kept ones; an axis that is not named is whole."""

    axes: Axes
    units: Units

    @cached_property
    def plan(self) -> Plan:  # type: ignore[override]
        """The plan that follows from the axes."""
        indices: dict[object, Indices] = {}  # equal layouts recur in dozens of tensors
        plan = {}
        for name, layouts in self.axes.layouts.items():
            entries = []
            for d, layout in enumerate(layouts):
                if isinstance(layout, Fixed) or not any(a in self.units for a in layout.axes()):
                    continue
                if layout not in indices:
                    indices[layout] = layout.indices(self.units)
                entries.append((d, indices[layout]))
            if entries:
                plan[name] = tuple(entries)
        return plan

    def build(self, module: nn.Module, **options: Any) -> nn.Module:
        """The working small module of this cut; options as for `submodel.build.build`."""
        from submodel.build import build  # which needs cuts itself
        from submodel.build.given import check_cut

        check_cut(module, self.axes, self.units)
        return build(module, self, **options)

    @cached_property
    def same_key(self) -> Hashable:
        """The kept units, from which the plan follows."""
        return tuple(sorted((axis, kept.tobytes()) for axis, kept in self.units.items()))

    @property
    def planned(self) -> PlannedCut:
        """The same cut as plain data."""
        return PlannedCut(self.plan)

    @property
    def shape_key(self) -> tuple[tuple[str, int], ...]:
        """The kept size of every cut axis."""
        return tuple(sorted((axis, len(kept)) for axis, kept in self.units.items()))


@dataclass(frozen=True)
class CoordinateCut:
    """Single weights: a 0/1 mask per tensor; a tensor that is not named is whole."""

    masks: Mapping[str, Tensor]

    def part(self, name: str, whole: Tensor) -> Tensor:
        """The masked tensor m (.) w, in its full shape; what is not held is 0, never -0."""
        mask = self.mask(name)
        return whole if mask is None else whole.where(mask.bool().to(whole.device), 0)

    def add(self, name: str, whole: Tensor, value: Tensor | float, skip: int = 0) -> None:  # noqa: ARG002 - masks broadcast
        """Add ``value`` to the kept weights of ``whole``, in place."""
        mask = self.mask(name)
        whole.add_(value if mask is None else mask.to(whole) * value)

    def mask(self, name: str) -> Tensor | None:
        """The tensor's mask."""
        return self.masks.get(name)

    def shape(self, name: str, whole: Sequence[int]) -> tuple[int, ...]:  # noqa: ARG002 - masked
        """That of the whole."""
        return tuple(whole)

    def held(self, name: str, shape: Sequence[int]) -> int:
        """The number of ones in the mask."""
        mask = self.mask(name)
        return math.prod(shape) if mask is None else int(mask.sum())

    @property
    def shape_key(self) -> tuple[tuple[str, int], ...]:
        """All coordinate cuts have the shapes of the whole."""
        return ()

    @property
    def same_key(self) -> Hashable:
        """Masks are not compared."""
        return id(self) if self.masks else "whole"


WHOLE: Cut = CoordinateCut({})
"""The cut that holds everything."""


def copy_part(cut: Cut, name: str, whole: Tensor) -> Tensor:
    """What the client holds of one tensor, in memory of its own and laid out as the whole is."""
    if whole.layout is not torch.strided:
        return whole.clone()  # sparse tensors are never cut
    part = cut.part(name, whole)
    if not _is_plain(whole):
        return laid_out(part, whole)
    shared = part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    return part.clone(memory_format=torch.contiguous_format) if shared else part.contiguous()


def laid_out(values: Tensor, like: Tensor) -> Tensor:
    """A copy of ``values`` whose dimensions follow each other in memory as those of ``like`` do.

    Kernels go by it: the same weights in channels-last order make other bits.

    >>> image = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    >>> laid_out(torch.ones(1, 2, 4, 4), image).stride()
    (32, 1, 8, 2)
    """
    shape, strides = values.shape, like.stride()
    if shape == like.shape and _is_dense(like):
        new = torch.empty_strided(shape, strides, dtype=values.dtype, device=values.device)
    elif (order := _FORMATS.get(like.dim())) and like.is_contiguous(memory_format=order):
        new = torch.empty(shape, dtype=values.dtype, device=values.device, memory_format=order)
    else:
        outermost_first = sorted(range(like.dim()), key=lambda d: -strides[d])
        new = values.new_empty([shape[d] for d in outermost_first])
        new = new.permute([outermost_first.index(d) for d in range(like.dim())])
    return new.copy_(values)


_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor lies in memory row by row, and says so."""
    if not tensor.is_contiguous():
        return False
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != step:
            return not _FORMATS.get(tensor.dim())  # of other tensors, no kernel asks
        step *= max(size, 1)
    return True


def _is_dense(tensor: Tensor) -> bool:
    """Whether the values of a tensor fill its memory, each place once."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def gather(cut: Cut, whole: Tensors) -> dict[str, Tensor]:
    """What the client of ``cut`` receives: a copy of its part of every tensor."""
    return {name: copy_part(cut, name, tensor) for name, tensor in whole.items()}


class LastCut(Generic[T]):
    """A function of a cut that remembers its last value: clients with equal cuts come in a row.

    >>> LastCut(lambda cut: cut.held("w", (2, 3)))(WHOLE)
    6
    """

    def __init__(self, compute: Callable[[Cut], T]) -> None:
        self._compute = compute
        self._last: tuple[Cut, T] | None = None

    def __call__(self, cut: Cut) -> T:
        """The value for ``cut``."""
        if self._last is None or self._last[0] is not cut:
            self._last = (cut, self._compute(cut))
        return self._last[1]


def held(cut: Cut, whole: Tensors) -> int:
    """How many values ``cut`` holds in all."""
    return sum(cut.held(name, tensor.shape) for name, tensor in whole.items())


def draw_units(
    scheme: Scheme,
    axes: Axes,
    capacity: float,
    draw: Draw,
    classes: Indices | None = None,
    least: Mapping[str, float] = MappingProxyType({}),
) -> UnitCut:
    """The unit cut that a scheme draws; ``classes`` keeps only those rows of the classifier.

    ``least`` is the least share of an axis that any client holds, whatever its capacity.

    A sub-model must be a working net, so where a Bernoulli draw leaves an axis empty, one unit,
    drawn uniformly, stays: with n units, unit inclusion is p + (1 - p)^n / n instead of p.
    """
    units: dict[str, Indices] = {}
    for axis, size in axes.cut_by_capacity.items():
        share = max(capacity, least.get(axis, 0.0))
        kept = np.flatnonzero(draw_mask(scheme, axis, size, share, draw))
        if not len(kept):
            kept = generator(draw.seed, "spare", draw.round, draw.client, axis).integers(
                size, size=1
            )
        if len(kept) < size:
            units[axis] = kept
    if classes is not None and len(classes) < axes.sizes.get(CLASSES, 0):
        units[CLASSES] = classes
    return UnitCut(axes, units)


def draw_coordinates(
    scheme: Scheme,
    axes: Axes,
    parameters: Tensors,
    capacity: float,
    draw: Draw,
    classes: Indices | None = None,
) -> CoordinateCut:
    """The coordinate cut that a scheme draws: the flat vector of all parameters is the one axis."""
    total = sum(tensor.numel() for tensor in parameters.values())
    flat = torch.from_numpy(draw_mask(scheme, COORDINATES, total, capacity, draw))
    rows = UnitCut(axes, {} if classes is None else {CLASSES: classes})
    masks, start = {}, 0
    for name, tensor in parameters.items():
        mask = flat[start : start + tensor.numel()].view(tensor.shape)
        start += tensor.numel()
        if rows.held(name, tensor.shape) < tensor.numel():
            kept = torch.zeros(tensor.shape)
            rows.add(name, kept, 1.0)
            mask = mask & (kept > 0)
        masks[name] = mask
    return CoordinateCut(masks)
