"""Cuts by whole units of every axis."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from submodel.model.axes import Axes
from submodel.model.axes.layout import Indices, Units
from submodel.model.cut.base import Plan
from submodel.model.cut.notebook import unit_cut_html
from submodel.model.cut.plan import ByPlan, PlannedCut


@dataclass(frozen=True)
class UnitCut(ByPlan):
    """Whole units: ``units[axis]`` are the kept ones; an axis that is not named is whole."""

    axes: Axes
    units: Units

    @cached_property
    def plan(self) -> Plan:  # type: ignore[override]
        """The plan that follows from the axes."""
        indices: dict[int, Indices] = {}  # equal layouts recur in dozens of tensors
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
        """What a notebook shows."""
        return unit_cut_html(self)

    @property
    def planned(self) -> PlannedCut:
        """The same cut as plain data."""
        return PlannedCut(self.plan)

    @property
    def shape_key(self) -> tuple[tuple[str, int], ...]:
        """The kept size of every cut axis."""
        return tuple(sorted((axis, len(units)) for axis, units in self.units.items()))
