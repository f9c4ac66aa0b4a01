"""Runs to the end: stages that change nothing behind them, rates by held-out data, the plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import submodel
from submodel.config import Config, parse, read
from submodel.errors import ConfigError
from submodel.experiments.course import SCORE, Course, FlatRule
from submodel.experiments.records import SeedRun, VariantRecord, put_together
from submodel.experiments.runner import Job, Runner, describe_machine
from submodel.prepare.setup import prepare
from submodel.runs.folder import RunFolder
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training
from submodel_lab.converged import candidates, report
from submodel_lab.converged.agenda import (
    budget_rows,
    contenders_of,
    power_rows,
    read_results,
    run_agenda,
)
from submodel_lab.converged.candidates import SETTINGS, Candidate, Setting
from submodel_lab.converged.converge import TUNING_SEED, RateTable, read_rates
from submodel_lab.converged.questions import QUESTIONS, Contrast, OpenQuestion
from submodel_lab.converged.report import differences_at_equal_loss
from submodel_lab.paper.experiments import EXPERIMENTS, WAYS, Scale
from tests.support.jobs import run_in_this_process

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
    assert SHORT.was_flat(last, lines([*flat, 1.0, 1.0]))  # what the decay adds does not count
    assert not SHORT.was_flat(last, lines([*rising, 0.6, 0.6]))
    with pytest.raises(ConfigError, match=r"data\.held_out"):
        SHORT.begin(parse({**TINY, "data": {"examples": 200}}))


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
    with pytest.raises(ConfigError, match="it changes the learning rates of rounds so far"):
        run.resume({"local": {"milestones": [3]}}, progress=False)


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
    record = VariantRecord.of("a", [job.folder])
    (last,) = record.final("worst quarter").items()
    assert last[0] == 0
    sizes = record.final("mean over sizes")[0]
    first, half = (record.runs[0].lines[-1][f"capacity_accuracy.{c}"] for c in ("1", "0.5"))
    assert sizes == pytest.approx((first + half) / 2)
    assert record.final("accuracy")[0] == first
    assert len(record.runs[0].clients) == 10
    effort = job.effort.read()
    assert effort.core_seconds is None or 0.01 < effort.core_seconds < 600  # None: not on Linux
    assert effort.core_seconds is None or effort.machine == describe_machine()
    record.write(tmp_path / "a.json")
    assert VariantRecord.read(tmp_path / "a.json") == record


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
        for candidate in question.candidates:
            for contender in candidate.contenders():
                slugs.add(contender.slug)
                config = contender.course.begin(contender.config(TUNING_SEED))
                assert (config.name, config.seed) == (contender.slug, TUNING_SEED)
                assert config.data.held_out is not None
                assert TUNING_SEED not in contender.seeds
                cifar = config.data.name == "cifar10" and "equal" not in contender.slug
                is_early = contender.slug.startswith("factors")  # about what comes before the end
                assert config.train.rounds >= (1_000 if cifar and not is_early else 1)
                assert len(contender.seeds) >= (3 if config.data.name == "cifar10" else 10)
    assert len(slugs) == len({c for q in QUESTIONS.values() for x in q.candidates
                              for c in (x.members.values() or [x.slug])})  # fmt: skip
    ways = {c.way for q in QUESTIONS.values() for c in q.candidates}
    ways |= {v.way for e in EXPERIMENTS.values() for v in e.variants(Scale.SMALL)}
    assert ways == set(WAYS)


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
    contenders = contenders_of(list(dict.fromkeys(c for q in questions for c in q.candidates)))
    assert int(total[4]) == sum(len(c.seeds) for c in contenders)
    hours = sum(c.tuning_seconds + c.least_seconds for c in contenders) / 3600
    assert float(total[-2]) == pytest.approx(hours, abs=0.06)
    table = {row[0]: row for row in power_rows(questions, {"fashion": 0.01})}
    assert table["Fashion-MNIST, L = 5"][2:5] == ["1.00 points", "10", "80 %"]
    assert "no records yet" in table["Fashion-MNIST, 18 images a client"]


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
    exclusive = results[Candidate("tiny", "exclusive-fixed")]
    members = [
        VariantRecord.read(folder / f"tiny-exclusive-fixed-at-{c}.json") for c in ("1", "0.5")
    ]
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
        Candidate("tiny", "exclusive-equal-bytes"),
        Candidate("tiny", "full-equal-bytes"),
    )
    # mean square (1 + 1/4) / 2; all widths together 1 + 1/4, the whole model 1
    assert candidates.equal_course(exclusive, longer).longest == 55
    assert candidates.equal_course(full, longer).longest == 68
    assert candidates.equal_course(full, longer).final == 6


# what is made of lines


def seed_run(lines: list[dict[str, float]], seed: int = 0, **values: Any) -> SeedRun:
    return SeedRun(seed, lines, 1.0, "0" * 64, **values)


def test_runs_of_several_lengths_are_put_together_by_their_latest_evaluation() -> None:
    def line(round_: int, accuracy: float) -> dict[str, float]:
        return {"round": round_, "test_accuracy": accuracy, "test_loss": 1.0,
                "bytes": 10 * round_, "flops": round_}  # fmt: skip

    wide = seed_run([line(2, 0.5), line(4, 0.6)], clients=[(1.0, 0.9), (0.5, 0.1)], is_flat=True)
    narrow = seed_run([line(2, 0.3), line(6, 0.4)], clients=[(1.0, 0.2), (0.5, 0.7)], is_flat=False)
    records = {1.0: VariantRecord("a", {}, [wide]), 0.5: VariantRecord("b", {}, [narrow])}
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
    def curve(pairs: list[tuple[float, float]]) -> VariantRecord:
        lines = [
            {"round": r, "train_eval_loss": a, "test_loss": b} for r, (a, b) in enumerate(pairs, 1)
        ]
        return VariantRecord("x", {}, [seed_run(lines)])

    slow = curve([(1.0, 1.0), (0.6, 0.7)])
    fast = curve([(0.8, 0.9), (0.4, 0.7), (0.1, 0.9)])
    # slow ends at a loss of 0.6 with a gap of 0.1; fast is there between 0.8 (0.1) and 0.4 (0.3)
    assert differences_at_equal_loss(slow, fast, "loss gap") == pytest.approx([0.1])
    assert slow.ahead_of(fast, "loss gap") == pytest.approx([0.7])


def test_measures_of_a_question_are_judged_apart_and_may_be_read_at_an_earlier_round() -> None:
    def record(way: str, early: float, late: float) -> VariantRecord:
        pairs = [(100, early), (120, 0.9), (440, late)]
        runs = [
            seed_run([{"round": r, "test_accuracy": a + seed / 100} for r, a in pairs], seed)
            for seed in range(3)
        ]
        return VariantRecord(way, {}, runs)

    one, other = Candidate("factors", "rolling"), Candidate("factors", "static")
    results = {one: record("rolling", 0.3, 0.6), other: record("static", 0.4, 0.5)}
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
