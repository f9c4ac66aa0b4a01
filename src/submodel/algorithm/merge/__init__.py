"""The merge: guards, exact sums and merge rules."""

from submodel.algorithm.merge.accumulator import Accumulator, coverage
from submodel.algorithm.merge.exact import (
    LARGEST_VALUE,
    LARGEST_WEIGHT_SUM,
    exact_weight,
    unsound,
)
from submodel.algorithm.merge.rules import (
    FILL_IN,
    SELECTIVE,
    HasSums,
    MergeRule,
    average,
    merge_rule,
)

__all__ = [
    "FILL_IN",
    "LARGEST_VALUE",
    "LARGEST_WEIGHT_SUM",
    "SELECTIVE",
    "Accumulator",
    "HasSums",
    "MergeRule",
    "average",
    "coverage",
    "exact_weight",
    "merge_rule",
    "unsound",
]
