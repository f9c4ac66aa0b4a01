"""Nets in a few lines, and one model of the zoo: what to feed it, which of its outputs counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class Entry:
    """A model with positional example inputs."""

    name: str
    factory: Callable[[], tuple[nn.Module, Inputs]]
    outputs: Callable[[Any], Any] | None = None  # what of the result counts; None: all of it
    mixes: bool = False  # a norm takes statistics over units that a cut may drop
    refused: str | None = None  # words with which training refuses it
    training: bool = False  # nothing in the zoo draws random numbers or keeps statistics then

    def make(self) -> tuple[nn.Module, Inputs]:
        """The model with fixed, nowhere trivial values, and its example inputs."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module, inputs = self.factory()
            randomise(module)
        return module.train(self.training), inputs

    def result(self, module: nn.Module, inputs: Inputs) -> Any:
        """What counts of the model's output."""
        out = module(*inputs)
        return out if self.outputs is None else self.outputs(out)

    def __str__(self) -> str:
        return self.name


@torch.no_grad()
def randomise(module: nn.Module) -> None:
    """Fill biases, norms and running statistics too, so that a unit mixed up with another shows."""
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
