"""Verdicts of studies on theorems: one-sided, with numbers, and none without a theorem."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from submodel.cli import main
from submodel_lab.theory import TheoryError, bernoulli, constants, load_split, quadratics, rolling
from submodel_lab.theory.drawing import Panel, PlotLine
from submodel_lab.theory.measures import (
    Measure,
    Statement,
    Verdict,
    judge_at_most,
    judge_equal,
    judge_positive,
    judge_slope,
    slope_measure,
)
from submodel_lab.theory.results import ResultRow, Study
from submodel_lab.theory.studies import STUDIES, StudyEntry
from submodel_lab.theory.studies.convergence import (
    ConvergenceSettings,
    convergence_base,
    floor_statements,
    measure_point,
    parameter_sweeps,
    round_sweeps,
    spread_optima,
    study_convergence,
)
from submodel_lab.theory.studies.generalization import (
    GeneralizationSettings,
    draw_examples,
    score_trials,
)
from submodel_lab.theory.studies.nonconvex import NonconvexCase, NonconvexSettings
from submodel_lab.theory.studies.stability import StabilityCase, StabilitySettings, match_factor
from submodel_lab.theory.studies.sweeps import mean_share
from submodel_lab.theory.theorems import BoundTerms, stated_slope


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-1.4, -1.2, Verdict.FASTER),  # steeper than stated is no contradiction
        (-1.05, -0.95, Verdict.YES),
        (-0.97, -0.95, Verdict.NO),  # excluded on the wrong side, even if closely
        (-2.0, 0.0, Verdict.OPEN),
        (np.nan, np.nan, Verdict.OPEN),
    ],
)
def test_a_slope_is_judged_from_one_side(low: float, high: float, verdict: Verdict) -> None:
    measure = Measure((low + high) / 2, low, high)
    assert judge_slope(measure, -1.0) is verdict
    assert judge_slope(measure, -1.0, is_stated=False) is Verdict.SILENT


def test_theorem_4s_interval_does_not_hold() -> None:
    assert judge_slope(Measure(-0.46, -0.47, -0.45), -0.5) is Verdict.NO


def test_an_exact_slope_may_miss_its_limit_by_a_hundredth() -> None:
    assert judge_slope(Measure(-1.723, -1.723, -1.723), -1.726) is Verdict.YES
    assert judge_slope(Measure(-1.7, -1.7, -1.7), -1.726) is Verdict.NO


def test_other_rules() -> None:
    around, above, below = Measure(0, -1, 1), Measure(2, 1, 3), Measure(-2, -3, -1)
    assert [judge_positive(m) for m in (above, below, around)] == [
        Verdict.YES, Verdict.NO, Verdict.OPEN]  # fmt: skip
    assert [judge_at_most(m, 0.0) for m in (above, below, around)] == [
        Verdict.NO, Verdict.YES, Verdict.OPEN]  # fmt: skip
    assert judge_equal(around, 0.5) is Verdict.YES
    assert judge_equal(around, 1.5) is Verdict.NO


def test_a_bound_allows_its_shallowest_leading_term() -> None:
    x = [1.0, 2.0, 4.0]
    bounds = [BoundTerms({"a": 1 / r, "b": r**-2.0, "c": 7.0}, ("a", "b")) for r in x]
    assert stated_slope(x, bounds) == pytest.approx(-1)
    assert stated_slope(x, bounds, every=True) == pytest.approx(0)


def test_rolling_is_named_by_what_is_held() -> None:
    """0.75 and 0.25 of ten coordinates are eight and three."""
    assert mean_share(rolling(0.75, 2, 10), 10) == 0.8
    case = StabilityCase(StabilitySettings(), 0.25, 60, 2, 2, 16, 0.3, rolls=True)
    assert case.words == "rolling, s/d=0.3"
    settings = ConvergenceSettings(capacities=(1.0, 0.75))
    labels = {sweep.label for sweep in (*round_sweeps(settings), *parameter_sweeps(settings))}
    assert any(label.startswith("rolling, s/d=0.8") for label in labels)
    assert not any("s/d=0.75" in label for label in labels)


@pytest.mark.slow
def test_no_claim_where_no_theorem_speaks() -> None:
    s = ConvergenceSettings(rounds=(8, 16, 32), sweep_rounds=8, trials=3, eta=0.01, dimension=4,
                            clients=2, sweep_capacities=(1.0, 0.5), sweep_steps=(1, 2),
                            sweep_clients=(2, 4), sweep_smoothness=(2.0, 4.0),
                            sweep_spread=(1.0, 2.0), sweep_noise=(3.0, 10.0))  # fmt: skip
    study = study_convergence(s)
    slopes = [c for c in study.statements if c.quantity.startswith("slope")]
    assert slopes
    assert {c.verdict for c in slopes} == {Verdict.SILENT}
    assert all(c.limit is None for c in slopes)
    assert not any(panel.guides for panel in study.panels)


@pytest.mark.slow
def test_floors_are_explained_by_the_drift() -> None:
    """At kappa = 20 late iterates differ from w*(p) by a drift of order eta K: 5 % of F or more."""
    s = ConvergenceSettings(smoothness=20.0, rounds=(80, 160, 320), trials=60)
    statements = floor_statements(s)
    assert {c.verdict for c in statements} == {Verdict.YES, Verdict.NUMBER}
    drifts = [c.measure.mean for c in statements if c.verdict is Verdict.NUMBER]
    assert max(abs(drift - 1) for drift in drifts) > 0.05


def test_losses_are_scored_with_their_l2() -> None:
    split = load_split("breast_cancer", clients=1)
    s = GeneralizationSettings(trials=3, l2=0.5)
    problem = draw_examples(s, split)
    w = np.random.default_rng(0).standard_normal((3, problem.dimension))
    scores = score_trials(problem, split, w)
    many = np.broadcast_to(w, (problem.clients, *w.shape))
    np.testing.assert_allclose(scores["train loss"], problem.losses(many).mean(0))
    penalty = 0.25 * np.square(w).sum(1)
    assert (scores["test loss"] > penalty).all()


def test_constants_of_a_problem_of_ones_own() -> None:
    """Its delta is known: Gaussian noise of norm 2 on half of the coordinates."""
    problem = NonconvexCase(NonconvexSettings(), 0.5, 64, 2, 4, 0.3, noise=2.0).problem
    facts = constants(problem, bernoulli(0.5, 4), radius=10.0)
    assert facts.delta2 == pytest.approx(0.5 * 2**2, rel=0.15)
    assert np.isnan(facts.D_max)
    assert {"G", "delta2", "D_max"} <= set(facts.estimates)


def test_trials_that_disagree_with_the_exact_value_fail() -> None:
    values = np.random.default_rng(0).normal(1.0, 0.1, 100)
    rows = [ResultRow({"R": 5}, {"error": Measure.of(values, exact)}) for exact in (1.0, 1.2)]
    study = Study("x", "x", {}, rows, [], [])
    (line,) = study.failures()
    assert "error at R = 5" in line
    assert "standard errors away" in line


def test_the_command_fails_where_the_lab_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ResultRow({"R": 5}, {"error": Measure(1.0, 0.9, 1.1, 2.0)})
    panel = Panel("x", "R", "error", [PlotLine("p", [1.0, 2.0], [1.0, 0.5])])

    class WrongEntry(StudyEntry):
        def run(self, settings: object, on_progress: object) -> Study:  # noqa: ARG002
            return Study("lemmas", "x", {}, [wrong], [panel], [])

    monkeypatch.setitem(STUDIES, "lemmas", WrongEntry("lemmas", "LemmaSettings", "study_lemmas"))
    monkeypatch.setattr("sys.argv", ["submodel", "study", "lemmas", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    assert "trials disagree with the exact value" in capsys.readouterr().out
    assert json.loads((tmp_path / "lemmas.json").read_text())["failures"]


def test_points_carry_the_exact_value() -> None:
    s = ConvergenceSettings(trials=100, dimension=5)
    for kind in ("theorem", "averaged", "decaying"):
        case = replace(convergence_base(s), p=0.5, rounds=40, step_kind=kind)
        point = measure_point(case)
        assert point.error.exact is not None
        assert point.error.errors_off < 4


def test_optima_spread_alone() -> None:
    problem = quadratics()
    double = spread_optima(problem, 2.0)
    assert double.matrices is problem.matrices
    optima, far = (
        np.linalg.solve(q.matrices, q.vectors[..., None])[..., 0] for q in (problem, double)
    )
    np.testing.assert_allclose(far - far.mean(0), 2 * (optima - optima.mean(0)))


def test_a_step_of_equal_loss() -> None:
    factor = match_factor(lambda f: 1 / (1 + f), 0.8)
    assert factor == pytest.approx(0.25, rel=0.01)
    assert match_factor(lambda f: 1 / (1 + f), 0.1) is None


def test_slopes_of_trials_and_their_exact_ones() -> None:
    x = [1.0, 2.0, 4.0]
    measure = slope_measure(x, [np.full(5, 1 / v) for v in x], [1 / v for v in x])
    assert measure.mean == pytest.approx(-1)
    assert measure.exact == pytest.approx(-1)
    with pytest.raises(TheoryError, match="trials"):
        measure.minus(measure)


def read_table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


def test_what_is_written(tmp_path: Path) -> None:
    measure = Measure.of(np.array([1.0, 2.0]), 1.5)
    statement = Statement("Theorem 1", "R", "p=1", "slope", measure, "<=", -1.0, Verdict.NO)
    row = ResultRow({"p": 0.5, "R": 80}, {"error": measure}, {"condition": "met"})
    panel = Panel("x", "R", "error", [PlotLine("p", [1.0, 2.0], [1.0, 0.5])])
    study = Study("x", "x", {"trials": 2}, [row], [panel], [statement])
    study.write(tmp_path, trial_values=True)
    (cells,) = read_table(tmp_path / "x.csv")
    assert cells.items() >= {"p": "0.5", "R": "80", "error": "1.5", "error exact": "1.5"}.items()
    assert {"error low", "error high", "version", "condition"} <= cells.keys()
    (numbers,) = json.loads((tmp_path / "x.json").read_text())["claims"]
    assert (numbers["estimate"], numbers["limit"], numbers["verdict"]) == (1.5, -1.0, "no")
    (statement_cells,) = read_table(tmp_path / "x-claims.csv")
    assert statement_cells["low"] == str(measure.low)
    trials = read_table(tmp_path / "x-trials.csv")
    assert [t["value"] for t in trials] == ["1.0", "2.0"]
