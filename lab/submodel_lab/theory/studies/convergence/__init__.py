"""Theorems 1 and 3: the rate to w*(p), the floor of F, random against rolling masks."""

from submodel_lab.theory.studies.convergence.cases import ConvergenceSettings
from submodel_lab.theory.studies.convergence.study import study_convergence

__all__ = ["ConvergenceSettings", "study_convergence"]
