"""The forecast of a dry run, and the costs of the actual run."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from submodel.algorithm.execution import Bundle
from submodel.algorithm.rounds import initial_state
from submodel.algorithm.types import Assignment
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.engines.estimate import Estimate
from submodel.report.tables import evaluation_advice, forecast_tables
from submodel.runs.forecast import CoreShare, Forecast, Phase, Quantities, forecast
from submodel.runs.forecast_trials import RoundTimes, SampleGroup, evaluation_keys, plans_of
from submodel.runs.loop import RunFolder
from submodel.runs.training import Training
from tests.support.runs import SMALL, run

QUANTITIES = Quantities([], 0, 0, 0, 0, 0, 0, "")


@pytest.fixture(scope="module")
def small_forecast(tmp_path_factory: pytest.TempPathFactory) -> Forecast:
    config = parse(SMALL)
    folder = tmp_path_factory.mktemp("forecast")
    training = Training(config, prepare(config), takes_module=True)
    result = forecast(training, where=folder / "runs" / "small", patience=0.02)
    assert list(folder.iterdir()) == []  # no run is made, and no files remain
    return result


def test_traffic_and_disk_are_those_of_the_run(small_forecast: Forecast, tmp_path: Path) -> None:
    run(tmp_path / "run", parse(SMALL))
    history = RunFolder(tmp_path / "run").metrics()
    sizes = small_forecast.quantities
    assert sizes.bytes_down == pytest.approx(sum(line["bytes_down"] for line in history), abs=1e-6)
    assert sizes.bytes_up == pytest.approx(sum(line["bytes_up"] for line in history), abs=1e-6)
    assert sum(row.clients_per_round for row in sizes.by_capacity) == history[0]["clients"]
    folder_bytes = sum(p.stat().st_size for p in (tmp_path / "run").rglob("*") if p.is_file())
    assert sizes.disk == pytest.approx(folder_bytes, abs=50e3)  # curves are pictures of a trial


def test_all_phases_of_a_run_are_told_with_how_they_are_known(small_forecast: Forecast) -> None:
    names = [phase.name for phase in small_forecast.phases]
    assert names[:2] == ["start", "training"]
    assert {"gathering", "merging", "evaluation", "checkpoints", "end"} < set(names)
    assert all(phase.seconds > 0 and phase.how for phase in small_forecast.phases)
    assert small_forecast.seconds == sum(phase.seconds for phase in small_forecast.phases)
    assert small_forecast.quantities.memory > 100e6  # PyTorch alone takes more


def test_training_takes_its_estimate_times_what_trials_took_longer() -> None:
    config = parse(SMALL)
    setup = prepare(config)
    plans = plans_of(Training(config, setup))
    assert len(plans) == 6  # all rounds, as there are no more
    factors = dict.fromkeys(setup.population.capacities, 3.0)
    times = RoundTimes(setup, factors, {}, "", [], initial_state(setup), is_whole=True)
    costs = [sum(Estimate(setup).bundle(b.assignments).cost for b in plan) for plan in plans]
    alone, together = times.training_seconds(plans, 1), times.training_seconds(plans, 2)
    assert alone == pytest.approx(3 * sum(costs) / 6)
    assert alone / 2 <= together < alone


def test_batches_that_are_left_out_are_counted_as_the_others() -> None:
    group = SampleGroup(lambda bundles: bundles[:1], longest=0.0)

    def work(number: int) -> Tensor:
        time.sleep(0.01)
        return torch.tensor([number])

    assert [int(row) for row in group.spread(5, work)] == [0, 0, 0, 0, 0]
    assert group.batches_left_out == 4
    assert 0.04 <= group.seconds_left_out < 0.4
    assert len(group.share([Bundle([Assignment(0, n, 1.0)]) for n in range(3)])) == 1


def test_a_dry_run_says_what_share_of_a_core_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 10.5])  # of the processor, while the clock advances by 2
    monkeypatch.setattr(time, "thread_time", lambda: next(times))
    clock = iter([100.0, 102.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    share = CoreShare()
    assert share.since_start() == 0.25
    monkeypatch.undo()
    alone = Forecast(1, 1, [Phase("training", 8.0, "")], QUANTITIES, 1.0, 0.25)
    assert (alone.seconds, alone.seconds_alone) == (8.0, 2.0)
    phases, *_ = forecast_tables(alone, [])
    assert "25% of a core" in "".join(map(str, phases.columns[2].cells))
    quiet = replace(alone, core_share=0.97)
    phases, *_ = forecast_tables(quiet, [])
    assert "of a core" not in "".join(map(str, phases.columns[2].cells))


def test_a_dry_run_names_the_keys_that_shorten_evaluation() -> None:
    config = parse(SMALL)
    keys = evaluation_keys(Training(config, prepare(config)))
    assert keys[0] == f"train.evaluate_every (now {config.train.evaluate_every})"
    phases = [Phase("training", 3.0, ""), Phase("evaluation", 2.0, "")]
    much = Forecast(1, 1, phases, QUANTITIES, 1.0, 1.0, keys)
    advice = evaluation_advice(much)
    assert advice.startswith("evaluation is 40% of the time")
    for name in (key.partition(" ")[0] for key in keys):
        section, key = name.split(".")
        assert key in type(getattr(config, section)).model_fields  # keys that there are
        assert name in advice
    assert evaluation_advice(replace(much, evaluation_keys=())) == ""
