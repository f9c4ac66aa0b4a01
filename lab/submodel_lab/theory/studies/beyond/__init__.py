"""Beyond the paper: unbiased masks, the best p for a budget, order of windows, participation."""

from submodel_lab.theory.studies.beyond.bench import BeyondSettings
from submodel_lab.theory.studies.beyond.study import study_beyond

__all__ = ["BeyondSettings", "study_beyond"]
