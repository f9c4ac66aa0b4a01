"""Trackers: metrics.csv with and without a stop in between, and errors."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import submodel
from submodel.algorithm.types import State
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import CallbackError, ConfigError
from submodel.core.options import Section
from submodel.engines.processes.group import ProcessGroup
from submodel.runs import loop
from submodel.runs.loop import Interruption
from submodel.runs.metrics import Metrics
from submodel.runs.training import Training
from tests.support.common import tiny_images
from tests.support.ranks import run_group

pytestmark = pytest.mark.slow


def config(**train: Any) -> dict[str, Any]:
    return {
        "data": {"partition": "iid"},
        "clients": {"count": 4, "per_round": 2},
        "train": {"rounds": 5, "evaluate_every": 2, "trackers": ["csv"], **train},
    }


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


def train(out: Path | None, *callbacks: submodel.Callback, **options: Any) -> submodel.Result:
    given = options.pop("config", config())
    data = tiny_images()
    return submodel.train(
        net(), data, given, out=out, callbacks=callbacks, progress=False, **options
    )


def rows(path: Path) -> list[dict[str, str]]:
    with (path / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_per_round_has_what_an_opened_run_says(tmp_path: Path) -> None:
    train(tmp_path / "run")
    metrics = submodel.open(tmp_path / "run").metrics
    table = rows(tmp_path / "run")
    assert len(table) == len(metrics) == 5
    assert set(table[0]) == {key for line in metrics for key in line}
    for row, line in zip(table, metrics, strict=True):
        for key, text in row.items():
            value = line.get(key)
            assert text == ("" if value is None else str(value))
    assert table[0]["test_loss"] == ""
    assert float(table[1]["seconds.evaluate"]) > 0


class StopsIn(submodel.Callback):
    """Stop a run like Ctrl-C."""

    def __init__(self, round_: int) -> None:
        self._round = round_

    def measure(self, before: State, after: State) -> dict[str, Any]:
        if after.round == self._round:
            raise KeyboardInterrupt
        return {}


@pytest.mark.parametrize("stopped_in", [1, 2, 4])
def test_a_resumed_run_has_the_table_of_one_that_was_never_stopped(
    stopped_in: int, tmp_path: Path
) -> None:
    with pytest.raises(Interruption):
        train(tmp_path / "stopped", StopsIn(stopped_in))
    assert len(rows(tmp_path / "stopped")) == stopped_in - 1
    with (tmp_path / "stopped/metrics.csv").open("a") as file:
        file.write("99,what a kill may leave")
    train(tmp_path / "stopped", resume=True)
    train(tmp_path / "whole")
    tables = [rows(tmp_path / name) for name in ("stopped", "whole")]
    for table in tables:
        for row in table:
            for key in [key for key in row if key.startswith("seconds.")]:
                del row[key]
    assert tables[0] == tables[1]
    assert list(tables[0][0]) == list(tables[1][0])


def test_a_run_may_get_a_tracker_when_it_goes_on(tmp_path: Path) -> None:
    train(tmp_path / "run", config=config(trackers=[], rounds=2))
    assert not (tmp_path / "run/metrics.csv").exists()
    run = submodel.open(tmp_path / "run", model=net(), data=tiny_images())
    run.resume({"train": {"rounds": 3, "trackers": ["csv"]}}, progress=False)
    assert [row["round"] for row in rows(tmp_path / "run")] == ["1", "2", "3"]


class Failing(submodel.Callback):
    """A tracker whose folder is missing."""

    def __init__(self, context: object) -> None:
        pass

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        raise ConnectionError("connection refused")


def test_a_tracker_that_fails_is_named_and_the_run_can_go_on_without_it(tmp_path: Path) -> None:
    given = config(trackers=[f"{__name__}:Failing"])
    with pytest.raises(CallbackError, match="callback Failing: after_round ") as caught:
        train(tmp_path / "run", config=given)
    assert "round 1 of 5" in str(caught.value)
    train(tmp_path / "run", config=config(), resume=True)
    assert len(rows(tmp_path / "run")) == 5


class Noting(submodel.Callback):
    """Record the process that reports a round."""

    def __init__(self, context: object) -> None:
        self._file = Path(os.environ["NOTES"])

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        with self._file.open("a") as file:
            file.write(f"{line['round']} ")


def train_in_a_group(group: ProcessGroup, folder: str) -> None:
    os.environ["NOTES"] = f"{folder}/rank-{group.rank}"
    sections = config(trackers=[f"{__name__}:Noting"], rounds=2)
    chosen = parse({"model": {"name": "mlp", "width": 8}, **sections})
    loop.run_rounds(Training(chosen, prepare(chosen, data=tiny_images())), group=group)


def test_of_a_group_of_processes_the_first_alone_has_trackers(tmp_path: Path) -> None:
    run_group(train_in_a_group, str(tmp_path), processes=2)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"rank-0": "1 2 "}


class Needing(submodel.Callback):
    """A tracker with a required key that cannot be given."""

    class Options(Section):
        project: str


@pytest.mark.parametrize(
    ("names", "key"),
    [
        (["cvs"], "train.trackers: ['cvs'] "),
        ("csv", "train.trackers: 'csv' "),
        (["json:dumps"], "train.trackers: 'json:dumps' "),
        (["collections:deque"], "train.trackers: 'collections:deque'"),
        (["no_such_module:Name"], "train.trackers: 'no_such_module:Name': "),
        ([f"{__name__}:Needing"], f"train.trackers: '{__name__}:Needing' "),
        (["csv"], "train.trackers: 'csv' "),
    ],
)
def test_a_tracker_that_cannot_be_is_refused(names: Any, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        train(None, config=config(trackers=names))
    assert str(caught.value).startswith(key)


def test_a_tracker_that_does_not_load_leaves_no_folder_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        train(tmp_path / "run", config=config(trackers=["no_such_module:Name"]))
    assert not (tmp_path / "run").exists()
    assert parse({"train": {"trackers": ["csv"]}}).train.trackers == ["csv"]
