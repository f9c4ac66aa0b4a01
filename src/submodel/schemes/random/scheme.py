"""A fresh draw for every client and round: Algorithm 1 of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from submodel.model.capacity import units_held
from submodel.randomness import generator
from submodel.schemes.base import Draw, Mask, Scheme


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
