"""Small nets to trace, inputs for them, and layouts in a line."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from submodel.model.axes import Axes
from submodel.model.axes.layout import Along, FixedPart, Layout, Product
from submodel.model.cut import UnitCut
from submodel.schemes import Draw, Random
from submodel.schemes.draw import draw_units
from tests.model.zoo.net import Net

__all__ = ["IMAGE", "SEQUENCE", "VECTOR", "Net", "cut_by", "layouts", "parameter", "text"]


def text(layout: Layout) -> str:
    """A layout in a line: axis names, sizes of fixed parts, x and +."""
    if isinstance(layout, FixedPart):
        return str(layout.size)
    if isinstance(layout, Along):
        return layout.axis
    sign = " x " if isinstance(layout, Product) else " + "
    return sign.join(
        text(p) if isinstance(p, FixedPart | Along) else f"({text(p)})" for p in layout.parts
    )


def layouts(axes: Axes) -> dict[str, tuple[str, ...]]:
    return {name: tuple(map(text, found)) for name, found in axes.layouts.items()}


def cut_by(axes: Axes, share: float = 0.5, draw: int = 0, sampling: Any = "fixed") -> UnitCut:
    """Random units of every axis: a share of them, or each with that chance."""
    return draw_units(Random(sampling), axes, share, Draw(0, draw, 0))


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)))


IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
VECTOR = torch.randn(2, 6, generator=torch.Generator().manual_seed(2))
SEQUENCE = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(3))
