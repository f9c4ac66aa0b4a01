"""Beyond the paper: unbiased masks, the best p for a budget, order of windows, participation."""

from submodel.theory.studies.beyond.bench import BeyondSettings
from submodel.theory.studies.beyond.study import study_beyond

__all__ = ["BeyondSettings", "study_beyond"]
