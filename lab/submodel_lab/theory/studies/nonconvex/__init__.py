"""Theorems 2 and 4: stationarity of the masked objective, and of the original one."""

from submodel_lab.theory.studies.nonconvex.cases import NonconvexSettings
from submodel_lab.theory.studies.nonconvex.study import study_nonconvex

__all__ = ["NonconvexSettings", "study_nonconvex"]
