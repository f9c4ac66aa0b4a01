"""Comparisons: allowed arms, equal budgets, resumption and reports."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from submodel import compare
from submodel.algorithm.rounds import initial_state, plan
from submodel.algorithm.types import Setup
from submodel.cli import main
from submodel.comparison import plan as comparison
from submodel.comparison import runner
from submodel.comparison.arms import parse_arms
from submodel.comparison.budgets import (
    BudgetKind,
    cost_of,
    parse_budget,
    round_costs,
    rounds_within,
    with_rounds,
)
from submodel.comparison.plan import (
    ComparisonPlan,
    base_of,
    plan_comparison,
    run_plan,
)
from submodel.comparison.records import ArmRecord, SeedRun
from submodel.comparison.results import ComparisonResult, comparison_rows, write_comparison
from submodel.comparison.runner import Effort, EffortFile, Job, Runner, describe_machine, sum_known
from submodel.config import Config, parse, read
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError, SubmodelError
from submodel.drawing.bands import shared_grid
from submodel.engines.processes.launch import Follower, Followers
from submodel.runs.callbacks import RoundCallback
from submodel.runs.loop import Interruption, RunFolder, run_rounds
from submodel.runs.training import Training
from submodel_lab.converged.arms import ConvergedArm
from submodel_lab.converged.converge import RateTable, read_rates
from submodel_lab.converged.report import effort_words
from submodel_lab.paper.scales import (
    course_of,
    run_to_the_end,
    specs_of_plan,
)
from tests.support.jobs import run_in_this_process
from tests.support.records import Lines, result_of

TINY: dict[str, Any] = {
    "model": {"name": "mlp", "width": 8},
    "data": {"examples": 200, "test_examples": 100},
    "clients": {"count": 10, "per_round": 4},
    "train": {"rounds": 6, "evaluate_every": 2, "evaluate_capacities": False},
}
TINY_NET: dict[str, Any] = {
    "model": {"name": "mlp", "width": 4},
    "data": {"examples": 200, "test_examples": 50, "held_out": 0.1},
    "clients": {"count": 10, "per_round": 2, "capacities": [1, 0.5]},
    "train": {"rounds": 2, "evaluate_every": 1, "evaluate_capacities": False},
}


RESULTS = Path(__file__).parents[2] / "results"
SETTINGS = [
    f"{section}.{key}={json.dumps(value)}"
    for section, keys in TINY.items()
    for key, value in keys.items()
]


def tiny(**sections: dict[str, Any]) -> Config:
    return parse(
        {name: {**TINY.get(name, {}), **sections.get(name, {})} for name in {**TINY, **sections}}
    )


def planned(
    ways: str, kind: str = "rounds", seeds: int = 2, amount: int | None = None
) -> ComparisonPlan:
    return plan_comparison(parse_arms(ways), base_of(TINY), BudgetKind(kind), amount, seeds)


# arms


def test_values_are_read_as_set_reads_them() -> None:
    (arm,) = parse_arms('random:sampling=fixed:clients.capacities=[1, "1/4"]:local.lr=0.5')
    config = arm.config(base_of(TINY))
    assert (config.scheme.name, config.scheme.sampling) == ("random", "fixed")
    assert (config.clients.capacities, config.local.lr) == ([1, 0.25], 0.5)
    assert config.model.width == 8
    assert arm.title == 'random, sampling = fixed, clients.capacities = [1, "1/4"], local.lr = 0.5'


def test_folders_are_named_apart_even_if_their_names_would_be_equal() -> None:
    ways = parse_arms('rolling:axes.whole=["a"],rolling:axes.whole=["a" ],rolling:axes.whole="a"')
    assert [arm.slug for arm in ways] == ["rolling-axes.whole-a", "rolling-axes.whole-a-2",
                                          "rolling-axes.whole-a-3"]  # fmt: skip
    (long,) = parse_arms("rolling:axes.whole=[" + ", ".join(f"'axis{i}'" for i in range(99)) + "]")
    assert len(long.slug) == 100
    parse({"name": long.slug})  # is allowed as the name of a run


REFUSED = {
    "twice": ("rolling,static,rolling", "arm 'rolling' "),
    "in other words": ("rolling,rolling:order=shuffled", "arm 'rolling:order=shuffled' "),
    "no such scheme": ("rolling,sideways", "arm 'sideways': scheme.name: 'sideways' "),
    "no such key": ("random:smapling=fixed", "': scheme.smapling: "),
    "no such section": ("random:servr.lr=1", "arm 'random:servr.lr=1': servr: "),
    "no value": ("random:sampling", "arm 'random:sampling': 'sampling' "),
    "no such path": ("rolling,nowhere.at:All", "scheme.name: 'nowhere.at:All': "),
    "no scheme": ("rolling,,static", "arm '': "),
    "set twice": ("random:sampling=fixed:scheme.sampling=fixed", "': scheme.sampling "),
    "another scheme": ("random:name=static", "arm 'random:name=static': name: "),
    "other data": ("random:data.partition=iid", "': data.partition "),
    "other clients": ("random:clients.count=5", "': clients.count "),
    "other rounds": ("random:train.rounds=5", "': train.rounds "),
    "not a table": ("random:scheme.name.x=5", "': scheme.name.x=5: "),
    "not defined": ("static,rolling:windows=999", "arm 'rolling:windows=999': scheme.windows: 999"),
    "independent": (
        "random:alignment=independent:sampling=fixed",
        "': scheme.alignment: 'independent' ",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared_is_refused_before_anything_runs(case: str, tmp_path: Path) -> None:
    ways, message = REFUSED[case]
    with pytest.raises(SubmodelError) as caught:
        compare(ways, TINY, out=tmp_path / "out", seeds=1)
    assert message in str(caught.value)
    assert "--set scheme" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_all_ways_that_are_wrong_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        planned("rolling:windows=999,static,rolling:windows=998")
    assert len(caught.value.problems) == 2  # for any number of seeds


def test_what_fails_with_one_seed_alone_is_found_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def picky(config: Config, **own: Any) -> Setup:
        if (config.seed, config.scheme.name) == (1, "full"):
            raise ConfigError(["data.partition: client 3 has no examples"])
        return prepare(config, **own)

    monkeypatch.setattr(comparison, "prepare", picky)
    planned("static,full", seeds=1)
    with pytest.raises(ConfigError, match=r"arm 'full': data\.partition: client 3"):
        planned("static,full", seeds=2)


def test_the_same_seed_means_the_same_data_clients_and_initial_model() -> None:
    made = planned("rolling,static,random:merge.rule=fill_in", seeds=2).configs
    for seed in (0, 1):
        setups = [prepare(own[seed]) for own in made.values()]
        first = setups[0]
        assert [own[seed].seed for own in made.values()] == [seed] * 3
        for other in setups[1:]:
            assert [plan(other, r) for r in range(6)] == [plan(first, r) for r in range(6)]
            for client in range(10):
                assert np.array_equal(other.clients.indices(client), first.clients.indices(client))
            ours, theirs = initial_state(first).tensors, initial_state(other).tensors
            assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    one, two = (prepare(config).clients.indices(0) for config in made["rolling"])
    assert not np.array_equal(one, two)


# budgets

COUNTED: dict[str, dict[str, dict[str, Any]]] = {
    "full": {"scheme": {"name": "full"}},
    "static": {"scheme": {"name": "static"}},
    "rolling": {"scheme": {"name": "rolling"}},
    "bernoulli": {"scheme": {"name": "random"}, "clients": {"capacity_mode": "dynamic"}},
    "fixed": {"scheme": {"name": "random", "sampling": "fixed"}},
    "coordinate": {"scheme": {"name": "random", "granularity": "coordinate"}},
    "steps": {"local": {"steps": 7, "batch_size": 8}},
    "all labels": {"local": {"absent_labels": "keep", "epochs": 2, "batch_size": 0}},
    "norms": {"model": {"name": "preresnet18", "width": 2}, "data": {"examples": 100}},
    "partition": {"scheme": {"name": "partition"}, "clients": {"capacities": [0.25]}},
    # with rows of absent labels, the number of held ones depends on the largest weights
    "importance": {
        "scheme": {"name": "importance", "granularity": "coordinate"},
        "local": {"absent_labels": "keep"},
    },
    "ordered": {"scheme": {"name": "ordered"}},
    "distilled": {"scheme": {"name": "ordered", "distill": 0.5}},
    "hierarchical": {
        "scheme": {"name": "hierarchical", "cells": 2, "every": 3},
        "clients": {"capacities": [0.5]},
    },
    "unbiased": {"scheme": {"name": "unbiased"}},
    "unequal": {"data": {"partition": "dirichlet", "alpha": 1.0}, "local": {"steps": 9}},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", COUNTED)
def test_counted_rounds_cost_what_a_run_books(case: str) -> None:
    config = tiny(
        **COUNTED[case], train={"rounds": 3, "evaluate_every": 3, "evaluate_capacities": False}
    )
    setup = prepare(config)
    _, history = run_rounds(Training(config, setup))
    assert not any(line["refused"] for line in history)
    sent = [line["bytes_down"] + line["bytes_up"] for line in history]
    flops = [line["flops"] for line in history]
    for kind, booked in ((BudgetKind.BYTES, sent), (BudgetKind.FLOPS, flops)):
        assert [c for c, _ in zip(round_costs(setup, kind), booked, strict=False)] == booked
        assert cost_of(setup, kind, 3) == sum(booked)


@pytest.mark.parametrize("kind", [BudgetKind.BYTES, BudgetKind.FLOPS])
def test_a_budget_buys_whole_rounds_to_the_byte(kind: BudgetKind) -> None:
    setup = prepare(tiny())
    one, five = cost_of(setup, kind, 1), cost_of(setup, kind, 5)
    assert (rounds_within(setup, kind, five), rounds_within(setup, kind, five - 1)) == (5, 4)
    assert rounds_within(setup, kind, one) == 1
    with pytest.raises(ConfigError, match=r"^--amount: "):
        rounds_within(setup, kind, one - 1)
    with pytest.raises(ConfigError, match=r"^--amount: .*100,000"):
        rounds_within(setup, kind, one * 10**6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bytes", "flops"])
def test_every_way_gets_what_the_first_takes_and_not_a_round_more(kind: str) -> None:
    made = planned("static,full,random", kind, seeds=2)
    kind = BudgetKind(kind)
    for seed in (0, 1):
        amount = cost_of(prepare(made.configs["static"][seed]), kind, 6)
        for arm, own in made.configs.items():
            setup, rounds = prepare(own[seed]), own[seed].train.rounds
            assert cost_of(setup, kind, rounds) <= amount < cost_of(setup, kind, rounds + 1)
            assert (arm == "static") == (rounds == 6) or arm == "random"
        assert made.configs["full"][seed].train.rounds < 6
    assert "static takes for 6 rounds" in made.budget
    assert made.rounds().startswith("static: 6; full: ")


def test_an_amount_is_for_all_and_more_seeds_change_nothing() -> None:
    setup = prepare(planned("full").configs["full"][0])
    amount = cost_of(setup, BudgetKind.BYTES, 9)
    few, many = (planned("static,full", "bytes", n, amount) for n in (1, 3))
    assert few.configs["full"][0].train.rounds == 9
    assert all(many.configs[arm][0] == few.configs[arm][0] for arm in ("static", "full"))
    with pytest.raises(ConfigError, match=r"^arm 'full': --amount: "):
        planned("static,full", "bytes", 1, amount // 10)


def test_learning_rates_decay_at_the_same_share_of_the_budget() -> None:
    step = {"schedule": "step", "milestones": [10, 45], "decay": 0.1}
    long = tiny(local=step, train={"rounds": 60})
    assert with_rounds(long, 60) == long
    short = with_rounds(long, 24)
    assert (short.train.rounds, short.local.milestones) == (24, [4, 18])
    assert with_rounds(long, 1).local.milestones == [1, 1]
    assert parse(short.model_dump(exclude_none=True)) == short
    cosine = tiny(local={"schedule": "cosine"}, train={"rounds": 60})
    factors = [
        [prepare(config).schedule.factor(config.train.rounds * part // 4) for part in range(5)]
        for config in (cosine, with_rounds(cosine, 24))
    ]
    assert factors[0] == pytest.approx(factors[1], abs=1e-15)  # pi times a rounded quotient


def test_amounts_belong_to_their_budget() -> None:
    assert parse_budget(BudgetKind.BYTES, "1.5 MB") == 1_500_000
    assert parse_budget(BudgetKind.FLOPS, "2 GFLOPs") == parse_budget(BudgetKind.FLOPS, "2e9")
    for kind, amount in (("rounds", "20"), ("flops", "2GB"), ("bytes", "2 GFLOPs"), ("bytes", "x")):
        with pytest.raises(ConfigError, match="amount"):
            parse_budget(BudgetKind(kind), amount)


def test_the_output_step_has_no_place_in_a_budget() -> None:
    with pytest.raises(ConfigError, match=r"train\.output_step"):
        compare("static", {"train": {"output_step": 1.0}}, out="never-made")


# reports


def made_up(accuracies: dict[str, list[float]]) -> ComparisonResult:
    def curve(seed: int, end: float) -> Lines:
        return [
            {"round": r, "test_loss": 1 - end, "test_accuracy": end * r / (2 + seed),
             "bytes": r * (1 + seed) * 10**9, "flops": r * 10**12}
            for r in range(1, 3 + seed)
        ]  # fmt: skip

    ways = {name: [curve(*x) for x in enumerate(ends)] for name, ends in accuracies.items()}
    return result_of(ways, 3600.0)


def test_the_table_says_what_each_way_took_and_reached() -> None:
    result = made_up({"static": [0.5, 0.7], "full": [0.8, 0.8]})
    static, full = comparison_rows(result)
    assert static[:5] == ["static", "2 to 3", "4 GB", "2.5 T", "60.0 % ± 14.1"]
    assert full[:1] + full[4:] == ["full", "80.0 % ± 0.0", "0.2000 ± 0.0000", "", "", "", "best"]
    assert static[6:] == ["-20.0 points ± 14.1", "", "", "no verdict: 2 of 3 seeds"]
    static, full = comparison_rows(made_up({"static": [0.5, 0.6, 0.7], "full": [0.8, 0.8, 0.8]}))
    # differences -30, -20 and -10 points: 4.303 * 10 / sqrt 3 on both sides, t = 2 sqrt 3
    assert static[6:] == ["-20.0 points ± 10.0", "[-44.8, +4.8]", "0.074", "undecided"]
    assert full[6:] == ["", "", "", "best"]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_the_page_has_the_figure_and_says_how_sure_it_is(seeds: int, tmp_path: Path) -> None:
    result = made_up({"static": [0.5, 0.7, 0.6][:seeds], "full": [0.8, 0.8, 0.8][:seeds]})
    text = write_comparison(result, tmp_path).read_text()
    assert (tmp_path / "comparison.png").stat().st_size > 10_000
    assert "| static | 2" in text
    assert "`a command`" in text
    assert ("little power" in text) == (seeds == 3)
    assert ("Nothing was tested" in text) == (seeds < 3)
    assert ("± is the standard deviation over seeds" in text) == (seeds > 1)


def test_curves_are_averaged_where_all_seeds_have_been() -> None:
    x, values = shared_grid([([2, 4, 6], [0.0, 0.2, 0.4]), ([3, 5], [0.3, 0.5])])
    assert x.tolist() == [3, 4, 5]
    assert values[0] == pytest.approx([0.1, 0.2, 0.3])
    assert values[1] == pytest.approx([0.3, 0.4, 0.5])
    x, values = shared_grid([([2], [0.1]), ([4], [0.3])])
    assert (x.tolist(), values.tolist()) == ([3], [[0.1], [0.3]])


def test_records_made_before_there_were_costs_can_be_read() -> None:
    paths = sorted(RESULTS.glob("small/*.json"))
    assert paths
    for path in paths:
        record = ArmRecord.read(path)
        assert [x[-1] for x, _ in record.against("round", "accuracy")] == [30] * len(record.runs)


# runs


@dataclass(frozen=True)
class Done:
    """A comparison with two finished runs and a stopped one when it resumed."""

    out: Path
    result: ComparisonResult
    untouched: bool
    log: str  # of the stopped run


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    out, ways = tmp_path_factory.mktemp("compare"), "static,full:local.lr=0.05"
    made = planned(ways, "bytes", seeds=2).configs

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 3:
            raise KeyboardInterrupt

    def begun(config: Config) -> RunFolder:
        folder = RunFolder(out / "runs" / config.name / f"seed-{config.seed}")
        folder.create(config)
        return folder

    finished = [begun(own[0]) for own in made.values()]
    for folder in finished:
        run_rounds(Training(folder.config(), prepare(folder.config())), folder)
    stopped = begun(made["static"][1])
    setup = prepare(made["static"][1])
    with pytest.raises(Interruption):
        run_rounds(Training(made["static"][1], setup), stopped, [RoundCallback(stop)])
    before = [folder.summary_file.stat().st_mtime_ns for folder in finished]
    result = compare(ways, TINY, out=out, budget="bytes", seeds=2, jobs=2)
    untouched = [folder.summary_file.stat().st_mtime_ns for folder in finished] == before
    log = stopped.path.with_suffix(".log").read_text("utf-8")
    return Done(out, result, untouched, log)


@pytest.mark.slow
def test_what_was_stopped_goes_on_and_every_run_can_be_repeated(done: Done) -> None:
    assert done.untouched
    assert done.log.startswith("resuming")
    assert not (done.out / "runs/static/seed-0.log").exists()
    for arm in done.result.arms:
        assert [run.seed for run in arm.record.runs] == [0, 1]
        for run, rounds in zip(arm.record.runs, arm.rounds, strict=True):
            config = read(done.out / "runs" / arm.record.slug / f"seed-{run.seed}/config.toml")
            assert (config.seed, config.train.rounds) == (run.seed, rounds)
            state, history = run_rounds(Training(config, prepare(config)))
            folder = RunFolder(done.out / "runs" / arm.record.slug / f"seed-{run.seed}")
            assert run.lines[-1]["test_loss"] == float(f"{history[-1]['test_loss']:.7g}")
            assert len(folder.metrics()) == state.round == rounds
            sent = [line["bytes_down"] + line["bytes_up"] for line in history]
            assert [line["bytes"] for line in run.lines] == [
                sum(sent[: int(line["round"])]) for line in run.lines
            ]
            assert run.lines[-1]["flops"] == sum(line["flops"] for line in history)


@pytest.mark.slow
def test_budgets_are_kept_by_the_runs_themselves(done: Done) -> None:
    static, full = ([run.lines[-1]["bytes"] for run in arm.record.runs] for arm in done.result.arms)
    assert all(f <= s for f, s in zip(full, static, strict=True))
    assert done.result.arms[0].rounds == [6, 6]
    assert max(done.result.arms[1].rounds) < 6


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """Run the command here and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["submodel", "compare", *map(str, arguments)])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


@pytest.mark.slow
def test_records_redraw_the_same_page_without_training(
    done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ComparisonResult.read(done.out / "records") == done.result
    assert command(monkeypatch, "--records", done.out / "records", "--out", tmp_path) == 0
    assert (tmp_path / "comparison.md").read_text() == (done.out / "comparison.md").read_text()
    assert not (tmp_path / "runs").exists()
    printed = capsys.readouterr().out
    assert "│ static" in printed
    assert "Nothing was tested: 2 seeds" in printed
    redraw = ("--records", done.out / "records", "--out", tmp_path)
    assert command(monkeypatch, "static", *redraw) == 0
    assert "there is only one arm" in (tmp_path / "comparison.md").read_text()
    assert command(monkeypatch, "rolling", *redraw) == 2
    assert "arm 'rolling' " in capsys.readouterr().err


@pytest.mark.slow
def test_a_scheme_of_ones_own_is_named_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path is of a file in the working folder; settings may follow, like for any scheme."""
    outside = Path(__file__).parents[1] / "components/outside/a_scheme.py"
    shutil.copy(outside, tmp_path / "last_of_mine.py")
    monkeypatch.chdir(tmp_path)
    settings = [word for text in [*SETTINGS, "train.rounds=1"] for word in ("--set", text)]
    ways = "rolling,last_of_mine:Last:spare=0:local.lr=0.1"
    assert command(monkeypatch, ways, *settings, "--seeds", "1", "--out", "out") == 0
    result = ComparisonResult.read(Path("out/records"))
    assert [arm.text for arm in result.arms] == ways.split(",")
    config = read(Path("out/runs") / result.arms[1].record.slug / "seed-0/config.toml")
    assert (config.scheme.name, config.local.lr) == ("last_of_mine:Last", 0.1)


def test_records_that_are_only_told_write_nothing(
    done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of records may have other records and a page."""
    shutil.copytree(done.out / "records", tmp_path / "records")
    (tmp_path / "comparison.md").write_text("another's page")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, "--records", "records", "--json") == 0
    assert json.loads(capsys.readouterr().out)["page"] is None
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "comparison.md").read_text() == "another's page"


@pytest.mark.slow
def test_records_of_something_else_are_refused(tmp_path: Path, done: Done) -> None:
    with pytest.raises(SubmodelError, match=r"comparison\.json: "):
        ComparisonResult.read(tmp_path)
    shutil.copy(done.out / "records/comparison.json", tmp_path)
    with pytest.raises(SubmodelError, match=r"static\.json: "):
        ComparisonResult.read(tmp_path)


def test_another_configuration_in_the_folder_is_refused(done: Done) -> None:
    with pytest.raises(SubmodelError, match=r"seed-0 .*--out"):
        compare("static", {**TINY, "local": {"lr": 0.5}}, out=done.out, seeds=1)


CLI = {
    "no ways": ([], "arms"),
    "two bases": (["static", "--config", "a.toml", "--scale", "smoke"], "scale"),
    "missing file": (["static", "--config", "nowhere.toml"], "nowhere.toml: "),
    "bad setting": (["static", "--set", "train.rounds=x"], "train.rounds: 'x' "),
    "bad arm": (["rolling:windows=999"], "arm 'rolling:windows=999': scheme.windows: 999 "),
    "amount": (["static", "--amount", "2GB"], "--amount: "),
    "too little": (
        ["static", "--budget", "bytes", "--amount", "1kB", "--out", "x"],
        "arm 'static': --amount: ",
    ),
}


@pytest.mark.parametrize("case", CLI)
def test_mistakes_on_the_command_line_are_sentences(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, message = CLI[case]
    assert command(monkeypatch, *arguments) == 2
    errors = capsys.readouterr().err.splitlines()
    assert message in errors[0]
    assert all(line.startswith("error: ") for line in errors)
    assert not list(tmp_path.iterdir())


def test_ctrl_c_ends_the_command_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Job] = []
    start = runner._start

    def first_only(followers: Followers, job: Job) -> Follower:
        if started:
            raise KeyboardInterrupt  # as if the user pressed Ctrl-C now
        started.append(job)
        return start(followers, job)

    monkeypatch.setattr(runner, "_start", first_only)
    settings = [word for text in SETTINGS for word in ("--set", text)]
    out = tmp_path / "out"
    assert command(monkeypatch, "static,full", *settings, "--jobs", "2", "--out", out) == 130
    assert "continues" in capsys.readouterr().out
    begun = sorted(str(path.relative_to(out)) for path in out.rglob("*.toml"))
    assert "runs/static/seed-0.toml" in begun
    assert not list(out.rglob("summary.json"))
    assert not (out / "records").exists()


@pytest.mark.slow
def test_a_run_for_every_width_and_one_record_for_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "run_jobs", run_in_this_process)
    ways = parse_arms("static,exclusive:local.lr=0.1")
    plan = plan_comparison(ways, base_of(TINY_NET), BudgetKind.ROUNDS, None, seeds=1)
    slugs = ["exclusive-local.lr-0.1-at-1", "exclusive-local.lr-0.1-at-0.5"]
    assert list(plan.configs) == ["static", *slugs]
    half = plan.configs[slugs[1]][0]
    assert (half.scheme.name, half.model.share, half.clients.least) == ("full", 0.5, 0.5)
    assert half.local.lr == 0.1
    result = run_plan(plan, tmp_path, 1, Console(quiet=True), "a command")
    exclusive = result.arms[1]
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
    assert ComparisonResult.read(tmp_path / "records") == result


def test_a_budget_is_of_all_widths_together() -> None:
    ways = parse_arms("static,exclusive")
    sections = {**TINY_NET, "train": {**TINY_NET["train"], "rounds": 9}}
    plan = plan_comparison(ways, base_of(sections), BudgetKind.BYTES, None, seeds=1)
    amount = cost_of(prepare(plan.configs["static"][0]), BudgetKind.BYTES, 9)
    parts = [plan.configs[f"exclusive-at-{c}"][0] for c in ("1", "0.5")]
    (rounds,) = {config.train.rounds for config in parts}
    setups = [prepare(config) for config in parts]
    assert cost_of(setups, BudgetKind.BYTES, rounds) <= amount
    assert amount < cost_of(setups, BudgetKind.BYTES, rounds + 1)


@pytest.mark.slow
def test_ways_are_compared_to_the_end_each_with_a_rate_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "run_jobs", run_in_this_process)
    local = {"schedule": "step", "milestones": [2], "decay": 0.5, "lr": 0.05}
    sections = {**TINY_NET, "local": local, "train": {**TINY_NET["train"], "rounds": 3}}
    ways = parse_arms("static,rolling:local.lr=0.3")
    plan = plan_comparison(ways, base_of(sections), BudgetKind.ROUNDS, None, seeds=1)
    static, rolling = specs_of_plan(plan)
    assert list(static.rates) == pytest.approx([0.02, 0.05, 0.1])
    assert not rolling.rates
    result = run_to_the_end(plan, tmp_path, 1, Console(quiet=True), "a command")
    table = read_rates(tmp_path / "records", "static")
    assert table is not None
    assert len(table.scores) == 3 + 2  # all are equal, so the smallest is best: two more beyond it
    assert "until flat" in result.budget
    for arm in result.arms:
        assert arm.rounds == [4]  # three, as it is never flat so soon, and the decay
        assert arm.record.runs[0].is_flat is False
        assert "client_accuracy.worst_quarter" in arm.record.runs[0].lines[-1]
    assert ComparisonResult.read(tmp_path / "records") == result


def test_a_course_needs_one_milestone() -> None:
    two = base_of({"local": {"schedule": "step", "milestones": [2, 4]}})([])
    with pytest.raises(ConfigError, match=r"^local\.milestones: --scale converged "):
        course_of(two)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "static", "--scale", "converged", "--budget", "bytes"], "--budget"),
        (["reproduce", "heterofl", "--scale", "converged"], "static, random"),
        (["reproduce", "heterofl", "--plan"], "--plan: "),
        (
            ["reproduce", "all", "--scale", "converged", "--datasets", "cifar10"],
            "--scale converged: ",
        ),
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


def test_efforts_add_up_over_commands_and_are_not_known_where_nobody_counted(
    tmp_path: Path,
) -> None:
    first, second = EffortFile(tmp_path / "a.effort.jsonl"), EffortFile(tmp_path / "b.effort.jsonl")
    first.add(1.5)
    first.add(None)
    first.add(2.25)
    assert first.read() == Effort(3.75, describe_machine())
    assert second.read() == Effort()
    assert sum_known([first, second]) is None
    second.add(1.0)
    assert sum_known([first, second]) == 4.75


def test_a_damaged_file_is_no_effort(tmp_path: Path) -> None:
    file = EffortFile(tmp_path / "a.effort.jsonl")
    file.path.write_text('{"core_seconds": 1.0, "mach', "utf-8")
    assert file.read() == Effort()


def test_what_runs_took_is_told_though_some_grids_were_not_timed() -> None:
    def record(*seconds: float | None) -> dict[ConvergedArm, ArmRecord]:
        runs = [SeedRun(n, [], 7200.0, "", core_seconds=s, machine="a machine")
                for n, s in enumerate(seconds)]  # fmt: skip
        return {ConvergedArm("fashion", "rolling"): ArmRecord("a", {}, runs)}

    grids = [RateTable("a", 1, [(0.1, 0.5)], 1800.0), RateTable("b", 1, [(0.1, 0.5)])]
    whole = "2 runs and 1 grid of rates, 1.50 core-hours on a machine"
    assert effort_words(record(1800.0, 1800.0), grids[:1]) == whole
    described = effort_words(record(1800.0, 1800.0), grids)
    assert described == f"{whole}; 1 grid of rates was not timed"
    assert effort_words(record(1800.0, None), grids).endswith("4.00 hours of rounds by the clock")
