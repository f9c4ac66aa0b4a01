"""Asking a scheme for a mask, and holding its answer to what a mask is."""

from __future__ import annotations

import numpy as np

from submodel.errors import SubmodelError
from submodel.schemes.base import Draw, Mask, Scheme

_BOOLEAN = np.dtype(np.bool_)  # of which there is one: compared by identity, in nanoseconds
_MASK_FORM = (
    "select must return a mask: a NumPy array of {size} booleans, True where the client holds a "
    "unit (from positions: mask = np.zeros(size, bool); mask[positions] = True)"
)


def draw_mask(scheme: Scheme, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
    """What the scheme selects; refused unless it is a mask of ``size`` booleans.

    Positions, numbers or too few booleans would be taken for units that nobody meant. The values
    are not looked at, so that asking costs the same for a million units as for ten.

    >>> from submodel.schemes.static import Static
    >>> draw_mask(Static(), "hidden", 4, 0.5, Draw(0, 0, 0))
    array([ True,  True, False, False])
    """
    mask: object = scheme.select(axis, size, capacity, draw)
    if isinstance(mask, np.ndarray) and mask.dtype is _BOOLEAN and mask.shape == (size,):
        return mask
    if mask_problem(mask, size) is None:  # booleans by another name
        return np.asarray(mask, dtype=_BOOLEAN)
    raise SubmodelError(
        f"scheme {type(scheme).__name__}: {question(axis, size, capacity, draw)}: "
        f"{mask_problem(mask, size)}; {_MASK_FORM.format(size=size)}"
    )


def mask_problem(mask: object, size: int) -> str | None:
    """Why this is no mask of ``size`` units; None if it is one.

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
    """What a scheme was asked, for errors."""
    return (
        f"axis {axis!r} of {size} units, capacity {capacity:g}, round {draw.round}, "
        f"client {draw.client}"
    )
