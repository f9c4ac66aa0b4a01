"""Runs to the end: stages that change nothing behind them, rates by held-out data, the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import submodel
from submodel.config import Config, parse
from submodel.errors import ConfigError
from submodel.experiments.converged.course import SCORE, Course
from submodel.experiments.converged.flatness import FlatRule
from submodel.experiments.records import VariantRecord
from submodel.experiments.runner import Runner
from submodel.prepare.setup import prepare
from submodel.runs.folder import RunFolder
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training

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
    runner.run_jobs([job])
    assert job.is_finished
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
    record.write(tmp_path / "a.json")
    assert VariantRecord.read(tmp_path / "a.json") == record
