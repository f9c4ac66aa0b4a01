"""Statistics: exact p-values and intervals, and one verdict on the same numbers everywhere."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from submodel.comparison.records import ArmRecord
from submodel.comparison.results import ArmResult, ComparisonResult, comparison_rows
from submodel.comparison.statistics import (
    behind_best,
    confidence,
    holm,
    judge,
    least_ratio,
    number,
    paired_p,
)
from submodel_lab.paper import report as paper_report
from submodel_lab.paper.experiments import EXPERIMENTS, Experiment, PaperContrast, Scale
from tests.support.records import record

ROOT = Path(__file__).parents[2]


def test_p_values_are_those_of_the_closed_forms() -> None:
    # Student's distribution function is elementary for one and two degrees of freedom
    two = [0.03, 0.01]
    t = 0.02 / (math.sqrt(0.0002) / math.sqrt(2))
    assert t == pytest.approx(2)
    assert paired_p(two) == pytest.approx(1 - 2 / math.pi * math.atan(2), abs=1e-12)
    three = [-1.0, -2.0, -3.0]
    t = 2 / (1 / math.sqrt(3))
    assert paired_p(three) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-12)
    assert paired_p([0.5, 0.5, 0.5]) == 0.0
    assert paired_p([0.1 + 0.2, 0.3, 0.3]) == 0.0
    assert paired_p([0.0, 0.0]) == 1.0


def test_holm_corrects_for_the_number_of_tests() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_intervals_are_those_of_the_closed_form_and_hold_the_mean_as_often_as_they_say() -> None:
    # the 97.5 % quantile of Student's distribution with two degrees of freedom
    a = 0.95
    quantile = a * math.sqrt(2 / (1 - a * a))
    low, high = confidence([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - quantile / 3**0.5, 2 + quantile / 3**0.5), abs=1e-9)
    assert confidence([0.5, 0.5, 0.5]) == (0.5, 0.5)
    draws = np.random.default_rng(0).normal(1.0, 2.0, (400, 4)).tolist()
    covered = [a <= 1.0 <= b for a, b in map(confidence, draws)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.035)  # three standard errors


def test_an_interval_without_nought_is_a_p_value_below_the_level() -> None:
    for differences in np.random.default_rng(1).normal(1.0, 1.0, (50, 3)).tolist():
        low, high = confidence(differences)
        assert (low > 0 or high < 0) == (paired_p(differences) < 0.05)


def test_verdicts_are_of_all_that_is_looked_at_together() -> None:
    clear, near = [0.10, 0.11, 0.10], [0.03, 0.04, 0.03]
    alone, four = judge([near])[0], judge([near, [0.1, -0.1, 0.1], [-0.2, 0.1, 0.0], clear])
    # deviation 1/sqrt(3) points, mean 10/3: t = 10, p = 1 - 10/sqrt(102)
    assert alone.p == pytest.approx(1 - 10 / math.sqrt(102), rel=1e-6)
    assert four[0].p == pytest.approx(3 * (1 - 10 / math.sqrt(102)), rel=1e-6)
    assert (alone.verdict, four[0].verdict, four[3].verdict) == ("holds", "holds", "holds")
    assert four[0].interval == alone.interval  # of its own
    assert judge([near] * 6)[0].verdict == "undecided"
    assert judge([[-d for d in clear]])[0].verdict == "reversed"
    assert judge([[0.0, 0.0, 0.0]])[0].verdict == "no difference"
    assert judge([[0.1, 0.1, 0.1]])[0].verdict == "holds"
    assert judge([]) == []


@pytest.mark.parametrize("seeds", [1, 2])
def test_below_three_seeds_nothing_is_tested_and_nothing_counts_as_a_test(seeds: int) -> None:
    few = [0.1, 0.1][:seeds]
    found = judge([few, [0.03, 0.04, 0.03]])
    assert (found[0].p, found[0].interval) == (None, None)
    assert found[0].verdict == f"no verdict: {seeds} of 3 seeds"
    assert found[1] == judge([[0.03, 0.04, 0.03]])[0]
    scores = {name: dict(enumerate(few)) for name in ("a", "b")}
    assert behind_best(scores)["b"].verdict == f"no verdict: {seeds} of 3 seeds"


@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf])
def test_a_run_that_diverged_is_no_difference_that_could_be_tested(lost: float) -> None:
    found = judge([[0.03, lost, 0.03], [0.03, 0.04, 0.03]])
    assert (found[0].verdict, found[0].p) == ("no verdict: not finite", None)
    assert found[1] == judge([[0.03, 0.04, 0.03]])[0]
    scores = {"lost": {0: lost, 1: 0.9, 2: 0.9}, "a": dict.fromkeys(range(3), 0.5)}
    assert behind_best(scores)["lost"].verdict == "no verdict: not finite"
    assert "nan" in number("loss", [1.0, lost])


def test_ways_are_compared_with_the_best_seed_by_seed() -> None:
    scores = {
        "low": {0: 0.70, 1: 0.79, 2: 0.75},
        "best": {0: 0.80, 1: 0.90, 2: 0.85},
        "near": {0: 0.81, 1: 0.86, 2: 0.82},
    }
    found = behind_best(scores)
    assert list(found) == ["low", "near"]
    assert found["low"].differences == pytest.approx([0.10, 0.11, 0.10])
    # mean 31/300, deviation 1/sqrt(3) points: t = 31, p = 1 - 31/sqrt(963), doubled by Holm
    assert found["low"].p == pytest.approx(2 * (1 - 31 / math.sqrt(963)), rel=1e-6)
    assert found["low"].verdict == "holds"
    # differences -1, 4, 3: mean 2, variance 7, t^2 = 12/7, p = 1 - sqrt(12/26), the last of two
    assert found["near"].p == pytest.approx(1 - math.sqrt(12 / 26), rel=1e-6)
    assert found["near"].verdict == "undecided"
    assert behind_best({"alone": {0: 0.5, 1: 0.6}}) == {}


def test_the_least_difference_that_counts_is_where_p_is_the_level() -> None:
    ratio = least_ratio(3, 2)
    differences = [ratio - 1, ratio, ratio + 1]  # of standard deviation 1
    assert paired_p(differences) == pytest.approx(0.05 / 2)


@pytest.mark.parametrize("seeds", [1, 2, 3, 5])
def test_a_claim_and_a_way_get_the_same_verdict_on_the_same_numbers(seeds: int) -> None:
    """This includes seeds that all agree by more than their spread, but possibly by chance."""
    static, rolling = EXPERIMENTS["heterofl"].arms(Scale.SMOKE)
    contrast = PaperContrast(
        "one beats the other", "rolling-small", "static-small", settings=("high",)
    )
    experiment = Experiment("heterofl", "", ("static-small", "rolling-small"), (contrast,))
    draw = np.random.default_rng(seeds)
    verdicts = set()
    for gain in (0.5, 2.0, 6.0):
        better, worse = draw.normal(gain, 0.7, seeds).tolist(), draw.normal(0, 0.7, seeds).tolist()
        if np.mean(better) < np.mean(worse):
            continue
        records = {static: record("a", worse), rolling: record("b", better)}
        ((*_, interval, p, verdict),) = paper_report.contrast_rows(experiment, records)
        ways = [ArmResult(r.slug, r.slug, r) for r in records.values()]
        behind, best = comparison_rows(ComparisonResult(ways, "", ""))
        assert (behind[-2:], best[-1]) == ([p, verdict], "best")
        assert (interval == "") == (behind[-3] == "") == (seeds < 3)
        verdicts.add(verdict)
    assert verdicts <= {"holds", "undecided"} if seeds > 2 else len(verdicts) == 1


def test_the_intervals_in_the_docs_are_those_of_the_kept_records() -> None:
    page = (ROOT / "docs/results/thirty-rounds.md").read_text("utf-8")
    found = set()
    for experiment in EXPERIMENTS.values():
        arms = experiment.arms(Scale.SMALL)
        records = {v: ArmRecord.read(ROOT / f"results/small/{v.slug}.json") for v in arms}
        found |= {
            interval for *_, interval, _, _ in paper_report.contrast_rows(experiment, records)
        }
    shown = re.findall(r"\[[-+]\d[\d.]*, [-+]\d[\d.]*\]", page)
    assert len(shown) == 12
    assert set(shown) <= found


def test_the_comparison_in_the_docs_is_that_of_the_kept_records() -> None:
    lines = (ROOT / "docs/comparison.md").read_text("utf-8").splitlines()
    shown = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    by_arm = {cells[0]: cells for cells in shown if len(cells) == 7}
    for budget, first in (("rounds", 2), ("bytes", 5)):
        for row in comparison_rows(ComparisonResult.read(ROOT / f"results/compare-{budget}")):
            score, interval, p, verdict = row[4], *row[-3:]
            judged = "best" if verdict == "best" else f"{interval}, {p}"
            judged = f"**{judged}**" if verdict == "holds" else judged
            assert by_arm[row[0]][first : first + 2] == [score.replace(" %", ""), judged]
