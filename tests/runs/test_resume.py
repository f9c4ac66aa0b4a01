"""Resuming a run: without settings, with more rounds, but not with another run's files."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import submodel as package
from submodel.config import parse, read
from submodel.config.setup import prepare
from submodel.core.errors import CheckpointError
from submodel.data import Dataset, dataset, digits
from submodel.runs.data_record import fingerprints_of, hash_of
from submodel.runs.loop import Metrics, RunFolder
from submodel.runs.training import Training
from tests.support.commands import Command

pytestmark = pytest.mark.slow

SMALL = ["--set", "model.name=mlp", "--set", "model.width=16"]
StopAfter = Callable[[int], None]


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> StopAfter:
    """Press Ctrl-C when the line of a round is written."""
    add = RunFolder.add_metrics

    def stop(last: int) -> None:
        def add_and_stop(folder: RunFolder, line: Metrics) -> None:
            add(folder, line)
            if line["round"] == last:
                raise KeyboardInterrupt

        monkeypatch.setattr(RunFolder, "add_metrics", add_and_stop)

    return stop


def hash_in(path: Path) -> str:
    return str((RunFolder(path).summary() or {})["model_sha256"])


def rounds_in(path: Path) -> list[int]:
    return [line["round"] for line in RunFolder(path).metrics()]


def files(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_with_nothing_set_a_run_is_stopped_resumed_and_extended(
    tmp_path: Path, submodel: Command, stop_after: StopAfter
) -> None:
    run = tmp_path / "runs/digits"
    stop_after(3)
    stopped = submodel("train", cwd=tmp_path)
    assert stopped.returncode == 130
    assert "stopped after round 3 of 200; continue with: submodel resume runs/digits" in (
        stopped.stdout
    )
    stop_after(6)
    again = submodel("resume", "runs/digits", cwd=tmp_path)
    assert "round 6 of 200" in again.stdout, again.stderr
    stop_after(0)
    ended = submodel("resume", "runs/digits", "--set", "train.rounds=7", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "after 7 rounds" in ended.stdout
    whole = submodel("train", "--set", "train.rounds=7", "--out", tmp_path / "whole")
    assert whole.returncode == 0
    assert hash_in(run) == hash_in(tmp_path / "whole")
    assert rounds_in(run) == list(range(1, 8))
    assert "finished; model sha256" in submodel("show", run).stdout
    assert submodel("export", run, "--out", tmp_path / "model").returncode == 0


def test_a_finished_run_is_extended_to_the_bytes_of_a_longer_one(
    tmp_path: Path, submodel: Command
) -> None:
    short, long = tmp_path / "short", tmp_path / "long"
    each = [*SMALL, "--set", "train.evaluate_every=2", "--set", "server.name=momentum"]
    assert submodel("train", *each, "--set", "train.rounds=4", "--out", short).returncode == 0
    assert submodel("train", *each, "--set", "train.rounds=9", "--out", long).returncode == 0
    assert "is finished" in submodel("resume", short, "--set", "train.rounds=4").stdout
    extended = submodel("resume", short, "--set", "train.rounds=9")
    assert extended.returncode == 0, extended.stderr
    assert files(short)["model.safetensors"] == files(long)["model.safetensors"]
    assert files(short)["memory.safetensors"] == files(long)["memory.safetensors"]
    assert RunFolder(short).config() == RunFolder(long).config()
    summaries = [RunFolder(path).summary() or {} for path in (short, long)]
    for summary in summaries:
        del summary["seconds"]
    assert summaries[0] == summaries[1]
    for one, two in zip(*(RunFolder(path).metrics() for path in (short, long)), strict=True):
        assert {**one, "seconds": 0} == {**two, "seconds": 0}


def test_a_run_may_end_with_the_round_that_it_has_reached(
    tmp_path: Path, submodel: Command, stop_after: StopAfter
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    stop_after(3)
    submodel("train", *SMALL, "--out", run)
    stop_after(0)
    ended = submodel("resume", run, "--set", "train.rounds=3", "--set", "train.output_step=50")
    assert ended.returncode == 0, ended.stderr
    submodel("train", *SMALL, "--set", "train.rounds=3", "--set", "train.output_step=50",
             "--out", whole)  # fmt: skip
    assert hash_in(run) == hash_in(whole)
    assert RunFolder(run).metrics()[-1]["test_loss"] == RunFolder(whole).metrics()[-1]["test_loss"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "run"
    settings = {"local": {"schedule": "cosine"}, "train": {"rounds": 3}}
    package.train(net(), digits(), settings, out=path)
    return path


REFUSED = {
    "seed": ("seed=1", "seed: 0 .*1"),
    "clients": ("clients.per_round=9", "clients.per_round: 10.0 .*9.0"),
    "too short": ("train.rounds=2", "train.rounds: 3 .*2"),
    "cosine": ("train.rounds=5", "train.rounds: 3 .*5"),
    "scores": ("train.statistics=test_batch", "train.statistics: "),
    "devices": ("engine.name=flower", "engine.name: "),
    "transport": ("devices.transport=half", "devices.transport: "),
    "no such key": ("train.ronds=5", "train.ronds: "),
    "nonsense": ("train.rounds=many", "train.rounds: 'many' "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_another_run_is_refused_with_the_reason(
    case: str, finished: Path, submodel: Command
) -> None:
    before = files(finished)
    setting, message = REFUSED[case]
    result = submodel("resume", finished, "--set", setting)
    assert result.returncode == 2
    assert re.search(message, result.stderr)
    assert files(finished) == before


class Own(nn.Module):
    """A net with a setting that no layer of torch shows."""

    order: torch.Tensor

    def __init__(self, drop: float = 0.5, slope: float = 0.1, width: int = 16) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, width), nn.Linear(width, 10)
        self.drop, self.slope = nn.Dropout(drop), slope
        self.register_buffer("order", torch.arange(64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.leaky_relu(self.first(x.flatten(1)[:, self.order]), self.slope)
        result: torch.Tensor = self.last(self.drop(hidden))
        return result


def net(**options: Any) -> nn.Module:
    return Own(**options)


def other_data(change: str) -> Dataset:
    data = digits()
    x, y = data.train.x.clone(), data.train.y.clone()
    if change == "fewer":
        x, y = x[:500], y[:500]
    elif change == "one value":
        x[700, 0, 3, 3] += 1
    elif change == "one label":
        y[5] = (y[5] + 1) % 10
    test = (data.test.x[:-1], data.test.y[:-1]) if change == "test" else (data.test.x, data.test.y)
    return dataset((x, y), test)


def reordered() -> nn.Module:
    module = net()
    module.order = torch.arange(63, -1, -1)
    return module


OTHERS: dict[str, tuple[Callable[[], Any], str]] = {
    "fewer": (
        lambda: {"data": other_data("fewer")},
        "train inputs: float32 1442 x .*float32 500 x",
    ),
    "one value": (lambda: {"data": other_data("one value")}, "train inputs: "),
    "one label": (lambda: {"data": other_data("one label")}, "train targets: int64 1442 "),
    "test": (lambda: {"data": other_data("test")}, "test inputs: float32 355 x "),
    "drop": (lambda: {"model": net(drop=0.1)}, r"module drop: Dropout\(p=0.5"),
    "slope": (lambda: {"model": net(slope=0.2)}, "module: .*slope=0.1.*slope=0.2"),
    "buffer": (lambda: {"model": reordered()}, "buffer order: int64 64 "),
    "double": (lambda: {"model": net().double(), "data": in_double()}, "type"),
    "wider": (lambda: {"model": net(width=32)}, "tensors"),
    "loss": (lambda: {"loss": functional.multi_margin_loss}, "loss: cross_entropy .*multi_"),
    "seed": (lambda: {"config": {"seed": 4}}, "seed: 0 .*4"),
}  # fmt: skip


def in_double() -> Dataset:
    data = digits()
    return dataset((data.train.x.double(), data.train.y), (data.test.x.double(), data.test.y))


def given(**others: Any) -> dict[str, Any]:
    settings = {"local": {"schedule": "cosine", "absent_labels": "keep"},
                "train": {"rounds": 3}}  # fmt: skip
    return {
        "model": net(),
        "data": digits(),
        **others,
        "config": settings | others.get("config", {}),
    }


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stopped") / "run"

    def stop(line: Metrics) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(package.SubmodelError, match=r"\bround 2\b"):
        package.train(**given(), out=path, on_round=stop)
    return path


@pytest.mark.parametrize("case", OTHERS)
def test_other_data_or_another_module_is_refused_with_what_differs(
    case: str, stopped: Path
) -> None:
    before = files(stopped)
    make, message = OTHERS[case]
    with pytest.raises(CheckpointError) as caught:
        package.train(**given(**make()), out=stopped, resume=True)
    assert re.search(message, str(caught.value))
    assert files(stopped) == before


def test_fresh_weights_are_no_other_module(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    torch.manual_seed(99)
    result = package.train(**given(), out=tmp_path / "run", resume=True)
    assert [line["round"] for line in result.history] == [1, 2, 3]
    assert hash_in(tmp_path / "run")


def test_python_extends_a_run_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
    hashes = []
    for name, lengths in {"at once": (4,), "extended": (2, 4)}.items():
        for number, rounds in enumerate(lengths):
            config = {"train": {"rounds": rounds, "evaluate_every": 2}}
            package.train(module, digits(), config, out=tmp_path / name, resume=number > 0)
        hashes.append(hash_in(tmp_path / name))
        assert RunFolder(tmp_path / name).config().train.rounds == 4
    assert hashes[0] == hashes[1]


def as_earlier(run: Path, config_text: str) -> None:
    """Make the folder of earlier versions, with only the hash of config.toml."""
    (run / "config.toml").write_text(config_text)
    for path in (run / "checkpoints").iterdir():
        state = json.loads((path / "state.json").read_text())
        for key in ("config", "subject", "state_sha256"):
            del state[key]
        state["config_sha256"] = hashlib.sha256(config_text.encode()).hexdigest()
        (path / "state.json").write_text(json.dumps(state))


def test_a_run_of_an_earlier_version_goes_on(
    tmp_path: Path, submodel: Command, stop_after: StopAfter
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    each = [*SMALL, "--set", "train.rounds=8", "--set", "train.checkpoint_every=1"]
    submodel("train", *each, "--out", whole)
    stop_after(5)
    submodel("train", *each, "--out", run)
    text = (run / "config.toml").read_text().replace("per_round = 10.0", "per_round = 10")
    as_earlier(run, text.replace("[devices]\nleast = 1\n", "[devices]\n"))  # a key that is new
    stop_after(6)
    extended = submodel("resume", run, "--set", "train.rounds=9")
    assert "round 6 of 9" in extended.stdout, extended.stderr
    stop_after(0)
    shutil.rmtree(run / "checkpoints/round-000006")  # the one before it must still be usable
    assert submodel("resume", run, "--set", "train.rounds=8").returncode == 0
    assert hash_in(run) == hash_in(whole)
    assert read(run / "config.toml").train.rounds == 8


def test_a_hash_is_of_values_wherever_they_lie() -> None:
    x = torch.arange(2 * 3 * 5, dtype=torch.float32).view(2, 3, 5)
    assert hash_of(x.transpose(0, 2)) == hash_of(x.transpose(0, 2).contiguous()) != hash_of(x)
    wide = torch.arange(2**25 + 6, dtype=torch.int16).view(2, -1).t()  # hashed in pieces
    assert hash_of(wide) == hash_of(wide.contiguous())
    for kind in (torch.bfloat16, torch.bool, torch.complex64, torch.uint8):
        assert hash_of(x.to(kind)) == hash_of(x.to(kind).clone()) != hash_of(0 * x.to(kind))
    assert hash_of(torch.tensor(1.0)) != hash_of(torch.tensor(2.0))


def test_over_devices_the_training_part_is_theirs() -> None:
    config = parse({"model": {"name": "mlp"}, "engine": {"name": "flower"}})
    names = fingerprints_of(Training(config, prepare(config))).keys()
    assert "test inputs" in names
    assert "train inputs" not in names


def test_a_run_on_a_table_with_natural_clients_goes_on(tmp_path: Path, submodel: Command) -> None:
    """The run's file has every default, with the same meaning: clients named by the data."""
    rows = [f"{'pqrs'[i % 4]},{i % 7},{0.5 * i}" for i in range(60)]
    (tmp_path / "table.csv").write_text("\n".join(["who,a,target", *rows]))
    settings = {
        "data.name": f"csv:{tmp_path / 'table.csv'}",
        "data.client": "who",
        "model.name": "mlp",
        "model.width": 8,
        "clients.capacities": "[1, 0.5]",
    }
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    short, long = tmp_path / "short", tmp_path / "long"
    assert submodel("train", *options, "--set", "train.rounds=2", "--out", short).returncode == 0
    extended = submodel("resume", short, "--set", "train.rounds=3")
    assert extended.returncode == 0, extended.stderr
    assert submodel("train", *options, "--set", "train.rounds=3", "--out", long).returncode == 0
    assert hash_in(short) == hash_in(long)
    assert [line["clients"] for line in RunFolder(short).metrics()] == [4, 4, 4]
