"""The lab: problems with known constants, studies of theorems. May import experiments and below."""

from typing import TYPE_CHECKING

from submodel.lazy import lazily

if TYPE_CHECKING:
    from submodel.theory.data import Directions, load_split
    from submodel.theory.exact import ExactTrajectory, exact_moments
    from submodel.theory.lab import Trajectory, TrialPlan, run_trials
    from submodel.theory.masking import Masking, bernoulli, coordinatewise, mask_list, rolling
    from submodel.theory.objective import MaskedObjective
    from submodel.theory.problem_constants import Constants, constants
    from submodel.theory.problems import (
        Logistic,
        Net,
        Problem,
        Quadratic,
        Ridge,
        TheoryError,
        pad_examples,
        quadratics,
    )
    from submodel.theory.problems.loading import PosedProblem, load_problem
    from submodel.theory.problems.module import ModuleProblem

__all__ = [
    "Constants",
    "Directions",
    "ExactTrajectory",
    "Logistic",
    "MaskedObjective",
    "Masking",
    "ModuleProblem",
    "Net",
    "PosedProblem",
    "Problem",
    "Quadratic",
    "Ridge",
    "TheoryError",
    "Trajectory",
    "TrialPlan",
    "bernoulli",
    "constants",
    "coordinatewise",
    "exact_moments",
    "load_problem",
    "load_split",
    "mask_list",
    "pad_examples",
    "quadratics",
    "rolling",
    "run_trials",
]
_PROBLEMS = (
    *("Logistic", "Net", "Problem", "Quadratic", "Ridge", "TheoryError"),
    *("pad_examples", "quadratics"),
)
_MASKINGS = ("Masking", "bernoulli", "coordinatewise", "mask_list", "rolling")
# scipy and scikit-learn take seconds that the list of studies does not need
__getattr__ = lazily(
    __name__,
    {
        **dict.fromkeys(("Directions", "load_split"), "submodel.theory.data"),
        **dict.fromkeys(("ExactTrajectory", "exact_moments"), "submodel.theory.exact"),
        **dict.fromkeys(("Trajectory", "TrialPlan", "run_trials"), "submodel.theory.lab"),
        **dict.fromkeys(_MASKINGS, "submodel.theory.masking"),
        "MaskedObjective": "submodel.theory.objective",
        **dict.fromkeys(("Constants", "constants"), "submodel.theory.problem_constants"),
        **dict.fromkeys(_PROBLEMS, "submodel.theory.problems"),
        **dict.fromkeys(("PosedProblem", "load_problem"), "submodel.theory.problems.loading"),
        "ModuleProblem": "submodel.theory.problems.module",
    },
)
