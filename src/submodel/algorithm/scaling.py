"""The factors that a scheme's clients multiply their weights with, for a setup."""

from __future__ import annotations

from torch import Tensor

from submodel.algorithm.types import Setup
from submodel.model.cut import Tensors
from submodel.schemes.protocols import HasChances
from submodel.schemes.roles import role
from submodel.schemes.unbiased.factors import weight_factors


def setup_factors(setup: Setup, capacity: float) -> dict[str, Tensor]:
    """The factor of every parameter that has one: a number, or one for every weight."""
    if role(setup.scheme, HasChances) is None:
        return {}
    parameters = {name: p.detach() for name, p in setup.module.named_parameters()}
    return weight_factors(
        setup.scheme, setup.axes, parameters, capacity, setup.granularity, setup.least
    )


def scale_model(setup: Setup, tensors: Tensors, capacity: float) -> dict[str, Tensor]:
    """The global model as sub-models of a capacity use it: S w, before it is cut."""
    factors = setup_factors(setup, capacity)
    return {n: t * factors[n].to(t) if n in factors else t for n, t in tensors.items()}
