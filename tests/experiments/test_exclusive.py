"""The way exclusive in a comparison, and comparing to the end: what is run, counted and said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from submodel.cli import main
from submodel.errors import ConfigError
from submodel.experiments.budgets import BudgetKind, cost_of
from submodel.experiments.findings import Findings
from submodel.experiments.plan import base_of, plan_comparison, run_plan
from submodel.experiments.runner import Runner
from submodel.experiments.ways import parse_ways
from submodel.prepare.setup import prepare
from submodel_lab.converged.converge import read_rates
from submodel_lab.paper.scales import (
    contenders_of_plan,
    course_of,
    run_to_the_end,
)
from tests.support.jobs import run_in_this_process

TINY: dict[str, Any] = {
    "model": {"name": "mlp", "width": 4},
    "data": {"examples": 200, "test_examples": 50, "held_out": 0.1},
    "clients": {"count": 10, "per_round": 2, "capacities": [1, 0.5]},
    "train": {"rounds": 2, "evaluate_every": 1, "evaluate_capacities": False},
}


def test_a_run_for_every_width_and_one_record_for_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "run_jobs", run_in_this_process)
    ways = parse_ways("static,exclusive:local.lr=0.1")
    plan = plan_comparison(ways, base_of(TINY), BudgetKind.ROUNDS, None, seeds=1)
    slugs = ["exclusive-local.lr-0.1-at-1", "exclusive-local.lr-0.1-at-0.5"]
    assert list(plan.configs) == ["static", *slugs]
    half = plan.configs[slugs[1]][0]
    assert (half.scheme.name, half.model.share, half.clients.least) == ("full", 0.5, 0.5)
    assert half.local.lr == 0.1
    findings = run_plan(plan, tmp_path, 1, Console(quiet=True), "a command")
    exclusive = findings.ways[1]
    assert exclusive.text == "exclusive:local.lr=0.1"
    costs = [
        cost_of(prepare(plan.configs[slug][0]), kind, 2)
        for kind in (BudgetKind.BYTES, BudgetKind.FLOPS)
        for slug in slugs
    ]
    assert exclusive.cost("bytes") == sum(costs[:2])
    assert exclusive.cost("flops") == sum(costs[2:])
    line = exclusive.record.runs[0].lines[-1]
    assert line["capacity_accuracy.1"] == line["test_accuracy"]
    assert "capacity_accuracy.0.5" in line
    assert Findings.read(tmp_path / "records") == findings


def test_a_budget_is_of_all_widths_together() -> None:
    ways = parse_ways("static,exclusive")
    sections = {**TINY, "train": {**TINY["train"], "rounds": 9}}
    plan = plan_comparison(ways, base_of(sections), BudgetKind.BYTES, None, seeds=1)
    amount = cost_of(prepare(plan.configs["static"][0]), BudgetKind.BYTES, 9)
    parts = [plan.configs[f"exclusive-at-{c}"][0] for c in ("1", "0.5")]
    (rounds,) = {config.train.rounds for config in parts}
    setups = [prepare(config) for config in parts]
    assert cost_of(setups, BudgetKind.BYTES, rounds) <= amount
    assert amount < cost_of(setups, BudgetKind.BYTES, rounds + 1)


def test_ways_are_compared_to_the_end_each_with_a_rate_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "run_jobs", run_in_this_process)
    local = {"schedule": "step", "milestones": [2], "decay": 0.5, "lr": 0.05}
    sections = {**TINY, "local": local, "train": {**TINY["train"], "rounds": 3}}
    ways = parse_ways("static,rolling:local.lr=0.3")
    plan = plan_comparison(ways, base_of(sections), BudgetKind.ROUNDS, None, seeds=1)
    static, rolling = contenders_of_plan(plan)
    assert list(static.rates) == pytest.approx([0.02, 0.05, 0.1])
    assert not rolling.rates
    findings = run_to_the_end(plan, tmp_path, 1, Console(quiet=True), "a command")
    table = read_rates(tmp_path / "records", "static")
    assert table is not None
    assert len(table.scores) == 3 + 2  # all alike, so the least is best: two more beyond it
    assert "until flat" in findings.budget
    for way in findings.ways:
        assert way.rounds == [4]  # three and, never flat so soon, the decay
        assert way.record.runs[0].is_flat is False
        assert "client_accuracy.worst_quarter" in way.record.runs[0].lines[-1]
    assert Findings.read(tmp_path / "records") == findings


def test_a_course_needs_one_milestone() -> None:
    two = base_of({"local": {"schedule": "step", "milestones": [2, 4]}})([])
    with pytest.raises(ConfigError, match=r"local\.milestones: --scale converged takes one"):
        course_of(two)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "static", "--scale", "converged", "--budget", "bytes"], "run until they are"),
        (["reproduce", "heterofl", "--scale", "converged"], "is not one of static, random"),
        (["reproduce", "heterofl", "--plan"], "--plan: goes with --scale converged"),
        (["reproduce", "all", "--scale", "converged", "--datasets", "cifar10"], "of their own"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["submodel", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
