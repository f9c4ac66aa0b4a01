"""TensorBoard, Weights & Biases and MLflow: their records equal the run's, once each."""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import submodel
from submodel.algorithm.types import State
from submodel.core.errors import ConfigError
from submodel.core.extras import MissingExtraError
from submodel.runs.callbacks.trackers import scalars
from submodel.runs.loop import Interruption
from tests.support.common import tiny_images

Curves = dict[str, list[tuple[int, float]]]
NAMES = ["tensorboard", "wandb", "mlflow"]


def config(*trackers: str, **train: Any) -> dict[str, Any]:
    return {
        "data": {"partition": "iid"},
        "clients": {"count": 4, "per_round": 2},
        "train": {"rounds": 5, "evaluate_every": 2, "checkpoint_every": 3, **train}
        | {"trackers": list(trackers)},
    }


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


def train(out: Path, given: dict[str, Any], *callbacks: submodel.Callback, **more: Any) -> None:
    options = {"out": out, "callbacks": callbacks, "progress": False, **more}
    submodel.train(net(), tiny_images(), given, **options)


def read_tensorboard(run: Path) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), purge_orphaned_data=False)
    events.Reload()
    tags = events.Tags()["scalars"]
    return {tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in tags}


def wandb_records(file: Path) -> Iterator[Any]:
    """Read the records of a transaction log: LevelDB's format after a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2 as records

    data, place, parts = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 2**15 - place % 2**15 < 7:  # a record's head is never split between blocks
            place += 2**15 - place % 2**15
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last of its parts
            record = records.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def read_wandb(run: Path) -> Curves:
    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    curves: Curves = {}
    for record in wandb_records(file):
        if record.WhichOneof("record_type") == "history":
            for item in record.history.item:
                key = item.key or "/".join(item.nested_key)
                if not key.startswith("_"):
                    point = (record.history.step.num, float(json.loads(item.value_json)))
                    curves.setdefault(key, []).append(point)
    return curves


def read_mlflow(run: Path) -> Curves:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{run / 'mlflow/mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if e.name == "submodel"]
    (tracked,) = client.search_runs([experiment.experiment_id])
    return {
        name: [(m.step, m.value) for m in client.get_metric_history(tracked.info.run_id, name)]
        for name in tracked.data.metrics
    }


READERS = {"tensorboard": read_tensorboard, "wandb": read_wandb, "mlflow": read_mlflow}


def curves_of(run: Path) -> Curves:
    """Return the curves of the run's lines."""
    curves: Curves = {}
    for line in submodel.open(run).history:
        for name, value in scalars(line).items():
            curves.setdefault(name, []).append((line["round"], value))
    return curves


def as_float32(curves: Curves) -> Curves:
    return {
        name: [(step, float(torch.tensor(value))) for step, value in points]
        for name, points in curves.items()
    }


def without_seconds(curves: Curves) -> Curves:
    """Remove clock-dependent values."""
    rest = {name: points for name, points in curves.items() if not name.startswith("seconds/")}
    return as_float32(rest)


@dataclass(frozen=True)
class Tracked:
    """A run with all trackers, and the connections of its process."""

    run: Path
    addresses: list[tuple[socket.AddressFamily, Any]]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Tracked:
    result = Tracked(tmp_path_factory.mktemp("tracked") / "run", [])
    connect = socket.socket.connect

    def watched(self: socket.socket, address: Any) -> None:
        result.addresses.append((socket.AddressFamily(self.family), address))
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", watched)
        train(result.run, config(*NAMES))
    return result


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_every_round_is_there(name: str, tracked: Tracked) -> None:
    curves, lines = READERS[name](tracked.run), curves_of(tracked.run)
    assert [step for step, _ in curves["train_loss"]] == [1, 2, 3, 4, 5]
    assert [step for step, _ in curves["capacity_accuracy/0.25"]] == [2, 4, 5]
    assert set(curves) == set(lines) >= {"seconds/train", "bytes_down", "coverage/units"}
    assert as_float32(curves) == as_float32(lines)  # like TensorBoard's values


def test_nobody_on_another_machine_is_asked(tracked: Tracked) -> None:
    families = {family for family, _ in tracked.addresses}
    assert families <= {socket.AF_UNIX}


class StopsIn(submodel.Callback):
    """Stop a run by Ctrl-C, which saves it, or like a kill, which keeps the last checkpoint."""

    def __init__(self, round_: int, stop: type[BaseException]) -> None:
        self._round, self._stop = round_, stop

    def after_round(self, before: State, after: State, line: dict[str, Any]) -> None:
        if after.round == self._round:
            raise self._stop


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("stop", "error"), [(KeyboardInterrupt, Interruption), (SystemExit, SystemExit)]
)
def test_a_run_that_goes_on_has_every_step_once(
    name: str, stop: type[BaseException], error: type[BaseException], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with pytest.raises(error):
        train(run, config(name), StopsIn(4, stop))  # a kill goes back to the checkpoint of round 3
    assert [step for step, _ in READERS[name](run)["train_loss"]] == [1, 2, 3, 4]
    train(run, config(name), resume=True)
    assert without_seconds(READERS[name](run)) == without_seconds(curves_of(run))
    assert len(READERS[name](run)["seconds/train"]) == 5


@pytest.mark.slow
def test_a_run_may_get_trackers_when_it_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, config(rounds=2))
    opened = submodel.open(run, model=net(), data=tiny_images())
    opened.resume({"train": {"rounds": 3, "trackers": NAMES}}, progress=False)
    for name in NAMES:
        assert [step for step, _ in READERS[name](run)["train_loss"]] == [1, 2, 3]


def test_trackers_tell_the_configuration_and_how_a_run_ended(tracked: Tracked) -> None:
    from mlflow.tracking import MlflowClient

    run = tracked.run
    client = MlflowClient(tracking_uri=f"sqlite:///{run / 'mlflow/mlflow.db'}")
    run_of_mlflow = client.get_run((run / "mlflow/run-id.txt").read_text())
    assert run_of_mlflow.data.params["clients.per_round"] == "2.0"
    assert run_of_mlflow.info.status == "FINISHED"
    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    (record,) = [r.run for r in wandb_records(file) if r.WhichOneof("record_type") == "run"]
    sections = {update.key: json.loads(update.value_json) for update in record.config.update}
    assert sections["clients"]["count"] == 4
    assert (record.project, record.run_id) == ("submodel", (run / "wandb/run-id.txt").read_text())


@pytest.mark.parametrize(
    ("name", "package"), [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")]
)
def test_without_its_package_a_tracker_says_how_to_install_it(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = [
        module
        for module in sys.modules
        if module.partition(".")[0] == package
        or module.startswith(("torch.utils.tensorboard", "submodel.runs.callbacks.trackers."))
    ]
    for module in loaded:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError) as caught:
        train(tmp_path / "run", config(name))
    assert str(caught.value).startswith(f"train.trackers: {name!r} ")
    assert str(caught.value).endswith(f": pip install 'submodel[{name}]'")
    assert not (tmp_path / "run").exists()


def test_an_unknown_mode_of_wandb_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "dryer")
    with pytest.raises(ConfigError, match=r"WANDB_MODE=dryer .*offline, online"):
        train(tmp_path / "run", config("wandb"))
