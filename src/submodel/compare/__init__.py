"""Comparing ways to train fairly: the same data, seeds and budget for all."""

from typing import TYPE_CHECKING

from submodel.compare.kinds import BudgetKind
from submodel.imports import lazily

if TYPE_CHECKING:
    from submodel.compare.comparison import compare
    from submodel.compare.findings import Findings

__all__ = ["BudgetKind", "Findings", "compare"]
__getattr__ = lazily(
    __name__,
    {"compare": "submodel.compare.comparison", "Findings": "submodel.compare.findings"},
)
