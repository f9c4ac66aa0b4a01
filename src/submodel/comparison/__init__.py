"""Comparisons of many runs: plans, records and statistics."""

from typing import TYPE_CHECKING

from submodel.core.lazy import lazily

if TYPE_CHECKING:
    from submodel.comparison.arms import EXCLUSIVE, Arm, Way, parse_arms, parse_ways
    from submodel.comparison.budgets import BudgetKind, parse_budget, rounds_within
    from submodel.comparison.plan import (
        Base,
        ComparisonPlan,
        ComparisonScale,
        base_of,
        compare,
        run_plan,
    )
    from submodel.comparison.records import (
        BY_TEST_BATCH,
        MEASURES,
        RATES_ENDING,
        ArmRecord,
        Line,
        SeedRun,
        VariantRecord,
        portable,
        put_together,
    )
    from submodel.comparison.results import ArmResult, ComparisonResult, Findings, WayRecord
    from submodel.comparison.runner import SCORE, Course, FlatRule, Job, Runner, sum_known
    from submodel.comparison.statistics import (
        EQUAL,
        HOLDS,
        JUDGEMENT_HEADINGS,
        LEAST_SEEDS,
        LEVEL,
        PLUS_MINUS,
        REVERSED,
        UNDECIDED,
        Judgement,
        behind_best,
        counted,
        describe_judgement,
        how_to_read,
        judge,
        least_ratio,
        number,
        spread,
    )

__all__ = [
    "BY_TEST_BATCH", "EQUAL", "EXCLUSIVE", "HOLDS", "JUDGEMENT_HEADINGS", "LEAST_SEEDS", "LEVEL",
    "MEASURES", "PLUS_MINUS", "RATES_ENDING", "REVERSED", "SCORE", "UNDECIDED", "Arm", "ArmRecord",
    "ArmResult", "Base", "BudgetKind", "ComparisonPlan", "ComparisonResult", "ComparisonScale",
    "Course", "Findings", "FlatRule", "Job", "Judgement", "Line", "Runner", "SeedRun",
    "VariantRecord", "Way", "WayRecord", "base_of", "behind_best", "compare", "counted",
    "describe_judgement", "how_to_read", "judge", "least_ratio", "number", "parse_arms",
    "parse_budget", "parse_ways", "portable", "put_together", "rounds_within", "run_plan",
    "spread", "sum_known",
]  # fmt: skip
__getattr__ = lazily(__name__)
