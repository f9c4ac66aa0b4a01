"""Everything for everyone: FedAvg."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
