"""Converged runs: stages without effect on earlier rounds, rates from held-out data, the plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import submodel
from submodel.cli.common import command_line
from submodel.comparison.records import ArmRecord, portable, put_together
from submodel.comparison.runner import SCORE, Course, FlatRule, Job, Runner, describe_machine
from submodel.config import Config, parse, read
from submodel.config.meaning import differences
from submodel.config.setup import prepare
from submodel.core import ConfigError, SubmodelError
from submodel.drawing.style import FRAME, LINES
from submodel.runs.folder import RunFolder
from submodel.runs.loop import Interruption, run_rounds
from submodel.runs.training import Training
from submodel_lab.converged import arms, report
from submodel_lab.converged.agenda import (
    budget_rows,
    power_rows,
    read_results,
    run_agenda,
    specs_of,
    words_of_rest,
)
from submodel_lab.converged.arms import SETTINGS, ConvergedArm, RunSpec, Setting
from submodel_lab.converged.contrasts import (
    ContrastOutcome,
    contrast_outcomes,
    draw_contrasts,
    write_contrasts,
)
from submodel_lab.converged.converge import (
    TUNING_SEED,
    Outlook,
    RateTable,
    choose_rates,
    converge,
    missing_seeds,
    read_earlier,
    read_earlier_rates,
    read_rates,
    seconds_left,
)
from submodel_lab.converged.questions import QUESTIONS, Contrast, OpenQuestion
from submodel_lab.converged.report import differences_at_equal_loss
from submodel_lab.paper.experiments import EXPERIMENTS, METHODS, Scale
from tests.support.jobs import run_in_this_process
from tests.support.records import record, score_line

TINY: dict[str, Any] = {
    "model": {"name": "mlp", "width": 4},
    "data": {"examples": 200, "test_examples": 50, "held_out": 0.1},
    "clients": {"count": 10, "per_round": 2, "capacities": [1, 0.5]},
    "train": {"rounds": 9, "evaluate_every": 1, "evaluate_capacities": False},
    "engine": {"name": "local"},
}


SHORT = Course(least=2, most=6, step=2, final=2, rule=FlatRule(window=1, rise=0.5))


def lines(scores: list[float]) -> list[dict[str, Any]]:
    return [{"round": r, SCORE: s} for r, s in enumerate(scores, 1)]


def staged(config: Config, rounds: int, **local: Any) -> Config:
    train = config.train.with_values(rounds=rounds)
    return config.model_copy(update={"train": train, "local": config.local.with_values(**local)})


def test_a_run_is_extended_until_it_is_flat_or_long_enough_then_decays_once() -> None:
    config = SHORT.begin(parse(TINY))
    assert config.train.rounds == 2
    rising, flat = [0.0, 0.6], [0.5, 0.6]
    assert SHORT.next_settings(config, lines(rising)) == ["train.rounds=4"]
    assert SHORT.next_settings(staged(config, 5), lines(rising)) == ["train.rounds=6"]
    decay = ["train.rounds=4", "local.schedule=step", "local.milestones=[2]", "local.decay=0.1"]
    assert SHORT.next_settings(config, lines(flat)) == decay
    at_most = SHORT.next_settings(staged(config, 6), lines(rising))
    assert at_most is not None
    assert at_most[0] == "train.rounds=8"
    last = staged(config, 4, schedule="step", milestones=[2])
    assert SHORT.next_settings(last, lines(rising)) is None
    assert SHORT.was_flat(last, lines([*flat, 1.0, 1.0]))  # the rise after the decay does not count
    assert not SHORT.was_flat(last, lines([*rising, 0.6, 0.6]))
    with pytest.raises(ConfigError, match=r"data\.held_out"):
        SHORT.begin(parse({**TINY, "data": {"examples": 200}}))


@pytest.mark.slow
def test_a_decay_after_the_end_gives_the_bytes_of_a_run_that_had_it_from_the_beginning(
    tmp_path: Path,
) -> None:
    config = SHORT.begin(parse(TINY))
    folder = RunFolder(tmp_path / "staged")
    folder.create(config)
    run_rounds(Training(config, prepare(config)), folder)
    run = submodel.open(folder.path)
    run.resume({"train": {"rounds": 4}}, progress=False)
    decay = {"schedule": "step", "milestones": [4], "decay": 0.1}
    run.resume({"train": {"rounds": 6}, "local": decay}, progress=False)
    at_once = staged(config, 6, **decay)
    whole = RunFolder(tmp_path / "at-once")
    whole.create(at_once)
    _, history = run_rounds(Training(at_once, prepare(at_once)), whole)
    other = whole.summary()
    assert run.summary is not None
    assert other is not None
    assert run.summary["model_sha256"] == other["model_sha256"]
    assert [line[SCORE] for line in run.history] == [line[SCORE] for line in history]
    with pytest.raises(ConfigError, match="milestones"):
        run.resume({"local": {"milestones": [3]}}, progress=False)


@pytest.mark.slow
def test_a_runner_takes_runs_through_all_stages_and_scores_them_in_full(tmp_path: Path) -> None:
    runner = Runner(tmp_path, 2)
    job = runner.job("a", parse(TINY), SHORT, is_scored=True)
    wild = runner.job("b", parse({**TINY, "local": {"lr": 1e30, "clip": None}}), SHORT)
    ended_jobs: list[Job] = []
    runner.run_jobs([job, wild], may_diverge=True, when_ended=ended_jobs.append)
    assert job.is_finished
    assert not wild.is_finished
    assert {j.config.name for j in ended_jobs} == {j.config.name for j in (job, wild)}
    assert len(ended_jobs) == 2
    config = job.folder.config()
    assert config.local.schedule == "step"
    assert config.train.rounds == config.local.milestones[0] + 2
    again = runner.job("a", parse(TINY), SHORT, is_scored=True)  # recognised at its end
    assert again.is_finished
    kept = ArmRecord.of("a", [job.folder])
    (last,) = kept.final("worst quarter").items()
    assert last[0] == 0
    sizes = kept.final("mean over sizes")[0]
    first, half = (kept.runs[0].lines[-1][f"capacity_accuracy.{c}"] for c in ("1", "0.5"))
    assert sizes == pytest.approx((first + half) / 2)
    assert kept.final("accuracy")[0] == first
    assert len(kept.runs[0].clients) == 10
    effort = job.effort.read()
    assert effort.core_seconds is None or 0.01 < effort.core_seconds < 600  # None: not on Linux
    assert effort.core_seconds is None or effort.machine == describe_machine()
    kept.write(tmp_path / "a.json")
    assert ArmRecord.read(tmp_path / "a.json") == kept


# the plan


@pytest.fixture
def tiny_setting(monkeypatch: pytest.MonkeyPatch) -> Setting:
    sections = {name: dict(values) for name, values in TINY.items()}
    setting = Setting(
        "digits",
        sections,
        Course(2, 2, step=1, final=0),
        seeds=1,
        seconds=0.01,
        rates=(0.01, 0.1),
        tuning_rounds=2,
        capacities=(1.0, 0.5),
    )
    monkeypatch.setitem(SETTINGS, "tiny", setting)
    monkeypatch.setattr(Runner, "run_jobs", run_in_this_process)
    return setting


def test_every_run_of_the_plan_has_a_valid_configuration_that_its_question_speaks_of() -> None:
    slugs = set()
    for question in QUESTIONS.values():
        for arm in question.arms:
            for spec in arm.specs():
                slugs.add(spec.slug)
                config = spec.course.begin(spec.config(TUNING_SEED))
                assert (config.name, config.seed) == (spec.slug, TUNING_SEED)
                assert config.data.held_out is not None
                assert TUNING_SEED not in spec.seeds
                cifar = config.data.name == "cifar10" and "equal" not in spec.slug
                is_early = spec.slug.startswith("factors")  # about scores before the end
                assert config.train.rounds >= (1_000 if cifar and not is_early else 1)
                assert len(spec.seeds) >= (3 if config.data.name == "cifar10" else 10)
    assert len(slugs) == len({c for q in QUESTIONS.values() for x in q.arms
                              for c in (x.members.values() or [x.slug])})  # fmt: skip
    methods = {c.method for q in QUESTIONS.values() for c in q.arms}
    methods |= {v.method for e in EXPERIMENTS.values() for v in e.arms(Scale.SMALL)}
    assert methods == set(METHODS)


def test_mixtures_of_two_capacities_have_one_mean() -> None:
    for n in (2, 4, 8, 16):
        clients = SETTINGS[f"fashion-1-{n}"].sections["clients"]
        pairs = zip(clients["capacities"], clients["proportions"], strict=True)
        assert sum(c * p for c, p in pairs) == pytest.approx(0.6)
        assert min(clients["capacities"]) == 1 / n


def test_the_budget_of_the_plan_is_the_sum_of_its_parts_and_power_asks_for_a_spread() -> None:
    questions = list(QUESTIONS.values())
    *rows, total = budget_rows(questions)
    assert int(total[4]) == sum(int(row[4]) for row in rows)
    specs = specs_of(list(dict.fromkeys(c for q in questions for c in q.arms)))
    assert int(total[4]) == sum(len(c.seeds) for c in specs)
    hours = sum(c.tuning_seconds + c.least_seconds for c in specs) / 3600
    assert float(total[-2]) == pytest.approx(hours, abs=0.06)
    table = {row[0]: row for row in power_rows(questions, {"fashion": 0.01})}
    assert table["Fashion-MNIST, L = 5"][2:5] == ["1.00 points", "10", "80 %"]
    assert "no records yet" in table["Fashion-MNIST, 18 images a client"]


@pytest.mark.slow
def test_questions_are_run_answered_and_answered_again_from_the_records(
    tmp_path: Path, tiny_setting: Setting
) -> None:
    contrast = Contrast("tiny", "static", "exclusive-fixed", "mean over sizes")
    question = OpenQuestion("exclusive", "static - exclusive", [contrast])
    runner, folder = Runner(tmp_path, 1), tmp_path / "records"
    run_agenda(runner, [question], folder)
    table = read_rates(folder, "tiny-static")
    assert table is not None
    assert {0.01, 0.1} < {rate for rate, _ in table.scores}
    (job,) = (tmp_path / "runs" / "tiny-static").glob("seed-*.toml")
    assert parse_rate(job) == table.best
    results, tables = read_results([question], folder)
    exclusive = results[ConvergedArm("tiny", "exclusive-fixed")]
    members = [ArmRecord.read(folder / f"tiny-exclusive-fixed-at-{c}.json") for c in ("1", "0.5")]
    accuracies = [member.final("accuracy")[0] for member in members]
    assert exclusive.final("mean over sizes")[0] == pytest.approx(sum(accuracies) / 2)
    assert exclusive.final("smallest size")[0] == accuracies[1]
    assert exclusive.final("bytes")[0] == sum(m.final("bytes")[0] for m in members)
    assert len(exclusive.runs[0].clients) == 10
    own_tables = [t for some_tables in tables.values() for t in some_tables]
    page = report.write_question(question, results, own_tables, "a command", tmp_path)
    text = page.read_text()
    assert "no verdict: 1 of 3 seeds" in text
    assert "exclusive, fixed capacities, equal rounds" in text
    assert "tiny-exclusive-fixed-at-0.5" in text
    assert (tmp_path / "exclusive.png").stat().st_size > 5_000


def parse_rate(path: Path) -> float:
    return read(path).local.lr


def test_equal_bytes_are_no_more_than_those_of_the_shortest_run(tiny_setting: Setting) -> None:
    longer = replace(tiny_setting, course=Course(100, 100, step=1, final=10))
    exclusive, full = (
        ConvergedArm("tiny", "exclusive-equal-bytes"),
        ConvergedArm("tiny", "full-equal-bytes"),
    )
    # mean square (1 + 1/4) / 2; all widths together 1 + 1/4, the whole model 1
    assert arms.equal_course(exclusive, longer).longest == 55
    assert arms.equal_course(full, longer).longest == 68
    assert arms.equal_course(full, longer).final == 6


# measures from lines


def test_runs_of_several_lengths_are_put_together_by_their_latest_evaluation() -> None:
    def line(round_: int, accuracy: float) -> dict[str, float]:
        return {"round": round_, "test_accuracy": accuracy, "test_loss": 1.0,
                "bytes": 10 * round_, "flops": round_}  # fmt: skip

    wide, narrow = [line(2, 0.5), line(4, 0.6)], [line(2, 0.3), line(6, 0.4)]
    records = {
        1.0: record("a", [wide], clients=[(1.0, 0.9), (0.5, 0.1)], is_flat=True),
        0.5: record("b", [narrow], clients=[(1.0, 0.2), (0.5, 0.7)], is_flat=False),
    }
    (run,) = put_together("c", records).runs
    assert [(x["round"], x["test_accuracy"], x["bytes"]) for x in run.lines] == [
        (2, 0.5, 40),
        (4, 0.6, 60),
        (6, 0.6, 100),
    ]
    assert run.lines[-1]["capacity_accuracy.0.5"] == 0.4
    assert run.clients == [(1.0, 0.9), (0.5, 0.7)]  # each client by the model of its capacity
    assert run.lines[-1]["client_accuracy.worst_quarter"] == 0.7
    assert run.is_flat is False


def test_gaps_are_compared_where_train_losses_are_equal() -> None:
    def curve(pairs: list[tuple[float, float]]) -> ArmRecord:
        lines = [
            {"round": r, "train_eval_loss": a, "test_loss": b} for r, (a, b) in enumerate(pairs, 1)
        ]
        return record("x", [lines])

    slow = curve([(1.0, 1.0), (0.6, 0.7)])
    fast = curve([(0.8, 0.9), (0.4, 0.7), (0.1, 0.9)])
    # slow ends at a loss of 0.6 with a gap of 0.1; fast is there between 0.8 (0.1) and 0.4 (0.3)
    assert differences_at_equal_loss(slow, fast, "loss gap") == pytest.approx([0.1])
    assert slow.ahead_of(fast, "loss gap") == pytest.approx([0.7])


def test_measures_of_a_question_are_judged_apart_and_may_be_read_at_an_earlier_round() -> None:
    def curves(method: str, early: float, late: float) -> ArmRecord:
        pairs = [(100, early), (120, 0.9), (440, late)]
        return record(method, [[score_line(a + s / 100, r) for r, a in pairs] for s in range(3)])

    one, other = ConvergedArm("factors", "rolling"), ConvergedArm("factors", "static")
    results = {one: curves("rolling", 0.3, 0.6), other: curves("static", 0.4, 0.5)}
    contrasts = [
        Contrast("factors", "rolling", "static", measure)
        for measure in ("accuracy", "accuracy at round 110")
    ]
    question = OpenQuestion("q", "a question", contrasts)
    assert question.families == [[contrasts[0]], [contrasts[1]]]
    (_, late), (_, early) = report.judge_question(question, results)
    assert list(late.differences) == pytest.approx([0.1] * 3)
    assert list(early.differences) == pytest.approx([-0.1] * 3)
    assert (late.verdict, early.verdict) == ("holds", "reversed")


def test_a_rate_at_the_edge_of_its_grid_is_said_to_be() -> None:
    table = RateTable("a", 10, [(0.01, 0.5), (0.1, 0.6), (1.0, None)])
    assert table.best == 0.1
    assert not table.is_at_edge
    assert RateTable("a", 10, [(0.01, 0.7), (0.1, 0.6)]).is_at_edge
    assert report.rate_rows([table]) == [["a", "0.01: 50.0 %, 0.1: 60.0 %, 1: diverged", "0.1"]]


QUESTION = OpenQuestion("static", "rolling - static", [Contrast("tiny", "rolling", "static")])
QUIET = Console(quiet=True)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Setting:
    setting = Setting(
        "digits",
        {name: dict(values) for name, values in TINY.items()},
        Course(1, 1, step=1, final=1),
        seeds=2,
        seconds=0.01,
        rates=(0.01, 0.1),
        tuning_rounds=1,
        capacities=(1.0, 0.5),
    )
    monkeypatch.setitem(SETTINGS, "tiny", setting)
    monkeypatch.setattr(Runner, "run_jobs", run_in_this_process)
    return setting


def stopped_after(count: int) -> Callable[..., None]:
    """Run in this process until a number of runs have ended, not counting trials of rates."""
    left = [count]

    def run(
        self: Runner,
        jobs: Sequence[Job],
        *,
        may_diverge: bool = False,
        when_ended: Callable[[Job], None] | None = None,
        work_before: float = 0.0,
        work_beyond: float = 0.0,
    ) -> None:
        for job in jobs:
            if not may_diverge and left[0] == 0:
                raise Interruption("stopped")
            run_in_this_process(self, [job], may_diverge=may_diverge, when_ended=when_ended)
            left[0] -= not may_diverge

    return run


def spec_of(setting: Setting) -> RunSpec:
    (rolling, _) = QUESTION.arms
    return rolling.specs()[0]


@pytest.mark.slow
def test_a_plan_that_is_stopped_keeps_what_is_done_and_goes_on_elsewhere(
    tmp_path: Path, tiny: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = tmp_path / "keep"
    assert words_of_rest([QUESTION], keep, None).endswith(": 4 runs, at least 0.0 core-hours.")
    monkeypatch.setattr(Runner, "run_jobs", stopped_after(3))
    with pytest.raises(Interruption):
        run_agenda(Runner(tmp_path / "a", 1, QUIET), [QUESTION], keep)
    first = {p.name: p.read_text() for p in keep.iterdir()}
    rolling, static = (ArmRecord.read(keep / f"tiny-{w}.json") for w in ("rolling", "static"))
    assert [[run.seed for run in r.runs] for r in (rolling, static)] == [[0, 1], [0]]
    assert seconds_left([spec_of(tiny)], keep) == 0
    assert " 1 runs" in words_of_rest([QUESTION], keep, None)

    monkeypatch.setattr(Runner, "run_jobs", run_in_this_process)
    run_agenda(Runner(tmp_path / "b", 1, QUIET), [QUESTION], keep)  # on another machine
    assert {p.name for p in (tmp_path / "b/runs").rglob("seed-*.toml")} == {"seed-1.toml"}
    assert not (tmp_path / "b/runs/rates").exists()
    assert ArmRecord.read(keep / "tiny-rolling.json") == rolling
    whole = ArmRecord.read(keep / "tiny-static.json")
    assert whole.runs[0] == static.runs[0]
    assert [run.seed for run in whole.runs] == [0, 1]
    assert (keep / "tiny-static.rates.json").read_text() == first["tiny-static.rates.json"]
    assert words_of_rest([QUESTION], keep, None).split(": ")[1].startswith("0 runs")
    more = words_of_rest([QUESTION], keep, 5)
    assert ": 6 runs" in more


@pytest.mark.slow
def test_a_grid_goes_on_where_its_best_rate_is_at_the_edge_and_a_run_keeps_its_rate(
    tmp_path: Path, tiny: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {0.005: 0.3, 0.01: 0.5, 0.1: 0.6, 0.2: 0.7, 0.4: 0.8, 0.8: 0.9}
    tried: list[float] = []

    def rates_of(slug: str, jobs: Mapping[float, Job]) -> RateTable:
        tried.extend(jobs)
        return RateTable(slug, 1, [(rate, scores[rate]) for rate in jobs], 1.0)

    monkeypatch.setattr("submodel_lab.converged.converge.rate_table", rates_of)
    keep, spec = tmp_path / "keep", spec_of(tiny)
    outlook = Outlook(0.0, QUIET)
    assert choose_rates(Runner(tmp_path / "a", 1, QUIET), [spec], keep, outlook) == {
        "tiny-rolling": 0.4
    }
    assert tried == [0.01, 0.1, 0.2, 0.4]
    table = read_earlier_rates(spec, keep)
    assert table is not None
    assert (table.best, table.is_at_edge, table.core_seconds) == (0.4, True, 3.0)

    scores[0.1] = 0.0  # the best is now at the lower edge of another grid
    (keep / "tiny-rolling.rates.json").unlink()
    tried.clear()
    choose_rates(Runner(tmp_path / "b", 1, QUIET), [spec], keep, outlook)
    assert tried == [0.01, 0.1, 0.005]  # now inside the grid

    scores |= {0.1: 0.6, 0.2: 0.0}
    (keep / "tiny-rolling.rates.json").unlink()
    converge(Runner(tmp_path / "c", 1, QUIET), [spec], keep)  # runs with 0.1, inside the grid
    RateTable("tiny-rolling", 1, [(0.01, 0.5), (0.1, 0.6)]).write(keep)
    tried.clear()
    rates = choose_rates(Runner(tmp_path / "c", 1, QUIET), [spec], keep, outlook)
    assert (rates, tried) == ({"tiny-rolling": 0.1}, [])


@pytest.mark.slow
def test_records_of_another_configuration_are_refused_with_the_reason(
    tmp_path: Path, tiny: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = tmp_path / "keep"
    run_agenda(Runner(tmp_path / "a", 1, QUIET), [QUESTION], keep, seeds=1)

    def refusal(setting: Setting) -> str:
        monkeypatch.setitem(SETTINGS, "tiny", setting)
        with pytest.raises(SubmodelError) as caught:
            run_agenda(Runner(tmp_path / "b", 1, QUIET), [QUESTION], keep)
        assert not (tmp_path / "b").exists()
        return str(caught.value)

    wider = {**tiny.sections, "model": {"name": "mlp", "width": 8}}
    assert "(model.width: 4 " in refusal(replace(tiny, sections=wider))
    longer = replace(tiny, course=Course(5, 5, step=1, final=1))
    assert "(train.rounds: 2, " in refusal(longer)
    decayless = replace(tiny, course=Course(2, 2, step=1, final=0))
    assert "(train.rounds: " in refusal(decayless)
    other_grid = refusal(replace(tiny, rates=(0.1, 0.3)))
    assert ", 0.1, 0.3 for 1 " in other_grid
    table = keep / "tiny-rolling.rates.json"
    plain = json.loads(table.read_text())
    best = max(plain["scores"], key=lambda pair: (pair[1], -pair[0]))[0]
    plain["scores"] = [[rate, None if rate == best else 0.5] for rate, _ in plain["scores"]]
    table.write_text(json.dumps(plain))
    assert "(local.lr: " in refusal(tiny)
    elsewhere = {**tiny.sections, "engine": {"name": "local", "threads": 2}}
    table.unlink()  # from any grid
    monkeypatch.setitem(SETTINGS, "tiny", replace(tiny, sections=elsewhere))
    assert missing_seeds(spec_of(tiny), read_earlier(spec_of(tiny), keep)) == [1]


def test_the_time_left_follows_from_the_pace_so_far(tmp_path: Path, tiny: Setting) -> None:
    runner = Runner(tmp_path, 1, QUIET)
    spec = replace(spec_of(tiny), seconds=1800.0)
    job = runner.job("x", spec.config(0), spec.course, seconds=1800.0)
    now = [100.0]
    outlook = Outlook(10 * 3600, QUIET, lambda: now[0])
    outlook.leave_out(job)  # two rounds of half an hour each
    assert outlook.describe() == "0.00 of at least 9.00 core-hours"
    now[0] += 2 * 3600
    outlook.record(job)
    assert outlook.describe() == (
        "1.00 of at least 9.00 core-hours of the plan; at this pace 16.0 hours left"
    )


@pytest.mark.slow
def test_the_command_goes_on_from_the_folder_that_it_keeps(
    tmp_path: Path, tiny: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(QUESTIONS, "static", QUESTION)
    monkeypatch.setitem(SETTINGS, "tiny", replace(tiny, rates=()))
    keep, out = tmp_path / "keep", tmp_path / "out"
    words = ["reproduce", "static", "--scale", "converged", "--keep", str(keep), "--out"]
    first = CliRunner().invoke(command_line, [*words, str(out), "--seeds", "1"])
    assert first.exit_code == 0
    assert not (out / "records").exists()
    assert "no verdict: 1 of 3 seeds" in (out / "static.md").read_text()
    again = CliRunner().invoke(command_line, [*words, str(tmp_path / "again"), "--seeds", "1"])
    assert again.exit_code == 0
    assert not (tmp_path / "again/runs").exists()
    assert (tmp_path / "again/static.md").read_text() == (out / "static.md").read_text()
    plan = CliRunner().invoke(command_line, [*words[:6], "--plan"])
    assert f"Beyond the records in {keep}: 2 runs" in plan.stdout


def test_the_record_of_every_planned_run_would_be_recognised() -> None:
    for arm in {c.setting: c for q in QUESTIONS.values() for c in q.arms}.values():
        for spec in arm.specs():
            course = spec.course
            begin = course.begin(spec.config_at(0, 0.05))
            rounds = [course.least, min(course.most, course.least + course.step), course.most]
            for count in rounds:
                decay = {"schedule": "step", "milestones": [count], "decay": course.decay}
                end = begin.model_copy(
                    update={
                        "local": begin.local.with_values(**decay),
                        "train": begin.train.with_values(rounds=count + course.final),
                    }
                )
                kept = parse(portable(end))
                assert course.ends_with(kept)
                assert differences(course.begin(kept), begin) == {}
            longer = begin.train.with_values(rounds=course.longest + 1)
            assert not course.ends_with(end.model_copy(update={"train": longer}))


def outcomes(rolling: list[float], static: list[float]) -> list[ContrastOutcome]:
    accuracies = {"rolling": rolling, "static": static}
    results = {
        ConvergedArm("cifar-low", method): record(method, a) for method, a in accuracies.items()
    }
    return contrast_outcomes([QUESTIONS["static"]], results)


def test_a_verdict_is_called_early_until_all_seeds_are_there() -> None:
    few, all_ = (outcomes([0.7, 0.71, 0.72][:n], [0.6, 0.61, 0.62][:n])[0] for n in (2, 3))
    assert (few.is_early, all_.is_early) == (True, False)
    assert few.row()[-2:] == ["2 of 3", "no verdict: 2 of 3 seeds so far"]
    assert all_.row()[-1] in ("holds", "undecided")
    assert all_.row()[3:7] == [
        "",
        "+11.3 (84.45 - 73.19)",
        "+5.3 (79.08 - 73.76)",
        "-8.8 down to 1/64, +1.2 down to 1/25 (65.09 - 73.88, 73.75 - 72.51)",
    ]


@pytest.mark.parametrize(
    ("static", "colour"),
    [([0.6, 0.6, 0.61], LINES[0]), ([0.8, 0.8, 0.81], LINES[1]), ([0.6, 0.7, 0.8], FRAME)],
)
def test_the_picture_has_every_difference_in_the_colour_of_its_verdict(
    static: list[float], colour: str
) -> None:
    rolling = [0.7, 0.705, 0.71]
    (plot,) = draw_contrasts(outcomes(rolling, static)).axes
    labels = [text.get_text() for text in plot.get_yticklabels()]
    setting = "CIFAR-10, L = 5"
    assert labels == [setting, f"{setting}; mean over sizes", f"{setting}; smallest size"]
    texts = [text.get_text() for text in plot.texts]
    assert texts[0] == "(b) rolling - static"
    mean = 100 * sum(a - b for a, b in zip(rolling, static, strict=True)) / 3
    dots = [line for line in plot.lines if line.get_marker() == "o"]
    assert [np.asarray(dot.get_xdata()).item() for dot in dots] == pytest.approx([mean] * 3)
    assert {dot.get_color() for dot in dots} == {colour}
    marks = [line for line in plot.lines if line.get_marker() in ("D", "s", "^")]
    printed = [np.asarray(mark.get_xdata()).tolist() for mark in marks]
    assert printed == [[11.3], [5.3], [-8.8, 1.2], [-0.1], [-5.6]]


def test_claims_are_one_page(tmp_path: Path) -> None:
    page = write_contrasts(outcomes([0.7, 0.71, 0.72], [0.6, 0.61, 0.62]), tmp_path)
    text = page.read_text("utf-8")
    assert "Of 9 contrasts" in text
    assert "](claims.png)" in text
    assert text.count("not run yet") == 6
    assert (tmp_path / "claims.png").stat().st_size > 5_000
