"""Cuts by whole units of every axis."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from submodel.model.axes import Axes
from submodel.model.axes.layout import FixedPart, Indices, Units
from submodel.model.cut.base import Plan
from submodel.model.cut.plan import ByPlan, PlannedCut


@dataclass(frozen=True)
class UnitCut(ByPlan):
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
                if isinstance(layout, FixedPart) or not any(a in self.units for a in layout.axes()):
                    continue
                if layout not in indices:
                    indices[layout] = layout.indices(self.units)
                entries.append((d, indices[layout]))
            if entries:
                plan[name] = tuple(entries)
        return plan

    @cached_property
    def same_key(self) -> Hashable:
        """The kept units, from which the plan follows."""
        return tuple(sorted((axis, units.tobytes()) for axis, units in self.units.items()))

    @property
    def planned(self) -> PlannedCut:
        """The same cut as plain data."""
        return PlannedCut(self.plan)

    @property
    def shape_key(self) -> tuple[tuple[str, int], ...]:
        """The kept size of every cut axis."""
        return tuple(sorted((axis, len(units)) for axis, units in self.units.items()))
