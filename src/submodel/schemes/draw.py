"""Draws: from a scheme and the axes of a model to the cut of one client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NoReturn, cast

import numpy as np
import torch
from torch import Tensor

from submodel.core.errors import SubmodelError
from submodel.core.options import Section
from submodel.core.randomness import generator
from submodel.model.axes import CLASSES, Axes
from submodel.model.axes.layout import Along, Concatenation, FixedPart, Indices, Layout
from submodel.model.cut import COORDINATES, CoordinateCut, Granularity, Tensors, UnitCut
from submodel.schemes.scheme import Draw, Floats, Knowledge, Mask, Scheme, SchemeMemory

_BOOLEAN = np.dtype(np.bool_)  # a singleton: compared by identity, in nanoseconds
_MASK_FORM = (
    "select must return a mask: a NumPy array of {size} booleans, True where the client holds a "
    "unit (from positions: mask = np.zeros(size, bool); mask[positions] = True)"
)


# -- masks -----------------------------------------------------------------------------------------


def draw_mask(scheme: Scheme, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
    """Return the scheme's selection; raises unless it is a mask of ``size`` booleans.

    Positions, numbers or too few booleans would be read as other units. The values are not
    inspected, so that the check costs the same for a million units as for ten.

    >>> from submodel.schemes.rolling import Static
    >>> draw_mask(Static(), "hidden", 4, 0.5, Draw(0, 0, 0))
    array([ True,  True, False, False])
    """
    mask: object = scheme.select(axis, size, capacity, draw)
    if isinstance(mask, np.ndarray) and mask.dtype is _BOOLEAN and mask.shape == (size,):
        return mask
    if mask_problem(mask, size) is None:  # another boolean type
        return np.asarray(mask, dtype=_BOOLEAN)
    raise SubmodelError(
        f"scheme {type(scheme).__name__}: {question(axis, size, capacity, draw)}: "
        f"{mask_problem(mask, size)}; {_MASK_FORM.format(size=size)}"
    )


def mask_problem(mask: object, size: int) -> str | None:
    """Return the reason why an object is not a mask of ``size`` units; None if it is one.

    >>> mask_problem(np.array([0, 2]), 3)
    'the mask is of int64, not bool'
    """
    if not isinstance(mask, np.ndarray):
        return f"a {type(mask).__name__} is not a NumPy array"
    if mask.dtype != np.bool_:
        return f"the mask is of {mask.dtype}, not bool"
    if mask.shape != (size,):
        return f"the mask has shape {mask.shape}, not ({size},)"
    return None


def question(axis: str, size: int, capacity: float, draw: Draw) -> str:
    """Describe the arguments of a draw, for errors."""
    return (
        f"axis {axis!r} of {size} units, capacity {capacity:g}, round {draw.round}, "
        f"client {draw.client}"
    )


# -- cuts ------------------------------------------------------------------------------------------


def draw_units(
    scheme: Scheme,
    axes: Axes,
    capacity: float,
    draw: Draw,
    classes: Indices | None = None,
    least: Mapping[str, float] = MappingProxyType({}),
) -> UnitCut:
    """Return the unit cut that a scheme draws; ``classes`` restricts the rows of the classifier.

    ``least`` is the least share of an axis that any client holds, whatever its capacity.

    A sub-model must be a working net, so if a Bernoulli draw leaves an axis empty, one unit is
    drawn
    uniformly: with n units, the inclusion probability is p + (1 - p)^n / n instead of p.
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
    """Return the coordinate cut that a scheme draws from the flat vector of all parameters."""
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


# -- knowledge of the global model -----------------------------------------------------------------


def knowledge_for(
    scheme: Scheme,
    axes: Axes,
    parameters: Mapping[str, Tensor],
    memory: SchemeMemory,
    granularity: Granularity,
) -> Knowledge:
    """Return the model and memory for a scheme that declares their use."""
    if not scheme.looks_at_model:
        return cast("Knowledge", _UndeclaredKnowledge(scheme))
    return ModelKnowledge(axes, parameters, memory, granularity)


class _UndeclaredKnowledge:
    """Knowledge of a scheme that does not declare its use: every access raises."""

    def __init__(self, scheme: Scheme) -> None:
        self._scheme = type(scheme).__name__

    def __getattr__(self, question: str) -> NoReturn:
        if question.startswith("_"):
            raise AttributeError(question)
        raise SubmodelError(
            f"scheme {self._scheme}: select asks for draw.knowledge.{question} without declaring "
            f"it. Clients cannot repeat such a draw, so the masks must be sent: write "
            f"looks_at_model = True in class {self._scheme}; or, if the masks are those of another "
            f"scheme, class {self._scheme}(BorrowsMasks)"
        )


class ModelKnowledge(Knowledge):
    """Knowledge of the global model; each quantity is computed once."""

    def __init__(
        self,
        axes: Axes,
        parameters: Mapping[str, Tensor],
        memory: SchemeMemory,
        granularity: Granularity = "unit",
    ) -> None:
        self._axes, self._parameters, self._memory = axes, parameters, memory
        self._granularity = granularity
        self._magnitudes: dict[str, Floats] = {}

    @property
    def memory(self) -> SchemeMemory:
        """Memory of the scheme."""
        return self._memory

    @property
    def axes(self) -> Sequence[str]:
        """Axes that capacities cut; at coordinate granularity only the vector of all weights."""
        cut_by_units = self._granularity == "unit"
        return list(self._axes.cut_by_capacity) if cut_by_units else [COORDINATES]

    def magnitudes(self, axis: str) -> Floats:
        """Return the mean |w| of the weights that each unit of ``axis`` holds."""
        if axis not in self._magnitudes:
            self._magnitudes[axis] = (
                torch.cat([p.detach().abs().reshape(-1) for p in self._parameters.values()])
                .double()
                .numpy()
                if axis == COORDINATES
                else self._by_unit(axis)
            )
        return self._magnitudes[axis]

    def pieces(self, axis: str) -> Sequence[int]:
        """Return the tensors' sizes for the flat vector of all weights, otherwise the axis size."""
        if axis == COORDINATES:
            return [p.numel() for p in self._parameters.values()]
        return [self._axes.sizes[axis]]

    def shapes(self, axis: str) -> Sequence[Sequence[int]]:
        """Return the tensors' shapes for the flat vector of all weights; none for units."""
        return [p.shape for p in self._parameters.values()] if axis == COORDINATES else []

    def _by_unit(self, axis: str) -> Floats:
        """Average |w| over the weights of each unit; a weight such as w[i, i] counts once."""
        size = self._axes.sizes[axis]
        total, count = np.zeros(size), np.zeros(size)
        for name, parameter in self._parameters.items():
            if not (found := units_along(self._axes.layouts.get(name, ()), axis)):
                continue
            weights = parameter.detach().abs().double()
            for n, (d, units) in enumerate(found):
                is_new = units >= 0
                for _, earlier in found[:n]:
                    is_new = is_new & (units != earlier)
                others = tuple(k for k in range(weights.dim()) if k != d)
                part = weights * torch.from_numpy(is_new) if n else weights
                sums = (part.sum(others) if others else part).numpy()
                numbers = is_new.sum(others) * (weights.numel() // is_new.size)
                here = units.ravel() >= 0
                total += np.bincount(units.ravel()[here], sums[here], size)
                count += np.bincount(units.ravel()[here], numbers[here], size)
        return total / np.maximum(count, 1)


def units_along(layouts: Sequence[Layout], axis: str) -> list[tuple[int, Indices]]:
    """Return the positions of an axis in a tensor: a dimension, and the unit at each position.

    Units are shaped to be broadcast over the tensor; -1 means no unit. A dimension may occur twice,
    as in an outer product; separate parts of a dimension are combined.

    >>> qkv = Concatenation((Along("head", 2), FixedPart(1), Along("head", 2)))
    >>> units_along((qkv, FixedPart(3)), "head")[0][1].ravel()
    array([ 0,  1, -1,  0,  1])
    """
    found: list[tuple[int, Indices]] = []
    for d, layout in enumerate(layouts):
        for units in (units for name, units in _units_at(layout) if name == axis):
            shaped = units.reshape([-1 if k == d else 1 for k in range(len(layouts))])
            if found and found[-1][0] == d and not (np.minimum(found[-1][1], shaped) >= 0).any():
                found[-1] = d, np.maximum(found[-1][1], shaped)
            else:
                found.append((d, shaped))
    return found


@lru_cache(maxsize=1 << 12)
def _units_at(layout: Layout) -> list[tuple[str, Indices]]:
    """Return the axes of a dimension, and the unit of each at every position; -1 means no unit."""
    if isinstance(layout, FixedPart):
        return []
    if isinstance(layout, Along):
        return [(layout.axis, np.arange(layout.size))]
    axes_units, before = [], 0
    if isinstance(layout, Concatenation):
        for part in layout.parts:
            for axis, units in _units_at(part):
                whole = np.full(layout.size, -1)
                whole[before : before + part.size] = units
                axes_units.append((axis, whole))
            before += part.size
        return axes_units
    before, after = 1, layout.size
    for part in layout.parts:
        after //= part.size
        axes_units += [(a, np.tile(np.repeat(u, after), before)) for a, u in _units_at(part)]
        before *= part.size
    return axes_units


def draws_by_layer(options: Section) -> bool:
    """Return whether the section of a scheme asks for layers that draw independently."""
    return getattr(options, "alignment", "residual") == "independent"
