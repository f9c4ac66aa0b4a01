"""Cuts: by whole units of every axis, by positions as plain data, and by single weights.

A *unit* cut keeps whole units of every axis, so the client's tensors are really smaller. A
*coordinate* cut keeps single weights: the tensors keep their shape and the rest is zero.
Both are immutable and independent of schemes, engines and rounds.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from submodel.core.errors import PlanError
from submodel.core.tables import card, cell, grid_of_cells, line_of_text, strip
from submodel.model.axes import CLASSES, Axes
from submodel.model.axes.declare import units_held
from submodel.model.axes.layout import Indices, Units
from submodel.model.cut.flat import FlatLayout, kept_rows

Tensors = Mapping[str, Tensor]
Granularity = Literal["unit", "coordinate"]
Where = slice | Tensor
Places = tuple[tuple[int, Indices], ...]
Plan = Mapping[str, Places]
"""Tensor -> (dimension, kept positions), for each dimension that is cut."""
COORDINATES = "coordinates"
"""The name of the one axis at coordinate granularity: all weights as a flat vector."""


class Cut(ABC):
    """The part of a model that a client holds; by default tensors keep their shapes."""

    @abstractmethod
    def part(self, name: str, whole: Tensor) -> Tensor:
        """The client's part of one tensor; may share its memory."""

    @abstractmethod
    def add(self, name: str, whole: Tensor, value: Tensor | float, skip: int = 0) -> None:
        """Add ``value`` to the held part of ``whole``; ``skip`` leading dimensions are batches."""

    @abstractmethod
    def put(self, name: str, whole: Tensor, value: Tensor | bool) -> None:
        """Write ``value`` to the held part of ``whole``, in place."""

    def places(self, name: str) -> Places:  # noqa: ARG002 - of any tensor
        """The kept positions of a tensor along each dimension that is cut."""
        return ()

    def mask(self, name: str) -> Tensor | None:  # noqa: ARG002
        """The 0/1 mask for training; None if the tensor is not masked."""
        return None

    def shape(self, name: str, whole: Sequence[int]) -> tuple[int, ...]:  # noqa: ARG002
        """The shape of the client's part of a tensor of shape ``whole``."""
        return tuple(whole)

    def value_count(self, name: str, shape: Sequence[int]) -> int:
        """The number of values that the client holds of a tensor of this shape."""
        return math.prod(self.shape(name, shape))

    def flat_index(self, layout: FlatLayout) -> Tensor | None:  # noqa: ARG002
        """The positions of the held values in the vector of small tensors; None if all are held."""
        return None

    @property
    @abstractmethod
    def shape_key(self) -> tuple[tuple[str, int], ...]:
        """A key that is equal for cuts whose sub-models have equal shapes."""

    @property
    @abstractmethod
    def same_key(self) -> Hashable:
        """A key that is equal only for cuts that hold the same values."""


def cut_digest(cut: Cut) -> str | None:
    """A hash of a cut, equal in all processes; None if its content is not compared."""
    key = cut.same_key
    return None if isinstance(key, int) else hashlib.sha256(repr(key).encode()).hexdigest()


def count_values(cut: Cut, whole: Tensors) -> int:
    """The total number of values that ``cut`` holds."""
    return sum(cut.value_count(name, tensor.shape) for name, tensor in whole.items())


_LEAST_ROW = 64  # values; shorter rows are moved value by value


class ByPlan(Cut):
    """A cut by a plan, which lists for each cut tensor the kept positions along its dimensions."""

    plan: Plan

    @cached_property
    def _where(self) -> dict[str, tuple[tuple[int, Where], ...]]:
        """The plan with runs as slices, which need no index arithmetic, and the rest as tensors."""
        places: dict[int, Where] = {}  # many tensors share one array of positions

        def where(positions: Indices) -> Where:
            if id(positions) not in places:
                places[id(positions)] = _place(positions)
            return places[id(positions)]

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
        with self._kept(name, whole, value, skip) as (view, rows, values):
            if rows is None:
                view.add_(values)
            elif view.dim() == 2:
                view.scatter_add_(1, rows.expand(len(view), -1), values)
            else:
                view.index_add_(1, rows, values)

    def put(self, name: str, whole: Tensor, value: Tensor | bool) -> None:
        """Write ``value`` to the kept rows, columns, ... of ``whole``, in place."""
        with self._kept(name, whole, value) as (view, rows, values):
            if rows is None:
                view.copy_(values)
            elif view.dim() == 2:
                view.scatter_(1, rows.expand(len(view), -1), values)
            else:
                view.index_copy_(1, rows, values)

    @contextmanager
    def _kept(
        self, name: str, whole: Tensor, value: Tensor | float, skip: int = 0
    ) -> Iterator[tuple[Tensor, Tensor | None, Tensor]]:
        """A view of ``whole``, the indices of its kept rows, and the values for them.

        None for the indices: the whole view is kept, as for a run of positions. Rows in memory are
        several times as fast as a list of positions per dimension; short rows are moved value by
        value.
        """
        values = torch.as_tensor(value, dtype=whole.dtype, device=whole.device)
        places = self._where.get(name, ())
        if all(isinstance(where, slice) for _, where in places):
            for d, where in places:
                if isinstance(where, slice):
                    whole = whole.narrow(d + skip, where.start, where.stop - where.start)
            yield whole, None, values
            return
        values = values.expand(*whole.shape[:skip], *self.shape(name, whole.shape[skip:]))
        strides = whole.stride()
        order = sorted(range(whole.dim()), key=lambda d: (d >= skip, -strides[d]))
        view, values = whole.permute(order), values.permute(order)  # in memory order
        memory = view.contiguous()
        shape, planes = view.shape[skip:], math.prod(view.shape[:skip])
        kept_places = [(order.index(d + skip) - skip, kept) for d, kept in self.plan[name]]
        rows, length = kept_rows(shape, kept_places, _LEAST_ROW)
        view_shape = (planes, -1, length) if length > 1 else (planes, -1)
        kept = torch.from_numpy(rows).to(whole.device)
        yield memory.view(view_shape), kept, values.reshape(view_shape)
        if memory.data_ptr() != view.data_ptr():
            view.copy_(memory)

    @cached_property
    def _flat_indices(self) -> dict[FlatLayout, Tensor]:
        """A cache by layout; sending and merging use the same layout."""
        return {}

    def flat_index(self, layout: FlatLayout) -> Tensor | None:
        """The positions of the kept values in the vector of small tensors."""
        if layout not in self._flat_indices:
            self._flat_indices[layout] = torch.from_numpy(layout.positions(self.plan))
        return self._flat_indices[layout]

    def places(self, name: str) -> Places:
        """The plan of one tensor."""
        return self.plan.get(name, ())

    @cached_property
    def same_key(self) -> Hashable:
        """The plan itself."""
        return tuple((n, d, places.tobytes()) for n, e in self.plan.items() for d, places in e)

    def shape(self, name: str, whole: Sequence[int]) -> tuple[int, ...]:
        """The kept sizes."""
        sizes = list(whole)
        for d, positions in self.plan.get(name, ()):
            sizes[d] = len(positions)
        return tuple(sizes)


@dataclass(frozen=True)
class PlannedCut(ByPlan):
    """A cut as plain data: it needs no model and can be sent as JSON.

    Positions may have any order. Building its module needs ``like``, a cut by axes with the same
    shapes, which is not part of the JSON.
    """

    plan: Plan
    like: UnitCut | None = None

    @property
    def shape_key(self) -> tuple[tuple[str, int], ...]:
        """The kept size of every dimension that is cut, or of every axis."""
        if self.like is not None:
            return self.like.shape_key
        return tuple((f"{n}[{d}]", len(places)) for n, e in self.plan.items() for d, places in e)

    def to_json(self) -> str:
        """The plan as JSON: tensor -> [[dimension, runs of kept positions]].

        >>> PlannedCut({"w": ((0, np.array([0, 1, 2, 7])),)}).to_json()
        '{"w": [[0, [[0, 3], [7, 8]]]]}'
        """
        return json.dumps({n: [[d, runs(k)] for d, k in e] for n, e in self.plan.items()})

    @classmethod
    def from_json(cls, text: str, most: int = 1 << 24) -> PlannedCut:
        """Read the JSON of `to_json`; raise `PlanError` for anything else.

        ``most`` bounds the total number of positions (equal sets of positions count once), as forty
        bytes can name a thousand million positions.

        >>> PlannedCut.from_json('{"w": [[0, [[0, 3], [7, 8]]]]}').plan["w"][0][1]
        array([0, 1, 2, 7])
        """
        try:
            entries_by_tensor = _plan_text().validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))[:100]
            raise PlanError(f"not a plan: {where or 'it'}: {first['msg'][:100]}") from None
        except ValueError as error:
            raise PlanError(f"not a plan: {str(error)[:100]}") from None
        positions_by_runs: dict[tuple[tuple[int, int], ...], Indices] = {}
        plan = {}
        for name, entries in entries_by_tensor.items():
            if len({d for d, _ in entries}) < len(entries):
                raise PlanError(f"not a plan: {name[:100]!r} is cut twice along a dimension")
            for _, pairs in entries:
                key = tuple((a, b) for a, b in pairs)
                if key not in positions_by_runs:
                    most -= _positions(key, most, f"{name[:100]!r}")
                    positions_by_runs[key] = from_runs(key)
            plan[name] = tuple(
                (d, positions_by_runs[tuple((a, b) for a, b in spans)]) for d, spans in entries
            )
        return cls(plan)


def _place(positions: Indices) -> Where:
    """A slice for a run of ascending positions, otherwise a tensor."""
    if len(positions) and (np.diff(positions) == 1).all():
        return slice(int(positions[0]), int(positions[-1]) + 1)
    return torch.from_numpy(positions)


_Natural = Annotated[int, Field(ge=0, lt=1 << 53)]
_PlanText = dict[str, list[tuple[_Natural, list[tuple[_Natural, _Natural]]]]]


@cache
def _plan_text() -> TypeAdapter[_PlanText]:
    return TypeAdapter(_PlanText)


def _positions(pairs: Sequence[tuple[int, int]], most: int, where: str) -> int:
    """The number of positions in runs; raise unless all differ and at most ``most`` are given."""
    count = sum(b - a for a, b in pairs)
    if any(a >= b for a, b in pairs) or count > most:
        raise PlanError(f"not a plan: {where} keeps {count:,} positions; at most {most:,} may be")
    pairs_in_order = sorted(pairs)
    if any(b > c for (_, b), (c, _) in pairwise(pairs_in_order)):
        raise PlanError(f"not a plan: {where} keeps a position twice")
    return count


def runs(positions: Indices) -> list[list[int]]:
    """Positions, in their order, as [start, stop) pairs.

    >>> runs(np.array([0, 1, 2, 7])), from_runs([[0, 3], [7, 8]])
    ([[0, 3], [7, 8]], array([0, 1, 2, 7]))
    """
    if not len(positions):
        return []
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    return [[int(run[0]), int(run[-1]) + 1] for run in np.split(positions, breaks)]


def read_runs(pairs: Sequence[tuple[int, int]], size: int, where: str) -> Indices:
    """`from_runs` for untrusted pairs; positions must be distinct and below ``size``.

    >>> read_runs([(0, 3), (5, 9)], 8, "w")
    Traceback (most recent call last):
    submodel.core.errors.PlanError: not a plan: w keeps 5 to 8 of 8 positions
    """
    for a, b in pairs:
        if not 0 <= a < b <= size:
            raise PlanError(f"not a plan: {where} keeps {a} to {b - 1} of {size} positions")
    _positions(pairs, size, where)
    return from_runs(pairs)


def from_runs(pairs: Sequence[Sequence[int]]) -> Indices:
    """The inverse of `runs`."""
    return np.concatenate([np.arange(0), *(np.arange(a, b) for a, b in pairs)])


@dataclass(frozen=True)
class UnitCut(ByPlan):
    """A cut by whole units: ``units[axis]`` are kept; an axis that is not named is whole."""

    axes: Axes
    units: Units

    @cached_property
    def plan(self) -> Plan:  # type: ignore[override]
        """The plan that follows from the axes."""
        indices: dict[int, Indices] = {}  # dozens of tensors have equal layouts
        plan: dict[str, tuple[tuple[int, Indices], ...]] = {}
        whole_axes = self.units.keys().isdisjoint
        for name, d, layout, axes in self.axes.cut_dimensions:
            if whole_axes(axes):
                continue
            if (places := indices.get(id(layout))) is None:
                places = indices[id(layout)] = layout.indices(self.units)
            plan[name] = (*plan.get(name, ()), (d, places))
        return plan

    @cached_property
    def same_key(self) -> Hashable:
        """The kept units, from which the plan follows."""
        return tuple(sorted((axis, units.tobytes()) for axis, units in self.units.items()))

    def _repr_html_(self) -> str:
        """The representation in a notebook."""
        rows, kept_sizes = [], 0
        for axis, size in self.axes.sizes.items():
            mask = np.zeros(size)
            mask[self.units.get(axis, slice(None))] = 1
            count = int(mask.sum())
            kept_sizes += count
            text = f"{count:,} of {size:,}"
            rows.append([cell(axis), strip(_thin(mask), f"{text} units"), cell(text)])
        units = sum(self.axes.sizes.values())
        title = f"Cut: {kept_sizes:,} of {units:,} units on {len(rows)} axes"
        return card(title, *_table("axis", rows, "axes"))

    @property
    def planned(self) -> PlannedCut:
        """Convert the cut to plain data."""
        return PlannedCut(self.plan)

    @property
    def shape_key(self) -> tuple[tuple[str, int], ...]:
        """The kept size of every cut axis."""
        return tuple(sorted((axis, len(units)) for axis, units in self.units.items()))


def prefix_cut(
    axes: Axes,
    capacity: float,
    classes: Indices | None = None,
    least: Mapping[str, float] = MappingProxyType({}),
) -> UnitCut:
    """A cut to the first units of every axis; ``classes`` selects rows of the classifier.

    ``least`` is the least fraction of an axis that is kept at any capacity.
    """
    units: dict[str, Indices] = {}
    for axis, size in axes.cut_by_capacity.items():
        count = units_held(max(capacity, least.get(axis, 0.0)), size)
        if count < size:
            units[axis] = np.arange(count)
    if classes is not None and len(classes) < axes.sizes.get(CLASSES, 0):
        units[CLASSES] = classes
    return UnitCut(axes, units)


@dataclass(frozen=True)
class CoordinateCut(Cut):
    """A cut by single weights: a 0/1 mask per tensor; a tensor that is not named is whole."""

    masks: Mapping[str, Tensor]

    def _repr_html_(self) -> str:
        """The representation in a notebook."""
        rows, held_weights, weights = [], 0, 0
        for name, mask in self.masks.items():
            count, size = int(mask.sum()), mask.numel()
            held_weights, weights = held_weights + count, weights + size
            share = count / max(1, size)
            text = f"{count:,} of {size:,} ({share:.1%})"
            levels = [1.0] * round(48 * share) + [0.0] * (48 - round(48 * share))
            rows.append([cell(name), strip(levels, text), cell(text)])
        if not self.masks:
            return card("Cut: the whole model")
        title = f"Cut: {held_weights:,} of {weights:,} weights in {len(rows)} tensors"
        return card(title, *_table("tensor", rows, "tensors"))

    def part(self, name: str, whole: Tensor) -> Tensor:
        """The masked tensor m (.) w in its full shape; values that are not held are 0, never -0."""
        mask = self.mask(name)
        return whole if mask is None else whole.where(mask.bool().to(whole.device), 0)

    def add(self, name: str, whole: Tensor, value: Tensor | float, skip: int = 0) -> None:  # noqa: ARG002 - masks broadcast
        """Add ``value`` to the kept weights of ``whole``, in place."""
        mask = self.mask(name)
        whole.add_(value if mask is None else mask.to(whole) * value)

    def put(self, name: str, whole: Tensor, value: Tensor | bool) -> None:
        """Write ``value``, of the shape of the whole, to the kept weights of ``whole``."""
        mask = self.mask(name)
        if mask is None:
            whole.copy_(torch.as_tensor(value))
        else:
            is_kept = mask.bool().to(whole.device)
            whole.copy_(torch.where(is_kept, torch.as_tensor(value).to(whole), whole))

    def mask(self, name: str) -> Tensor | None:
        """The tensor's mask."""
        return self.masks.get(name)

    def value_count(self, name: str, shape: Sequence[int]) -> int:
        """The number of ones in the mask."""
        mask = self.mask(name)
        return math.prod(shape) if mask is None else int(mask.sum())

    @property
    def shape_key(self) -> tuple[tuple[str, int], ...]:
        """The empty key, as all coordinate cuts have the shapes of the whole."""
        return ()

    @property
    def same_key(self) -> Hashable:
        """The identity of the cut, as masks are not compared."""
        return id(self) if self.masks else "whole"


WHOLE: Cut = CoordinateCut({})
"""The cut that holds everything."""


_MOST_ROWS = 24
_MOST_CELLS = 480  # of a strip: two per pixel


def _table(heading: str, rows: list[list[str]], plural: str) -> list[str]:
    parts = [grid_of_cells((heading, "", "held"), rows[:_MOST_ROWS], numbers=(2,))]
    if len(rows) > _MOST_ROWS:
        parts.append(line_of_text(f"and {len(rows) - _MOST_ROWS} more {plural}"))
    return parts


def _thin(mask: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
    """The mask, or the means of its sections if it is long."""
    if len(mask) <= _MOST_CELLS:
        return [float(level) for level in mask]
    return [float(part.mean()) for part in np.array_split(mask, _MOST_CELLS)]
