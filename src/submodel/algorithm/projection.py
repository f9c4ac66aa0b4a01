"""Projections P_W of the model onto a convex set W."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from pydantic import Field
from torch import Tensor

from submodel.model.cut import Tensors
from submodel.options import Positive, Section


class Projection(Protocol):
    """The projection P_W onto a convex set W."""

    def __call__(self, parameters: Tensors) -> dict[str, Tensor]:
        """The nearest point of the set."""
        ...


class NoProjection:
    """W is the whole space."""

    def __call__(self, parameters: Tensors) -> dict[str, Tensor]:
        """The point itself."""
        return dict(parameters)


class Ball:
    """The ball of a radius around the origin, over all parameters together.

    >>> Ball(1.0)({"w": torch.tensor([3.0, 4.0])})
    {'w': tensor([0.6000, 0.8000])}
    """

    class Options(Section):
        """The keys of ``ball``."""

        radius: Positive = Field(description="of the ball")

    def __init__(self, radius: float) -> None:
        self.radius = radius

    def __call__(self, parameters: Tensors) -> dict[str, Tensor]:
        """Scale onto the sphere if outside."""
        norm = math.sqrt(sum(float(t.double().square().sum()) for t in parameters.values()))
        if norm <= self.radius:
            return dict(parameters)
        factor = float(shrinkage(torch.tensor(norm, dtype=torch.float64), self.radius))
        return {name: t * factor for name, t in parameters.items()}


def shrinkage(norms: Tensor, radius: float) -> Tensor:
    """What points of these norms are multiplied with to lie in the ball.

    >>> shrinkage(torch.tensor([0.5, 4.0]), 1.0)
    tensor([1.0000, 0.2500])
    """
    return torch.where(norms <= radius, torch.ones_like(norms), radius / norms)


class Box:
    """Every weight within [-bound, bound].

    >>> Box(1.0)({"w": torch.tensor([3.0, -0.5])})
    {'w': tensor([ 1.0000, -0.5000])}
    """

    class Options(Section):
        """The keys of ``box``."""

        radius: Positive = Field(description="the bound of every weight")

    def __init__(self, radius: float) -> None:
        self.radius = radius

    def __call__(self, parameters: Tensors) -> dict[str, Tensor]:
        """Clamp every weight."""
        return {name: t.clamp(-self.radius, self.radius) for name, t in parameters.items()}
