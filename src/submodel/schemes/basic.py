"""The schemes that need nothing but (seed, round, client): everything, a prefix, a fresh draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from submodel.model.capacity import prefix, units_held
from submodel.randomness import generator
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


@dataclass(frozen=True)
class Random(Scheme):
    """Fresh units for every client in every round (Algorithm 1 of the paper)."""

    sampling: Literal["bernoulli", "fixed"] = "bernoulli"

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        """``bernoulli``: each unit with probability p = capacity; ``fixed``: exactly that share.

        >>> int(Random("fixed").select("hidden", 8, 0.5, Draw(0, 0, 0)).sum())
        4
        """
        rng = generator(draw.seed, "mask", draw.round, draw.client, axis)
        if self.sampling == "bernoulli":
            return rng.random(size) < capacity
        mask = np.zeros(size, dtype=np.bool_)
        mask[rng.choice(size, units_held(capacity, size), replace=False)] = True
        return mask
