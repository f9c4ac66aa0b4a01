"""Many runs: comparisons, their records, one statistics."""

from typing import TYPE_CHECKING

from submodel.lazy import lazily

if TYPE_CHECKING:
    from submodel.experiments.budgets import BudgetKind, parse_budget, rounds_within
    from submodel.experiments.comparison.findings import Findings, WayRecord
    from submodel.experiments.comparison.plan import (
        Base,
        ComparisonPlan,
        base_of,
        compare,
        run_plan,
    )
    from submodel.experiments.comparison.scales import ComparisonScale
    from submodel.experiments.comparison.together import put_together
    from submodel.experiments.comparison.ways import EXCLUSIVE, Way, parse_ways
    from submodel.experiments.course import SCORE, Course
    from submodel.experiments.effort import sum_known
    from submodel.experiments.flatness import FlatRule
    from submodel.experiments.jobs import Job
    from submodel.experiments.records import (
        BY_TEST_BATCH,
        MEASURES,
        RATES_ENDING,
        Line,
        SeedRun,
        VariantRecord,
        portable,
    )
    from submodel.experiments.runner import Runner
    from submodel.experiments.statistics import (
        EQUAL,
        HOLDS,
        LEAST_SEEDS,
        LEVEL,
        REVERSED,
        UNDECIDED,
        Judgement,
        behind_best,
        judge,
        least_ratio,
        spread,
    )
    from submodel.experiments.wording import (
        JUDGEMENT_HEADINGS,
        PLUS_MINUS,
        counted,
        describe_judgement,
        how_to_read,
        number,
    )

__all__ = [
    "BY_TEST_BATCH", "EQUAL", "EXCLUSIVE", "HOLDS", "JUDGEMENT_HEADINGS", "LEAST_SEEDS", "LEVEL",
    "MEASURES", "PLUS_MINUS", "RATES_ENDING", "REVERSED", "SCORE", "UNDECIDED", "Base",
    "BudgetKind", "ComparisonPlan", "ComparisonScale", "Course", "Findings", "FlatRule", "Job",
    "Judgement", "Line", "Runner", "SeedRun", "VariantRecord", "Way", "WayRecord", "base_of",
    "behind_best", "compare", "counted", "describe_judgement", "how_to_read", "judge",
    "least_ratio", "number", "parse_budget", "parse_ways", "portable", "put_together",
    "rounds_within", "run_plan", "spread", "sum_known",
]  # fmt: skip
__getattr__ = lazily(
    __name__,
    {
        "submodel.experiments.budgets": "BudgetKind parse_budget rounds_within",
        "submodel.experiments.comparison.findings": "Findings WayRecord",
        "submodel.experiments.comparison.plan": "Base ComparisonPlan base_of compare run_plan",
        "submodel.experiments.comparison.scales": "ComparisonScale",
        "submodel.experiments.comparison.together": "put_together",
        "submodel.experiments.comparison.ways": "EXCLUSIVE Way parse_ways",
        "submodel.experiments.course": "SCORE Course",
        "submodel.experiments.effort": "sum_known",
        "submodel.experiments.flatness": "FlatRule",
        "submodel.experiments.jobs": "Job",
        "submodel.experiments.records": (
            "BY_TEST_BATCH MEASURES RATES_ENDING Line SeedRun VariantRecord portable"
        ),
        "submodel.experiments.runner": "Runner",
        "submodel.experiments.statistics": (
            "EQUAL HOLDS LEAST_SEEDS LEVEL REVERSED UNDECIDED Judgement behind_best judge "
            "least_ratio spread"
        ),
        "submodel.experiments.wording": (
            "JUDGEMENT_HEADINGS PLUS_MINUS counted describe_judgement how_to_read number"
        ),
    },
)
