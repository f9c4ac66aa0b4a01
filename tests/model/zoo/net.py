"""A net in a few lines: layers and numbers by name, and a function of them as forward."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from tests.model.zoo.entry import Entry

Forward = Callable[..., Any]
CLASSES = 5


class Net(nn.Module):
    """What it holds, it is given; what it does, a function of itself and its inputs tells."""

    def __init__(self, forward: Forward, **parts: Any) -> None:
        super().__init__()
        self.told = forward
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.told(self, *inputs)


def weight(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, dtype=dtype))


def conv(inputs: int, outputs: int, kernel: int = 3, **options: Any) -> nn.Conv2d:
    options.setdefault("padding", kernel // 2)
    return nn.Conv2d(inputs, outputs, kernel, **options)


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with activations in between."""
    layers: list[nn.Module] = []
    for one, other in pairwise(widths):
        layers += [nn.Linear(one, other), nn.GELU()]
    return nn.Sequential(*layers[:-1])


def entry(name: str, make: Callable[[], nn.Module], *shapes: tuple[int, ...], **told: Any) -> Entry:
    """A net that reads tensors of random numbers of these shapes."""
    return Entry(name, lambda: (make(), tuple(torch.randn(shape) for shape in shapes)), **told)
