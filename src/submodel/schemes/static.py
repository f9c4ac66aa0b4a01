"""Schemes without a choice: everything for everyone (FedAvg), and the first units (HeteroFL)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from submodel.model.capacity import prefix, units_held
from submodel.schemes.base import Draw, Mask, Scheme


@dataclass(frozen=True)
class Full(Scheme):
    """Every client holds everything: FedAvg (McMahan et al. 2017)."""

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:  # noqa: ARG002
        """All units.

        >>> Full().select("hidden", 3, 1.0, Draw(0, 0, 0))
        array([ True,  True,  True])
        """
        return np.ones(size, dtype=np.bool_)


@dataclass(frozen=True)
class Static(Scheme):
    """The first units, the same in every round: HeteroFL (Diao et al. 2021)."""

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:  # noqa: ARG002
        """The first share of the units, so that smaller cuts nest in larger ones.

        >>> Static().select("hidden", 4, 0.5, Draw(0, 0, 0))
        array([ True,  True, False, False])
        """
        return prefix(size, units_held(capacity, size))
