"""Problems with known constants, masks, exact moments, trials, and studies of the theorems."""

from typing import TYPE_CHECKING

from submodel.core import lazily

if TYPE_CHECKING:
    from submodel_lab.theory.data import Directions, load_split
    from submodel_lab.theory.exact import ExactTrajectory, exact_moments
    from submodel_lab.theory.masking import Masking, bernoulli, coordinatewise, mask_list, rolling
    from submodel_lab.theory.objective import Constants, MaskedObjective, constants
    from submodel_lab.theory.own_problems import ModuleProblem, PosedProblem, load_problem
    from submodel_lab.theory.problems import (
        Logistic,
        Net,
        Problem,
        Quadratic,
        Ridge,
        TheoryError,
        pad_examples,
        quadratics,
    )
    from submodel_lab.theory.trials import Trajectory, TrialPlan, run_trials

__all__ = [
    "Constants", "Directions", "ExactTrajectory", "Logistic", "MaskedObjective", "Masking",
    "ModuleProblem", "Net", "PosedProblem", "Problem", "Quadratic", "Ridge", "TheoryError",
    "Trajectory", "TrialPlan", "bernoulli", "constants", "coordinatewise", "exact_moments",
    "load_problem", "load_split", "mask_list", "pad_examples", "quadratics", "rolling",
    "run_trials",
]  # fmt: skip
__getattr__ = lazily(__name__)
