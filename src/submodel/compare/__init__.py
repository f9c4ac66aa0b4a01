"""Comparing ways to train fairly: the same data, seeds and budget for all."""

from submodel.compare.budget import BudgetKind
from submodel.compare.comparison import compare
from submodel.compare.findings import Findings

__all__ = ["BudgetKind", "Findings", "compare"]
