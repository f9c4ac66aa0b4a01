"""From a scheme and the axes of a model to the cut of one client."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch

from submodel.model.axes import CLASSES, Axes
from submodel.model.axes.layout import Indices
from submodel.model.cut import COORDINATES, CoordinateCut, Tensors, UnitCut
from submodel.randomness import generator
from submodel.schemes.base import Draw, Scheme
from submodel.schemes.masks import draw_mask


def draw_units(
    scheme: Scheme,
    axes: Axes,
    capacity: float,
    draw: Draw,
    classes: Indices | None = None,
    least: Mapping[str, float] = MappingProxyType({}),
) -> UnitCut:
    """The unit cut that a scheme draws; ``classes`` keeps only those rows of the classifier.

    ``least`` is the least share of an axis that any client holds, whatever its capacity.

    A sub-model must be a working net, so where a Bernoulli draw leaves an axis empty, one unit,
    drawn uniformly, stays: with n units, unit inclusion is p + (1 - p)^n / n instead of p.
    """
    units: dict[str, Indices] = {}
    for axis, size in axes.cut_by_capacity.items():
        share = max(capacity, least.get(axis, 0.0))
        positions = np.flatnonzero(draw_mask(scheme, axis, size, share, draw))
        if not len(positions):
            positions = generator(draw.seed, "spare", draw.round, draw.client, axis).integers(
                size, size=1
            )
        if len(positions) < size:
            units[axis] = positions
    if classes is not None and len(classes) < axes.sizes.get(CLASSES, 0):
        units[CLASSES] = classes
    return UnitCut(axes, units)


def draw_coordinates(
    scheme: Scheme,
    axes: Axes,
    parameters: Tensors,
    capacity: float,
    draw: Draw,
    classes: Indices | None = None,
) -> CoordinateCut:
    """The coordinate cut that a scheme draws: the flat vector of all parameters is the one axis."""
    total = sum(tensor.numel() for tensor in parameters.values())
    flat = torch.from_numpy(draw_mask(scheme, COORDINATES, total, capacity, draw))
    rows = UnitCut(axes, {} if classes is None else {CLASSES: classes})
    masks, start = {}, 0
    for name, tensor in parameters.items():
        mask = flat[start : start + tensor.numel()].view(tensor.shape)
        start += tensor.numel()
        if rows.value_count(name, tensor.shape) < tensor.numel():
            present = torch.zeros(tensor.shape)
            rows.add(name, present, 1.0)
            mask = mask & (present > 0)
        masks[name] = mask
    return CoordinateCut(masks)
