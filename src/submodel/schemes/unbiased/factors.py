"""What unbiased sub-models multiply their weights with: 1 / the chance that a weight is held.

A weight is held when the units of all its axes are. Axes are drawn independently; where one axis
cuts two dimensions of a tensor (the hidden units of an LSTM), two different units must be held.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from submodel.local.optimisers import Gradients
from submodel.local.training import Step, trainable_parameters
from submodel.model.axes import Axes
from submodel.model.axes.layout import Along, Concatenation, FixedPart, Layout
from submodel.model.cut import Cut, Granularity, Tensors, copy_part
from submodel.model.inputs import Inputs
from submodel.schemes.base import Scheme
from submodel.schemes.protocols import HasChances
from submodel.schemes.roles import role

_Units = NDArray[np.int64]


def weight_factors(
    scheme: Scheme,
    axes: Axes,
    parameters: Tensors,
    capacity: float,
    granularity: Granularity,
    least: Mapping[str, float],
) -> dict[str, Tensor]:
    """The factor of every parameter that has one: a number, or one for every weight."""
    provider = role(scheme, HasChances)
    if provider is None or provider.chance(1, 1.0) is None:
        return {}
    if granularity == "coordinate":
        total = sum(p.numel() for p in parameters.values())
        chance_by_name = dict.fromkeys(
            parameters, np.array(provider.chance(total, capacity), float)
        )
    else:
        chance_by_name = {
            name: _chance_of(provider, axes, capacity, least, name) for name in parameters
        }
    return {
        name: _factor(chance, parameters[name])
        for name, chance in chance_by_name.items()
        if np.any(chance != 1)
    }


def _factor(q: NDArray[np.float64], like: Tensor) -> Tensor:
    """1 / chance, and 0 for what is never held."""
    return torch.from_numpy(np.divide(1.0, q, out=np.zeros_like(q), where=q > 0)).to(like.dtype)


def _chance_of(
    scheme: HasChances, axes: Axes, capacity: float, least: Mapping[str, float], name: str
) -> NDArray[np.float64]:
    """The chance that each weight of a tensor is held; one number where all have the same."""
    layouts = axes.layouts.get(name, ())
    by_axis: dict[str, list[_Units]] = {}
    for d, layout in enumerate(layouts):
        shape = [-1 if k == d else 1 for k in range(len(layouts))]
        for axis, units in units_at(layout):
            by_axis.setdefault(axis, []).append(units.reshape(shape))
    total: NDArray[np.float64] = np.ones(())
    for axis, size in axes.cut_by_capacity.items():
        share = max(capacity, least.get(axis, 0.0))
        members = by_axis.get(axis, [])
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


def units_at(layout: Layout) -> list[tuple[str, _Units]]:
    """The axes that a dimension is made of, and the unit of each at every position; -1: none.

    >>> units_at(Concatenation((Along("a", 2), FixedPart(1))))
    [('a', array([ 0,  1, -1]))]
    """
    if isinstance(layout, FixedPart):
        return []
    if isinstance(layout, Along):
        return [(layout.axis, np.arange(layout.size))]
    axes_units, before = [], 0
    if isinstance(layout, Concatenation):
        for part in layout.parts:
            for axis, units in units_at(part):
                whole = np.full(layout.size, -1)
                whole[before : before + part.size] = units
                axes_units.append((axis, whole))
            before += part.size
        return axes_units
    before, after = 1, layout.size
    for part in layout.parts:
        after //= part.size
        axes_units += [(a, np.tile(np.repeat(u, after), before)) for a, u in units_at(part)]
        before *= part.size
    return axes_units


def distinct(members: list[_Units]) -> NDArray[np.int64]:
    """How many different units of an axis each weight needs; the arrays broadcast.

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
    """The factors of what a client holds."""
    return {
        n: copy_part(cut, n, factor) if factor.dim() else factor for n, factor in factors.items()
    }


def scaled_step(step: Step, module: nn.Module, factors: Mapping[str, Tensor]) -> Step:
    """The step of f(S w), for w: its gradient is S grad f(S w)."""
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
