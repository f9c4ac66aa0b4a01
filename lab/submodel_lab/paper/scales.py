"""The settings of `reproduce` in which `submodel compare --scale` compares ways."""

from __future__ import annotations

from submodel.experiments import Base, ComparisonScale, base_of
from submodel_lab.converged.to_the_end import run_to_the_end
from submodel_lab.paper.experiments import DATASETS, Scale, Variant


def scale_base(scale: Scale) -> Base:
    """The setting of `reproduce` at a scale: low heterogeneity, capacities 1 to 1/16.

    >>> scale_base(Scale.PAPER)(["scheme.name=static"]).clients.capacities
    [1.0, 0.5, 0.25, 0.125, 0.0625]
    """
    settings = Variant(DATASETS[scale][0], "low", "rolling").settings(scale, seed=0)
    return base_of({**settings, "name": scale.value})


SMOKE = ComparisonScale(scale_base(Scale.SMOKE))
SMALL = ComparisonScale(scale_base(Scale.SMALL))
CONVERGED = ComparisonScale(scale_base(Scale.CONVERGED), run_to_the_end, has_budget=False)
PAPER = ComparisonScale(scale_base(Scale.PAPER))
