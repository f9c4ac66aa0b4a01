"""The lab's problems, whose constants are known or can be measured."""

from submodel_lab.theory.problems.base import FloatArray, Problem, TheoryError
from submodel_lab.theory.problems.examples import Logistic, Ridge, Samples, pad_examples
from submodel_lab.theory.problems.net import Net
from submodel_lab.theory.problems.quadratic import Quadratic, quadratics

__all__ = [
    "FloatArray",
    "Logistic",
    "Net",
    "Problem",
    "Quadratic",
    "Ridge",
    "Samples",
    "TheoryError",
    "pad_examples",
    "quadratics",
]
