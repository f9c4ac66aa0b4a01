"""What of a model was held by whom, in every round of a run: `coverage_of` its folder."""

from submodel.report.coverage.build import client_cut, coverage_of
from submodel.report.coverage.types import RunCoverage

__all__ = ["RunCoverage", "client_cut", "coverage_of"]
