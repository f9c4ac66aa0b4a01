"""Many runs: comparisons, their records, one statistics."""

from typing import TYPE_CHECKING

from submodel.lazy import lazily

if TYPE_CHECKING:
    from submodel.experiments.budgets import BudgetKind, parse_budget, rounds_within
    from submodel.experiments.course import SCORE, Course, FlatRule
    from submodel.experiments.findings import Findings, WayRecord
    from submodel.experiments.plan import (
        Base,
        ComparisonPlan,
        ComparisonScale,
        base_of,
        compare,
        run_plan,
    )
    from submodel.experiments.records import (
        BY_TEST_BATCH,
        MEASURES,
        RATES_ENDING,
        Line,
        SeedRun,
        VariantRecord,
        portable,
        put_together,
    )
    from submodel.experiments.runner import Job, Runner, sum_known
    from submodel.experiments.statistics import (
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
    from submodel.experiments.ways import EXCLUSIVE, Way, parse_ways

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
        "submodel.experiments.course": "SCORE Course FlatRule",
        "submodel.experiments.findings": "Findings WayRecord",
        "submodel.experiments.plan": "Base ComparisonPlan ComparisonScale base_of compare run_plan",
        "submodel.experiments.records": (
            "BY_TEST_BATCH MEASURES RATES_ENDING Line SeedRun VariantRecord portable put_together"
        ),
        "submodel.experiments.runner": "Job Runner sum_known",
        "submodel.experiments.statistics": (
            "EQUAL HOLDS JUDGEMENT_HEADINGS LEAST_SEEDS LEVEL PLUS_MINUS REVERSED UNDECIDED "
            "Judgement behind_best counted describe_judgement how_to_read judge least_ratio number "
            "spread"
        ),
        "submodel.experiments.ways": "EXCLUSIVE Way parse_ways",
    },
)
