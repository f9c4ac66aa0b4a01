"""Importance by size: a client holds the largest units or weights of the global model."""

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
"""Whether the largest are taken of every axis (of every tensor, for single weights) or of all."""


@dataclass(frozen=True)
class Importance(Scheme):
    """FIARSE's masks (Wu, Wang, Wang, Liu, Su, Gao 2024).

    "FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware Submodel Extraction": of
    the global model w with which a round begins, a client of capacity c holds the largest weights,
    m_i[j] = 1 where |w[j]| is among the ceil(c d) largest of the d ranked together, or the largest
    units by the mean |w| of the weights that go with them, scales and shifts of norms among them.
    Ties go to the earlier position. Capacities nest, and all clients of a capacity hold the same.

    ``axis`` ranks the units of each axis by themselves, single weights tensor by tensor; it is the
    default for units. ``global`` ranks the units of all axes together, every axis keeping its
    largest, so that an axis may be held to more than the capacity's share, others to less; or all
    single weights together, as FIARSE does: the default for them.

    Of single weights only those in two or more dimensions are ranked, and d counts them alone.
    Everybody holds the others, norms and biases: the scales of a norm begin as equals, so a share
    of them is the first few, and what another channel computes would be multiplied by zero.

    The mask stands for the round: clients run plain masked SGD on it, and the merge goes by it. The
    published code instead compares |w| with a threshold in every forward pass, so a client's mask
    changes under way; takes a weight for held where its change is not zero, so one that came back
    as it went is missing in the denominator; ranks biases; and holds floor(c d).
    """

    scope: Scope | None = None
    looks_at_model = True

    class Options(Section):
        """The keys of ``importance``."""

        scope: Scope | None = Field(
            None,
            description="the largest of every axis (weights: of every tensor), or of all "
            "(default: units axis; weights global, as FIARSE)",
        )

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        """The largest of the axis, of each of its tensors, or what the ranking of all leaves it."""
        knowledge = draw.knowledge
        if shapes := knowledge.shapes(axis):
            choose = _largest_of_each if self.scope == "axis" else _largest_of_all
            return choose(knowledge.magnitudes(axis), shapes, capacity)
        if self.scope == "global":
            return _among_axes(axis, capacity, knowledge)
        return largest(knowledge.magnitudes(axis), units_held(capacity, size))

    def problems(self, run: RunFacts) -> list[str]:
        """A ranking of all axes together promises no share of any; and there must be a ranking."""
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
                "and this model has none: everybody would hold everything; use another scheme"
            )
        return problems


def largest(values: Floats, count: int) -> Mask:
    """The ``count`` largest values; of equal ones the earlier.

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
    """Whether the weights of a tensor are ranked; norms and biases are held by all."""
    return len(shape) > 1


def _largest_of_each(values: Floats, shapes: Sequence[Sequence[int]], capacity: float) -> Mask:
    """The share of every tensor."""
    sizes = [math.prod(shape) for shape in shapes]
    parts = np.split(values, np.cumsum(sizes)[:-1])
    return np.concatenate(
        [
            largest(part, units_held(capacity, size) if _is_ranked(shape) else size)
            for part, shape, size in zip(parts, shapes, sizes, strict=True)
        ]
    )


def _largest_of_all(values: Floats, shapes: Sequence[Sequence[int]], capacity: float) -> Mask:
    """The share of all tensors together."""
    is_ranked = np.repeat([_is_ranked(shape) for shape in shapes], [math.prod(s) for s in shapes])
    mask = np.ones(len(values), dtype=np.bool_)
    mask[is_ranked] = largest(values[is_ranked], units_held(capacity, int(is_ranked.sum())))
    return mask


def _among_axes(axis: str, capacity: float, knowledge: Knowledge) -> Mask:
    """The axis's part of the largest units of all axes, the first of each axis being set."""
    values = {name: knowledge.magnitudes(name) for name in knowledge.axes}
    together = np.concatenate(list(values.values()))
    starts = dict(zip(values, np.cumsum([0, *map(len, values.values())]), strict=False))
    first = [int(starts[name] + np.argmax(values[name])) for name in values]
    together[first] = np.inf
    mask = largest(together, max(units_held(capacity, len(together)), len(first)))
    return mask[starts[axis] :][: len(values[axis])]
