"""The recorded units of a net: axes, layouts, and the costs of cuts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from torch import nn

from submodel.model import Axes, prefix_cut
from submodel.model.axes.layout import Along, FixedPart, Layout, Product
from submodel.model.budget import Budget
from submodel.model.cut import count_values
from submodel.model.inputs import Inputs

CAPACITIES = (1, 1 / 2, 1 / 4, 1 / 8)


def units(module: nn.Module, axes: Axes) -> dict[str, Any]:
    """Return everything that determines a cut of a net, and the parameters of its first units."""
    dimensions = [
        (name, d, layout)
        for name, layouts in sorted(axes.layouts.items())
        for d, layout in enumerate(layouts)
    ]
    order = dict.fromkeys(axis for _, _, layout in dimensions for axis in layout.axes())
    numbers = {axis: f"axis {number}" for number, axis in enumerate(order)}
    own = {axis: axis for axis in order}
    weights = {name: p.detach() for name, p in module.named_parameters()}
    return {
        "count": len(axes.sizes),
        "sizes": dict(axes.sizes),
        "whole": sorted(axes.kept_whole),
        "inexact": sorted(axes.inexact),
        "frozen": len(axes.frozen),
        "unused": len(axes.unused_tensors),
        "named": _digest(axes, dimensions, own),
        "unnamed": _digest(axes, dimensions, numbers),
        "parameters": [count_values(prefix_cut(axes, c), weights) for c in CAPACITIES],
    }


def needs(module: nn.Module, axes: Axes, inputs: Inputs) -> list[dict[str, int]]:
    """Return the bytes and FLOPs of a step of two examples, for the whole and a quarter."""
    budget = Budget(module, axes, inputs, batch_size=2)
    return [vars(budget.needs(capacity)) for capacity in (1, 1 / 4)]


def _digest(axes: Axes, dimensions: list[tuple[str, int, Layout]], names: Mapping[str, str]) -> str:
    """Hash every dimension of every tensor, with these names of axes."""
    lines = [f"{name}[{d}] {_text(layout, names)}" for name, d, layout in dimensions]
    lines += [f"frozen {dimension}" for dimension in sorted(axes.frozen)]
    for what, found in (("whole", axes.kept_whole), ("inexact", axes.inexact)):
        lines += [f"{what} {axis}" for axis in sorted(names.get(axis, axis) for axis in found)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _text(layout: Layout, names: Mapping[str, str]) -> str:
    if isinstance(layout, FixedPart):
        return str(layout.size)
    if isinstance(layout, Along):
        return f"{names[layout.axis]} of {layout.size}"
    sign = " x " if isinstance(layout, Product) else " + "
    return f"({sign.join(_text(part, names) for part in layout.parts)})"
