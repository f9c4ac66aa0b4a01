"""Axes from layouts, without a trace."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from submodel.model.axes import Axes
from submodel.model.axes.layout import Along, Concatenation, FixedPart, Layout, Product


def axes_of(module: nn.Module, layouts: Mapping[str, tuple[Layout, ...]]) -> Axes:
    """Make axes from layouts; all other tensors are fixed."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    fixed = {name: tuple(FixedPart(size) for size in t.shape) for name, t in tensors.items()}
    sizes: dict[str, int] = {}

    def visit(layout: Layout) -> None:
        if isinstance(layout, Along):
            sizes[layout.axis] = layout.size
        elif isinstance(layout, Product | Concatenation):
            for part in layout.parts:
                visit(part)

    for name, given in layouts.items():
        assert tuple(layout.size for layout in given) == tuple(tensors[name].shape), name
        for layout in given:
            visit(layout)
    return Axes(sizes, {**fixed, **layouts})
