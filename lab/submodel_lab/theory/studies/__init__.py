"""The studies, one per file or folder, and the table that lists them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from submodel_lab.theory.results import OnProgress, Study


@dataclass(frozen=True)
class StudyOffer:
    """Where a study is: imported when it is used, as scipy and scikit-learn take seconds."""

    module: str
    settings: str
    function: str

    def default_settings(self) -> Any:
        """Its settings, a frozen dataclass of its own.

        >>> STUDIES["residual"].default_settings().clients
        4
        """
        return getattr(self._load(), self.settings)()

    def run(self, settings: Any, on_progress: OnProgress) -> Study:
        """Measure everything.

        >>> from dataclasses import replace
        >>> from submodel_lab.theory.results import report_nothing
        >>> offer = STUDIES["residual"]
        >>> settings = replace(offer.default_settings(), problems=1, dimensions=(4,))
        >>> offer.run(settings, report_nothing).name
        'residual'
        """
        from submodel_lab.theory.studies.sweeps import check_settings

        function: Callable[[Any, OnProgress], Study] = getattr(self._load(), self.function)
        check_settings(settings)
        return function(settings, on_progress)

    def _load(self) -> Any:
        return importlib.import_module(f"submodel_lab.theory.studies.{self.module}")


STUDIES = {
    "convergence": StudyOffer("convergence", "ConvergenceSettings", "study_convergence"),
    "residual": StudyOffer("residual", "ResidualSettings", "study_residual"),
    "lemmas": StudyOffer("lemmas", "LemmaSettings", "study_lemmas"),
    "nonconvex": StudyOffer("nonconvex", "NonconvexSettings", "study_nonconvex"),
    "stability": StudyOffer("stability", "StabilitySettings", "study_stability"),
    "generalization": StudyOffer(
        "generalization", "GeneralizationSettings", "study_generalization"
    ),
    "beyond": StudyOffer("beyond", "BeyondSettings", "study_beyond"),
    "problem": StudyOffer("one_problem", "OneProblemSettings", "study_one_problem"),
}
"""What ``submodel study`` takes, by name."""
