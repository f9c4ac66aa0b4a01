"""Records of earlier runs: their seeds are not run again, new ones are added as they end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from submodel.cli.common import command_line
from submodel.config import parse
from submodel.config.meaning import differences
from submodel.errors import SubmodelError
from submodel.experiments.course import Course
from submodel.experiments.records import VariantRecord, portable
from submodel.experiments.runner import Job, Runner
from submodel.runs.loop import Interruption
from submodel_lab.converged.agenda import run_agenda, words_of_rest
from submodel_lab.converged.candidates import SETTINGS, Contender, Setting
from submodel_lab.converged.converge import (
    Outlook,
    RateTable,
    choose_rates,
    converge,
    missing_seeds,
    read_earlier,
    read_earlier_rates,
    seconds_left,
)
from submodel_lab.converged.questions import QUESTIONS, Contrast, OpenQuestion
from tests.lab.test_converged import TINY
from tests.support.jobs import run_in_this_process

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
    """Runs in this process until so many have ended, rates apart."""
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


def contender_of(setting: Setting) -> Contender:
    (rolling, _) = QUESTION.candidates
    return rolling.contenders()[0]


def test_a_plan_that_is_stopped_keeps_what_is_done_and_goes_on_elsewhere(
    tmp_path: Path, tiny: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = tmp_path / "keep"
    assert words_of_rest([QUESTION], keep, None).endswith(": 4 runs, at least 0.0 core-hours.")
    monkeypatch.setattr(Runner, "run_jobs", stopped_after(3))
    with pytest.raises(Interruption):
        run_agenda(Runner(tmp_path / "a", 1, QUIET), [QUESTION], keep)
    first = {p.name: p.read_text() for p in keep.iterdir()}
    rolling, static = (VariantRecord.read(keep / f"tiny-{w}.json") for w in ("rolling", "static"))
    assert [[run.seed for run in r.runs] for r in (rolling, static)] == [[0, 1], [0]]
    assert seconds_left([contender_of(tiny)], keep) == 0
    assert " 1 runs" in words_of_rest([QUESTION], keep, None)

    monkeypatch.setattr(Runner, "run_jobs", run_in_this_process)
    run_agenda(Runner(tmp_path / "b", 1, QUIET), [QUESTION], keep)  # on another machine
    assert {p.name for p in (tmp_path / "b/runs").rglob("seed-*.toml")} == {"seed-1.toml"}
    assert not (tmp_path / "b/runs/rates").exists()
    assert VariantRecord.read(keep / "tiny-rolling.json") == rolling
    whole = VariantRecord.read(keep / "tiny-static.json")
    assert whole.runs[0] == static.runs[0]
    assert [run.seed for run in whole.runs] == [0, 1]
    assert (keep / "tiny-static.rates.json").read_text() == first["tiny-static.rates.json"]
    assert words_of_rest([QUESTION], keep, None).split(": ")[1].startswith("0 runs")
    more = words_of_rest([QUESTION], keep, 5)
    assert ": 6 runs" in more


def test_a_grid_goes_on_where_its_best_rate_is_at_the_edge_and_a_run_keeps_its_rate(
    tmp_path: Path, tiny: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {0.005: 0.3, 0.01: 0.5, 0.1: 0.6, 0.2: 0.7, 0.4: 0.8, 0.8: 0.9}
    tried: list[float] = []

    def rates_of(slug: str, jobs: Mapping[float, Job]) -> RateTable:
        tried.extend(jobs)
        return RateTable(slug, 1, [(rate, scores[rate]) for rate in jobs], 1.0)

    monkeypatch.setattr("submodel_lab.converged.converge.rate_table", rates_of)
    keep, contender = tmp_path / "keep", contender_of(tiny)
    outlook = Outlook(0.0, QUIET)
    assert choose_rates(Runner(tmp_path / "a", 1, QUIET), [contender], keep, outlook) == {
        "tiny-rolling": 0.4
    }
    assert tried == [0.01, 0.1, 0.2, 0.4]
    table = read_earlier_rates(contender, keep)
    assert table is not None
    assert (table.best, table.is_at_edge, table.core_seconds) == (0.4, True, 3.0)

    scores[0.1] = 0.0  # the best is now at the lower edge, of another grid
    (keep / "tiny-rolling.rates.json").unlink()
    tried.clear()
    choose_rates(Runner(tmp_path / "b", 1, QUIET), [contender], keep, outlook)
    assert tried == [0.01, 0.1, 0.005]  # and found to be within

    scores |= {0.1: 0.6, 0.2: 0.0}
    (keep / "tiny-rolling.rates.json").unlink()
    converge(Runner(tmp_path / "c", 1, QUIET), [contender], keep)  # runs with 0.1, within
    RateTable("tiny-rolling", 1, [(0.01, 0.5), (0.1, 0.6)]).write(keep)
    tried.clear()
    rates = choose_rates(Runner(tmp_path / "c", 1, QUIET), [contender], keep, outlook)
    assert (rates, tried) == ({"tiny-rolling": 0.1}, [])


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
    assert "(model.width: 4 then, 8 now)" in refusal(replace(tiny, sections=wider))
    longer = replace(tiny, course=Course(5, 5, step=1, final=1))
    assert "(train.rounds: 2, where no run of this course ends)" in refusal(longer)
    decayless = replace(tiny, course=Course(2, 2, step=1, final=0))
    assert "no run of this course ends" in refusal(decayless)
    other_grid = refusal(replace(tiny, rates=(0.1, 0.3)))
    assert " for 1 rounds then, 0.1, 0.3 for 1 rounds now)" in other_grid
    table = keep / "tiny-rolling.rates.json"
    plain = json.loads(table.read_text())
    best = max(plain["scores"], key=lambda pair: (pair[1], -pair[0]))[0]
    plain["scores"] = [[rate, None if rate == best else 0.5] for rate, _ in plain["scores"]]
    table.write_text(json.dumps(plain))
    assert "(local.lr: " in refusal(tiny)
    elsewhere = {**tiny.sections, "engine": {"name": "local", "threads": 2}}
    table.unlink()  # whatever grid it came from
    monkeypatch.setitem(SETTINGS, "tiny", replace(tiny, sections=elsewhere))
    assert missing_seeds(contender_of(tiny), read_earlier(contender_of(tiny), keep)) == [1]


def test_the_time_left_follows_from_the_pace_so_far(tmp_path: Path, tiny: Setting) -> None:
    runner = Runner(tmp_path, 1, QUIET)
    contender = replace(contender_of(tiny), seconds=1800.0)
    job = runner.job("x", contender.config(0), contender.course, seconds=1800.0)
    now = [100.0]
    outlook = Outlook(10 * 3600, QUIET, lambda: now[0])
    outlook.leave_out(job)  # two rounds of half an hour each
    assert outlook.tell() == "0.00 of at least 9.00 core-hours"
    now[0] += 2 * 3600
    outlook.book(job)
    assert outlook.tell() == (
        "1.00 of at least 9.00 core-hours of the plan; at this pace 16.0 hours left"
    )


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
    for candidate in {c.setting: c for q in QUESTIONS.values() for c in q.candidates}.values():
        for contender in candidate.contenders():
            course = contender.course
            begin = course.begin(contender.config_at(0, 0.05))
            rounds = [course.least, min(course.most, course.least + course.step), course.most]
            for count in rounds:
                decay = {"schedule": "step", "milestones": [count], "decay": course.decay}
                end = begin.model_copy(
                    update={
                        "local": begin.local.with_values(**decay),
                        "train": begin.train.with_values(rounds=count + course.final),
                    }
                )
                record = parse(portable(end))
                assert course.ends_with(record)
                assert differences(course.begin(record), begin) == {}
            longer = begin.train.with_values(rounds=course.longest + 1)
            assert not course.ends_with(end.model_copy(update={"train": longer}))
