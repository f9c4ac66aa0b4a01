"""Cuts by a plan: for each tensor that is cut, the positions kept along its dimensions."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from submodel.errors import PlanError
from submodel.model.axes.layout import Indices
from submodel.model.cut.base import Plan, Where
from submodel.model.cut.flat import FlatLayout

if TYPE_CHECKING:
    from submodel.model.cut.units import UnitCut


_LEAST_INNER = 64  # values in a row; shorter ones are moved one by one


class ByPlan:
    """A cut by a plan: for each tensor that is cut, the positions kept along its dimensions."""

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
        if isinstance(value, Tensor) and (places := self._flat(name, whole, value, skip)):
            rows, inner, planes = places
            if inner == 1:
                every_plane = rows.expand(planes, -1)
                whole.view(planes, -1).scatter_add_(1, every_plane, value.reshape(planes, -1))
            else:
                source = value.reshape(planes, -1, inner)
                whole.view(planes, -1, inner).index_add_(1, rows, source)
            return
        view, index = self._index(name, whole, skip)
        if index:
            view[index] += value
        else:
            view.add_(value)

    def put(self, name: str, whole: Tensor, value: Tensor | bool) -> None:
        """Write ``value`` to the kept rows, columns, ... of ``whole``, in place."""
        if isinstance(value, Tensor) and (places := self._flat(name, whole, value)):
            rows, inner, _ = places
            if inner == 1:
                whole.view(-1).scatter_(0, rows, value.reshape(-1))
            else:
                whole.view(-1, inner).index_copy_(0, rows, value.reshape(-1, inner))
            return
        view, index = self._index(name, whole)
        view[index or ...] = value

    def _flat(
        self, name: str, whole: Tensor, value: Tensor, skip: int = 0
    ) -> tuple[Tensor, int, int] | None:
        """Where lists of positions lead to in memory, which is several times as fast.

        Rows of how many values, counted from the start of each plane, and how many planes; None
        where there are no lists, or memory is laid out in another way.
        """
        places = dict(self._where.get(name, ()))
        shape = whole.shape[skip:]
        kept_shape = [*whole.shape[:skip], *self.shape(name, shape)]
        if all(isinstance(where, slice) for where in places.values()) or not (
            whole.is_contiguous() and value.dtype == whole.dtype and list(value.shape) == kept_shape
        ):
            return None
        last = max(places)
        inner = math.prod(shape[last + 1 :])
        if inner < _LEAST_INNER:
            last, inner = len(shape) - 1, 1
        rows, step = torch.zeros((), dtype=torch.int64, device=whole.device), 1
        for d in range(last, -1, -1):
            where = places.get(d, slice(0, shape[d]))
            if isinstance(where, slice):
                where = torch.arange(where.start, where.stop, device=whole.device)
            rows = (where.to(whole.device) * step).view(-1, *(1 for _ in range(last - d))) + rows
            step *= shape[d]
        return rows.reshape(-1), inner, math.prod(whole.shape[:skip])

    def _index(
        self, name: str, whole: Tensor, skip: int = 0
    ) -> tuple[Tensor, tuple[slice | Tensor, ...]]:
        """What is kept of ``whole``: a view of it, and how to index that; all of it if empty."""
        view, lists = whole, {}
        for dimension, where in self._where.get(name, ()):
            d = dimension + skip
            if isinstance(where, slice):
                view = view.narrow(d, where.start, where.stop - where.start)
            else:
                lists[d] = where.to(whole.device)
        if not lists:
            return view, ()
        first, last = min(lists), max(lists)
        index: list[slice | Tensor] = [slice(None)] * first
        for d in range(first, last + 1):  # index lists that broadcast against each other
            positions = lists.get(d)
            if positions is None:
                positions = torch.arange(view.shape[d], device=whole.device)
            index.append(positions.view(-1, *(1 for _ in range(last - d))))
        return view, tuple(index)

    @cached_property
    def _flat_indices(self) -> dict[FlatLayout, Tensor]:
        """By layout: what is sent is merged by the same."""
        return {}

    def flat_index(self, layout: FlatLayout) -> Tensor | None:
        """Where small tensors have what is kept of them."""
        if layout not in self._flat_indices:
            self._flat_indices[layout] = torch.from_numpy(layout.positions(self.plan))
        return self._flat_indices[layout]

    def places(self, name: str) -> tuple[tuple[int, Indices], ...]:
        """The plan of one tensor."""
        return self.plan.get(name, ())

    @cached_property
    def same_key(self) -> Hashable:
        """The plan itself."""
        return tuple((n, d, places.tobytes()) for n, e in self.plan.items() for d, places in e)

    def mask(self, name: str) -> Tensor | None:  # noqa: ARG002 - the tensors are really smaller
        """None: everything that the client has, it may train."""
        return None

    def shape(self, name: str, whole: Sequence[int]) -> tuple[int, ...]:
        """The kept sizes."""
        sizes = list(whole)
        for d, positions in self.plan.get(name, ()):
            sizes[d] = len(positions)
        return tuple(sizes)

    def value_count(self, name: str, shape: Sequence[int]) -> int:
        """The product of the kept sizes."""
        return math.prod(self.shape(name, shape))


@dataclass(frozen=True)
class PlannedCut(ByPlan):
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
        return tuple((f"{n}[{d}]", len(places)) for n, e in self.plan.items() for d, places in e)

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
    """A slice for neighbours in their order, which [0, 2, 1, 3] are not; otherwise a tensor."""
    if len(positions) and (np.diff(positions) == 1).all():
        return slice(int(positions[0]), int(positions[-1]) + 1)
    return torch.from_numpy(positions)


_Natural = Annotated[int, Field(ge=0, lt=1 << 53)]
_PlanText = dict[str, list[tuple[_Natural, list[tuple[_Natural, _Natural]]]]]


@cache
def _plan_text() -> TypeAdapter[_PlanText]:
    return TypeAdapter(_PlanText)


def _positions(pairs: Sequence[tuple[int, int]], most: int, where: str) -> int:
    """How many there are in the runs, none of them twice, and not more than ``most``."""
    count = sum(b - a for a, b in pairs)
    if any(a >= b for a, b in pairs) or count > most:
        raise PlanError(f"not a plan: {where} keeps {count:,} positions; at most {most:,} may be")
    pairs_in_order = sorted(pairs)
    if any(b > c for (_, b), (c, _) in pairwise(pairs_in_order)):
        raise PlanError(f"not a plan: {where} keeps a position twice")
    return count


def runs(positions: Indices) -> list[list[int]]:
    """Positions, in their order, as [start, stop) pairs of neighbours.

    >>> runs(np.array([0, 1, 2, 7])), from_runs([[0, 3], [7, 8]])
    ([[0, 3], [7, 8]], array([0, 1, 2, 7]))
    """
    if not len(positions):
        return []
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    return [[int(run[0]), int(run[-1]) + 1] for run in np.split(positions, breaks)]


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
