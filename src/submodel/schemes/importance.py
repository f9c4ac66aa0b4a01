"""Importance by magnitude: a client holds the largest units or weights of the global model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from submodel.core.options import Section
from submodel.model.axes.declare import units_held
from submodel.schemes.scheme import Draw, Floats, Knowledge, Mask, RunFacts, Scheme

Scope = Literal["axis", "global"]
"""The set of units (or weights) that are ranked together: of an axis (or tensor), or all."""


@dataclass(frozen=True)
class Importance(Scheme):
    """FIARSE's masks (Wu, Wang, Wang, Liu, Su, Gao 2024).

    "FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware Submodel Extraction": of
    the global model w with which a round begins, a client of capacity c holds the largest weights,
    m_i[j] = 1 where |w[j]| is among the ceil(c d) largest of the d ranked together, or the largest
    units by the mean |w| of their weights, which include scales and shifts of norms.
    Ties are resolved by position. Capacities nest, and clients of one capacity hold the same.

    ``axis`` ranks the units of each axis separately, single weights tensor by tensor; it is the
    default for units. ``global``, the default for single weights, as in FIARSE, ranks all of them
    together, or the units of all axes. Every axis then keeps at least its largest unit, so an axis
    may be held to more than the capacity's share, others to less.

    Of single weights only those in two or more dimensions are ranked, and d counts only them. All
    clients hold the others, norms and biases: the scales of a norm start equal, so a share of them
    would be the first few, and the outputs of other channels would be multiplied by zero.

    The mask is fixed for the round: clients run plain masked SGD, and the merge uses the mask. The
    published code instead compares |w| with a threshold in every forward pass, so a client's mask
    changes during training; counts a weight as held if it changed, so an unchanged one is missing
    in the denominator; ranks biases; and holds floor(c d).
    """

    scope: Scope | None = None
    looks_at_model = True

    class Options(Section):
        """The keys of ``importance``."""

        scope: Scope | None = Field(
            None,
            description="what is ranked together: an axis (weights: a tensor), or all (default: "
            "units axis; weights global, as FIARSE)",
        )

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        """Select the largest of the axis, of each of its tensors, or of all together."""
        knowledge = draw.knowledge
        if shapes := knowledge.shapes(axis):
            choose = _largest_of_each if self.scope == "axis" else _largest_of_all
            return choose(knowledge.magnitudes(axis), shapes, capacity)
        if self.scope == "global":
            return _among_axes(axis, capacity, knowledge)
        return largest(knowledge.magnitudes(axis), units_held(capacity, size))

    def problems(self, run: RunFacts) -> list[str]:
        """Return problems: a least share under a ranking of all axes, or nothing to rank."""
        problems = []
        if self.scope == "global" and run.least:
            problems.append(
                "axes.least: scheme.scope = 'global' ranks all axes together, so that none has "
                "a share of its own; use scheme.scope = 'axis'"
            )
        shapes, single = run.shapes.values(), run.granularity == "coordinate"
        if single and shapes and min(run.capacities) < 1 and not any(map(_is_ranked, shapes)):
            problems.append(
                "scheme.granularity: 'importance' ranks single weights in two or more dimensions, "
                "and this model has none: all clients would hold everything; use another scheme"
            )
        return problems


def largest(values: Floats, count: int) -> Mask:
    """Return a mask of the ``count`` largest values; ties are resolved by position.

    >>> largest(np.array([1.0, 3.0, 2.0, 3.0, 2.0]), 3)
    array([False,  True,  True,  True, False])
    """
    if count >= len(values):
        return np.ones(len(values), dtype=np.bool_)
    if count <= 0:
        return np.zeros(len(values), dtype=np.bool_)
    least = np.partition(values, len(values) - count)[len(values) - count]
    mask: Mask = values > least
    mask[np.flatnonzero(values == least)[: count - int(mask.sum())]] = True
    return mask


def _is_ranked(shape: Sequence[int]) -> bool:
    """Return whether the weights of a tensor are ranked; all clients hold norms and biases."""
    return len(shape) > 1


def _largest_of_each(values: Floats, shapes: Sequence[Sequence[int]], capacity: float) -> Mask:
    sizes = [math.prod(shape) for shape in shapes]
    parts = np.split(values, np.cumsum(sizes)[:-1])
    return np.concatenate(
        [
            largest(part, units_held(capacity, size) if _is_ranked(shape) else size)
            for part, shape, size in zip(parts, shapes, sizes, strict=True)
        ]
    )


def _largest_of_all(values: Floats, shapes: Sequence[Sequence[int]], capacity: float) -> Mask:
    is_ranked = np.repeat([_is_ranked(shape) for shape in shapes], [math.prod(s) for s in shapes])
    mask = np.ones(len(values), dtype=np.bool_)
    mask[is_ranked] = largest(values[is_ranked], units_held(capacity, int(is_ranked.sum())))
    return mask


def _among_axes(axis: str, capacity: float, knowledge: Knowledge) -> Mask:
    """Select the axis's part of the largest units of all axes; the largest of each axis is held."""
    values = {name: knowledge.magnitudes(name) for name in knowledge.axes}
    together = np.concatenate(list(values.values()))
    starts = dict(zip(values, np.cumsum([0, *map(len, values.values())]), strict=False))
    first = [int(starts[name] + np.argmax(values[name])) for name in values]
    together[first] = np.inf
    mask = largest(together, max(units_held(capacity, len(together)), len(first)))
    return mask[starts[axis] :][: len(values[axis])]
