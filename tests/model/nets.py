"""Short nets, inputs and cuts for them, layouts in a line; one model of the zoo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from submodel.model.axes import Axes
from submodel.model.axes.layout import Along, FixedPart, Layout, Product
from submodel.model.cut import UnitCut
from submodel.schemes import Draw, Random
from submodel.schemes.draw import draw_units

Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class Entry:
    """A model with positional example inputs."""

    name: str
    factory: Callable[[], tuple[nn.Module, Inputs]]
    outputs: Callable[[Any], Any] | None = None  # selects a part of the result; None: all of it
    mixes: bool = False  # a norm takes statistics over units that a cut may drop
    refused: str | None = None  # expected error of training
    training: bool = False  # then no net of the zoo draws random numbers or updates statistics

    def make(self) -> tuple[nn.Module, Inputs]:
        """Make the model with fixed, non-trivial values, and its example inputs."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module, inputs = self.factory()
            randomise(module)
        return module.train(self.training), inputs

    def result(self, module: nn.Module, inputs: Inputs) -> Any:
        """Return the selected part of the model's output."""
        out = module(*inputs)
        return out if self.outputs is None else self.outputs(out)

    def __str__(self) -> str:
        return self.name


@torch.no_grad()
def randomise(module: nn.Module) -> None:
    """Also fill biases, norms and running statistics, so that mixed-up units are detected."""
    for parameter in module.parameters():
        if parameter.dim() >= 2:
            fan_in = parameter[0].numel()
            parameter.normal_(0, fan_in**-0.5)
        else:
            parameter.add_(0.3 * torch.randn_like(parameter))
    for name, buffer in module.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.3)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)


Forward = Callable[..., Any]
CLASSES = 5


class Net(nn.Module):
    """A net with given members and a forward given as a function of itself and its inputs."""

    def __init__(self, forward: Forward, **parts: Any) -> None:
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


def weight(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, dtype=dtype))


def conv(inputs: int, outputs: int, kernel: int = 3, **options: Any) -> nn.Conv2d:
    options.setdefault("padding", kernel // 2)
    return nn.Conv2d(inputs, outputs, kernel, **options)


def mlp(*widths: int) -> nn.Sequential:
    """Make linear layers with activations in between."""
    layers: list[nn.Module] = []
    for one, other in pairwise(widths):
        layers += [nn.Linear(one, other), nn.GELU()]
    return nn.Sequential(*layers[:-1])


def entry(
    name: str, make: Callable[[], nn.Module], *shapes: tuple[int, ...], **options: Any
) -> Entry:
    """Make a net that reads tensors of random numbers of these shapes."""
    return Entry(name, lambda: (make(), tuple(torch.randn(shape) for shape in shapes)), **options)


def text(layout: Layout) -> str:
    """Format a layout in a line: axis names, sizes of fixed parts, x and +."""
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
    """Draw units of every axis: a share of them, or each with that probability."""
    return draw_units(Random(sampling), axes, share, Draw(0, draw, 0))


def two_layers(forward: Forward, read: int = 8, **parts: Any) -> Net:
    """Make a net with a layer ``up`` to 8 units, and a layer ``out`` that reads them."""
    return Net(forward, up=nn.Linear(6, 8), out=nn.Linear(read, 2), **parts)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)))


IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
VECTOR = torch.randn(2, 6, generator=torch.Generator().manual_seed(2))
SEQUENCE = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(3))
