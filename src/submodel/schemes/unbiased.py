"""Unbiased random sub-models: weights are divided by their probability of being held (MAST).

A weight is held if the units of all its axes are. Axes are drawn independently; if one axis cuts
two dimensions of a tensor (the hidden units of an LSTM), two different units must be held.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from submodel.core.options import Section
from submodel.model.axes import Axes
from submodel.model.axes.declare import units_held
from submodel.model.axes.layout import Indices
from submodel.model.cut import Cut, Granularity, Tensors, copy_part
from submodel.model.inputs import Inputs
from submodel.schemes.draw import units_along
from submodel.schemes.random import MaskSampling, Random
from submodel.schemes.scheme import Scheme, SchemeContext
from submodel.tasks.optimisers import Gradients
from submodel.tasks.training import Step, trainable_parameters


@dataclass(frozen=True)
class Unbiased(Random):
    """MAST (Demidovich, Malinovsky, Shulgin, Richtarik 2024).

    "MAST: Model-agnostic sparsified training". The masks m are those of `Random`; the client
    computes with S w, S = diag(m_j / q_j), q_j = P(m_j = 1), so that E[S] = I, and its step is
    w <- w - eta S grad f(S w). The paper's distributed method averages the steps over all clients,
    holders or not: this is the merge rule `fill_in`, with one local step.
    """

    class Options(Section):
        """The keys of ``unbiased``."""

        sampling: MaskSampling = Field(
            "bernoulli", description="every unit with probability p, or exactly the share"
        )

    @classmethod
    def configured(cls, options: Options, context: SchemeContext) -> Self:  # type: ignore[override]  # noqa: ARG003
        """Make the scheme like `random`, without the alignment."""
        return cls(options.sampling)

    def chance(self, size: int, capacity: float, units: int = 1, spare: bool = False) -> float:
        """Return the exact probability; for p, with p + (1 - p)^n / n if a draw may not be empty.

        >>> Unbiased().chance(2, 0.5, spare=True), Unbiased("fixed").chance(4, 0.5, 2)
        (0.625, 0.16666666666666666)
        """
        if self.sampling == "fixed":
            count = units_held(capacity, size)
            return math.perm(count, units) / math.perm(size, units)
        empty = (1 - capacity) ** size if spare and units == 1 else 0.0
        return float(capacity**units + empty / size)


def weight_factors(
    scheme: Scheme,
    axes: Axes,
    parameters: Tensors,
    capacity: float,
    granularity: Granularity,
    least: Mapping[str, float],
) -> dict[str, Tensor]:
    """Return the factor of every parameter that has one: a scalar, or one per weight."""
    if granularity == "coordinate":
        total = sum(p.numel() for p in parameters.values())
        chance_by_name = dict.fromkeys(parameters, np.array(scheme.chance(total, capacity), float))
    else:
        chance_by_name = {
            name: _chance_of(scheme, axes, capacity, least, name) for name in parameters
        }
    return {
        name: _factor(chance, parameters[name])
        for name, chance in chance_by_name.items()
        if np.any(chance != 1)
    }


def _factor(q: NDArray[np.float64], like: Tensor) -> Tensor:
    """Return 1 / probability, and 0 for weights that are never held."""
    return torch.from_numpy(np.divide(1.0, q, out=np.zeros_like(q), where=q > 0)).to(like.dtype)


def _chance_of(
    scheme: Scheme, axes: Axes, capacity: float, least: Mapping[str, float], name: str
) -> NDArray[np.float64]:
    """Return the probability that each weight of a tensor is held; a scalar if all are equal."""
    layouts = axes.layouts.get(name, ())
    total: NDArray[np.float64] = np.ones(())
    for axis, size in axes.cut_by_capacity.items():
        share = max(capacity, least.get(axis, 0.0))
        members = [units for _, units in units_along(layouts, axis)]
        chances = [1.0]
        for k in range(len(members)):
            chance = scheme.chance(size, share, k + 1, spare=True)
            chances.append(1.0 if chance is None else chance)
        if len(members) == 1 and members[0].min() >= 0:
            total = np.array(total * chances[1])
        elif members and min(chances) < 1:
            total = np.array(total * np.array(chances)[distinct(members)])
    if total.min() == total.max():
        return np.array(total.min())
    return np.broadcast_to(total, [layout.size for layout in layouts])


def distinct(members: list[Indices]) -> Indices:
    """Count the different units of an axis that each weight needs; the arrays broadcast.

    >>> distinct([np.array([[0], [1]]), np.array([[0, 1, -1]])])
    array([[1, 2, 1],
           [2, 1, 1]])
    """
    count = np.zeros((), np.int64)
    for i, units in enumerate(members):
        new = units >= 0
        for earlier in members[:i]:
            new = new & (units != earlier)
        count = count + new
    return count


def factors_of_cut(cut: Cut, factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the factors of a client's weights."""
    return {
        n: copy_part(cut, n, factor) if factor.dim() else factor for n, factor in factors.items()
    }


def scaled_step(step: Step, module: nn.Module, factors: Mapping[str, Tensor]) -> Step:
    """Return the step of f(S w) for w: its gradient is S grad f(S w)."""
    parameters = dict(module.named_parameters())

    def scaled_call(number: int, x: Inputs, y: Tensor) -> tuple[Tensor, Gradients]:
        original = {name: parameters[name].data for name in factors}
        try:
            for name, factor in factors.items():
                parameters[name].data = original[name] * factor
            value, gradients = step(number, x, y)
        finally:
            for name, data in original.items():
                parameters[name].data = data
        return value, [
            gradient * factors[name] if gradient is not None and name in factors else gradient
            for name, gradient in zip(trainable_parameters(module), gradients, strict=True)
        ]

    return scaled_call
