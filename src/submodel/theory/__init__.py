"""The lab: problems with known constants, studies of theorems. May import experiments and below."""

from submodel.theory.constants import Constants, constants
from submodel.theory.data import Directions, load
from submodel.theory.lab import Trajectory, TrialPlan, run
from submodel.theory.masked import Masked, Masking, bernoulli, rolling
from submodel.theory.problems import (
    Logistic,
    Net,
    Problem,
    Quadratic,
    Ridge,
    TheoryError,
    quadratics,
)

__all__ = [
    "Constants",
    "Directions",
    "Logistic",
    "Masked",
    "Masking",
    "Net",
    "Problem",
    "Quadratic",
    "Ridge",
    "TheoryError",
    "Trajectory",
    "TrialPlan",
    "bernoulli",
    "constants",
    "load",
    "quadratics",
    "rolling",
    "run",
]
