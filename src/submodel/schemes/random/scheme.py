"""A fresh draw for every client and round: Algorithm 1 of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from pydantic import Field

from submodel.model.capacity import units_held
from submodel.options import Section
from submodel.randomness import generator
from submodel.schemes.base import Draw, Mask, Scheme, SchemeContext

MaskSampling = Literal["bernoulli", "fixed"]


@dataclass(frozen=True)
class Random(Scheme):
    """Fresh units for every client in every round (Algorithm 1 of the paper)."""

    sampling: MaskSampling = "bernoulli"

    class Options(Section):
        """The keys of ``random``."""

        sampling: MaskSampling = Field(
            "bernoulli", description="every unit with probability p, or exactly the share"
        )
        alignment: Literal["residual", "independent"] = Field(
            "residual",
            description="independent: every convolution draws its own channels, as in FedRolex's "
            "code; not a valid cut, to reproduce published results (fixed, unit, preresnet)",
        )

    @classmethod
    def configured(cls, options: Options, context: SchemeContext) -> Self:  # noqa: ARG003
        """``alignment`` is a matter of who draws (see `independent`)."""
        return cls(options.sampling)

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
