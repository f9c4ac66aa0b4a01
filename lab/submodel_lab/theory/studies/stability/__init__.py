"""Theorems 5 and 6: how far one changed example moves the trained model, and the gap it bounds."""

from submodel_lab.theory.studies.stability.cases import StabilitySettings
from submodel_lab.theory.studies.stability.study import study_stability

__all__ = ["StabilitySettings", "study_stability"]
