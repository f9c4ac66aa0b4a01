"""Studies of theorems, one per file, and their registry."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from submodel_lab.theory.results import OnProgress, Study


@dataclass(frozen=True)
class StudyEntry:
    """Registry entry of a study, imported on use, as scipy and scikit-learn take seconds."""

    module: str
    settings: str
    function: str

    def default_settings(self) -> Any:
        """Return the default settings, a frozen dataclass of the study.

        >>> STUDIES["residual"].default_settings().clients
        4
        """
        return getattr(self._load(), self.settings)()

    def run(self, settings: Any, on_progress: OnProgress) -> Study:
        """Run the study.

        >>> from dataclasses import replace
        >>> from submodel_lab.theory.results import report_nothing
        >>> entry = STUDIES["residual"]
        >>> settings = replace(entry.default_settings(), problems=1, dimensions=(4,))
        >>> entry.run(settings, report_nothing).name
        'residual'
        """
        from submodel_lab.theory.studies.sweeps import check_settings

        function: Callable[[Any, OnProgress], Study] = getattr(self._load(), self.function)
        check_settings(settings)
        return function(settings, on_progress)

    def _load(self) -> Any:
        return importlib.import_module(f"submodel_lab.theory.studies.{self.module}")


STUDIES = {
    "convergence": StudyEntry("convergence", "ConvergenceSettings", "study_convergence"),
    "residual": StudyEntry("residual", "ResidualSettings", "study_residual"),
    "lemmas": StudyEntry("lemmas", "LemmaSettings", "study_lemmas"),
    "nonconvex": StudyEntry("nonconvex", "NonconvexSettings", "study_nonconvex"),
    "stability": StudyEntry("stability", "StabilitySettings", "study_stability"),
    "generalization": StudyEntry(
        "generalization", "GeneralizationSettings", "study_generalization"
    ),
    "beyond": StudyEntry("beyond", "BeyondSettings", "study_beyond"),
    "problem": StudyEntry("one_problem", "OneProblemSettings", "study_one_problem"),
}
"""Studies by name."""
