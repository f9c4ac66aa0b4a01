"""Axes as a notebook shows them: sizes to scale, where they lie, and what to know about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from submodel.presentation.notebook import card, cell, grid_of_cells, line_of_text, strip

if TYPE_CHECKING:
    from submodel.model.axes.declare import Axes

_MOST_AXES = 24
_MOST_MEMBERS = 3


def axes_html(axes: Axes) -> str:
    """The axes as HTML.

    Args:
        axes: of a model.
    """
    largest = max(axes.sizes.values(), default=1)
    rows = [
        [cell(axis), cell(f"{size:,}"), _bar(size, largest), cell(_members(axes, axis))]
        for axis, size in list(axes.sizes.items())[:_MOST_AXES]
    ]
    cut_axes = axes.cut_by_capacity
    lines = []
    if (more := len(axes.sizes) - _MOST_AXES) > 0:
        lines.append(f"and {more} more axes")
    lines += [f"kept whole: {axis}: {reason}" for axis, reason in axes.kept_whole.items()]
    lines.append(f"sub-model = masked model: {_exactness(axes)}")
    if axes.frozen:
        count = len(axes.frozen)
        dimensions = "1 dimension is" if count == 1 else f"{count} dimensions are"
        lines.append(f"{dimensions} never cut, or only in part: print(axes) says why")
    title = f"Axes: {len(axes.sizes)}, of which capacities cut {len(cut_axes)}"
    table = grid_of_cells(("axis", "units", "", "where"), rows, numbers=(1,))
    return card(title, table, *map(line_of_text, lines))


def _bar(size: int, largest: int) -> str:
    cells = 48
    filled_cells = max(1, round(cells * size / largest))
    levels = [1.0] * filled_cells + [0.0] * (cells - filled_cells)
    return strip(levels, f"{size} units")


def _members(axes: Axes, axis: str) -> str:
    members = [
        f"{name}[{d}]"
        for name, layouts in axes.layouts.items()
        for d, layout in enumerate(layouts)
        if axis in layout.axes()
    ]
    more = len(members) - _MOST_MEMBERS
    return ", ".join(members[:_MOST_MEMBERS]) + (f" and {more} more" if more > 0 else "")


def _exactness(axes: Axes) -> str:
    if axes.exact is None:
        return f"not known; {axes.doubt}"
    if not axes.exact:
        names = [axis for axis in axes.inexact if axis in axes.cut_by_capacity]
        return f"no; what {', '.join(names)} cut depends on the units kept"
    at = ", ".join(f"{capacity:g}" for capacity in axes.measured)
    return f"yes, exactly (measured at capacities {at})" if at else "yes, by its operators"
