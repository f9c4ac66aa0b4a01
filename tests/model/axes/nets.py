"""Small nets to trace, inputs for them, and layouts in a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from submodel.model.axes import Axes
from submodel.model.axes.layout import Along, FixedPart, Layout, Product


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


class Net(nn.Module):
    """Layers by name, and any function of them and an input as forward."""

    def __init__(
        self, forward: Callable[[Any, Tensor], Any], **layers: nn.Module | nn.Parameter
    ) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self._forward = forward

    def forward(self, x: Tensor) -> Any:
        return self._forward(self, x)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)))


IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
VECTOR = torch.randn(2, 6, generator=torch.Generator().manual_seed(2))
SEQUENCE = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(3))
