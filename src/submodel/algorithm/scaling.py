"""The factors that a scheme's clients multiply their weights with, for a setup."""

from __future__ import annotations

from torch import Tensor

from submodel.algorithm.types import Setup
from submodel.model.cut import Tensors
from submodel.schemes.unbiased import scaling


def scales(setup: Setup, capacity: float) -> dict[str, Tensor]:
    """The factor of every parameter that has one: a number, or one for every weight."""
    parameters = {name: p.detach() for name, p in setup.module.named_parameters()}
    return scaling.scales(
        setup.scheme, setup.axes, parameters, capacity, setup.granularity, setup.least
    )


def scaled(setup: Setup, tensors: Tensors, capacity: float) -> dict[str, Tensor]:
    """The global model as sub-models of a capacity use it: S w, before it is cut."""
    factors = scales(setup, capacity)
    return {n: t * factors[n].to(t) if n in factors else t for n, t in tensors.items()}
