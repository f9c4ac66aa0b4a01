"""Opening a run: content of its folder, its model, export and resumption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import submodel as package
from submodel.config import parse, read
from submodel.core.errors import CheckpointError, ConfigError, SubmodelError
from submodel.runs.checkpoint import model_sha256
from submodel.runs.folder import RunFolder
from submodel.runs.loop import Interruption
from tests.support.commands import Command

pytestmark = pytest.mark.slow

CONFIG: dict[str, Any] = {
    "clients": {"count": 6, "per_round": 3},
    "local": {"absent_labels": "keep"},
    "train": {"rounds": 4, "evaluate_every": 2, "checkpoint_every": 10},
}


class Pair(nn.Module):
    """A model that returns a dictionary, like many others."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.relu(self.hidden(x.flatten(1)))
        return {"hidden": hidden, "logits": self.head(hidden)}


def logits(returned: dict[str, torch.Tensor]) -> torch.Tensor:
    return returned["logits"]


def smooth(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs, targets, label_smoothing=0.1)


def material() -> dict[str, Any]:
    torch.manual_seed(0)
    lists = [np.arange(start, 1200, 6) for start in range(6)]
    return {"model": Pair(), "data": package.digits(), "outputs": logits, "clients": lists}


def stop(line: dict[str, Any]) -> None:
    if line["round"] == 3:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, package.Result]:
    path = tmp_path_factory.mktemp("own") / "run"
    return path, package.train(**material(), config=CONFIG, out=path)


def test_a_run_says_what_it_is_and_how_it_went(finished: tuple[Path, package.Result]) -> None:
    path, result = finished
    run = package.open(path)
    assert run.finished
    assert run.config.clients.count == 6
    assert run.summary is not None
    assert run.summary["model_sha256"] == model_sha256(result.state.tensors)
    assert run.history == result.history
    rows = run.metrics
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert not any(isinstance(value, dict | list) for row in rows for value in row.values())
    last, line = rows[-1], result.history[-1]
    assert last["seconds.train"] == line["seconds"]["train"]
    assert last["coverage.units"] == line["coverage"]["units"]
    assert last["capacity_accuracy.0.5"] == line["capacity_accuracy"]["0.5"]
    assert last["refused"] == 0
    assert "4" in repr(run)


def test_the_model_of_a_run_is_the_trained_one(finished: tuple[Path, package.Result]) -> None:
    path, result = finished
    run = package.open(path, **material())
    x = package.digits().test.x
    for found, expected in (
        (run.model, result.model),
        (run.submodel("1/4"), result.submodel(0.25)),
    ):
        assert isinstance(found, Pair)  # everything that its forward returns
        assert torch.equal(found(x)["logits"], expected(x)["logits"])
        assert found(x).keys() == {"hidden", "logits"}


def test_an_own_model_is_exported(finished: tuple[Path, package.Result], tmp_path: Path) -> None:
    path, result = finished
    run = package.open(path, **material())
    file, score = run.export("1/2", "program", tmp_path)
    x = package.digits().test.x[:5]
    program: Any = torch.export.load(file).module()
    assert torch.allclose(program(x), result.submodel(0.5)(x)["logits"], atol=1e-6)
    assert score is not None
    assert score.accuracy == result.history[-1]["capacity_accuracy"]["0.5"]
    assert run.export()[0] == path / "export/capacity-1/model.safetensors"


def test_an_own_run_is_resumed_and_extended(
    finished: tuple[Path, package.Result], tmp_path: Path
) -> None:
    with pytest.raises(Interruption):
        package.train(**material(), config=CONFIG, out=tmp_path / "run", on_round=stop)
    run = package.open(tmp_path / "run", **material())
    assert not run.finished
    assert run.summary is None
    with pytest.raises(SubmodelError, match=r"/run: .*\.resume\(\)"):
        _ = run.model
    again = run.resume(progress=False)
    assert again is run
    assert run.finished
    assert run.summary is not None
    assert run.summary["model_sha256"] == model_sha256(finished[1].state.tensors)
    run.resume({"train": {"rounds": 5}}, progress=False)
    assert run.config.train.rounds == len(run.metrics) == 5
    assert run.resume(progress=False).finished  # nothing to do
    whole = package.train(
        **material(), config={**CONFIG, "train": {**CONFIG["train"], "rounds": 5}}
    )
    assert model_sha256(dict(run.model.named_parameters())) == model_sha256(
        dict(whole.model.named_parameters())
    )


def test_what_is_missing_or_another_run_s_is_said(
    finished: tuple[Path, package.Result], tmp_path: Path, submodel: Command
) -> None:
    path, _ = finished
    bare = package.open(path)
    for use in (lambda: bare.model, lambda: bare.submodel(1), bare.export):
        with pytest.raises(ConfigError, match=r"submodel\.open\(.*model=\.\.\.\)"):
            use()
    assert "submodel.open(" in submodel("export", path).stderr
    assert "model sha256" in submodel("show", path).stdout
    with pytest.raises(CheckpointError, match=r"outputs: logits .*none"):
        _ = package.open(path, model=Pair()).model
    without_data = package.open(path, model=Pair(), outputs=logits)
    assert isinstance(without_data.model, Pair)
    with pytest.raises(ConfigError, match=r"model=\.\.\., data=\.\.\."):
        package.open(path).resume({"train": {"rounds": 9}})
    with pytest.raises(ConfigError, match="data="):
        without_data.resume({"train": {"rounds": 9}})
    with pytest.raises(ConfigError, match=r"seed: 0 .*1"):
        bare.resume({"seed": 1})
    others = [*material()["clients"][:-1], np.arange(3)]
    for change, what in (
        ({"clients": others}, "clients: .*6"),
        ({"outputs": lambda returned: returned["logits"]}, "outputs: logits .*<lambda>"),
        ({"loss": smooth}, "loss: cross_entropy .*smooth"),
    ):
        with pytest.raises(CheckpointError, match=what):
            _ = package.open(path, **{**material(), **change}).model
    with pytest.raises(ConfigError, match=r"'own' .*submodel\.train\(clients="):
        _ = package.open(path, **{**material(), "clients": None}).model
    with pytest.raises(SubmodelError, match=f"^{tmp_path}: "):
        package.open(tmp_path)


def test_a_run_of_the_command_line_opens_without_anything(
    tmp_path: Path, submodel: Command
) -> None:
    short = ["--set", "model.width=4", "--set", "train.rounds=2", "--out", tmp_path / "run"]
    assert submodel("train", *short).returncode == 0
    run = package.open(tmp_path / "run")
    assert run.finished
    assert run.model(package.digits().test.x).shape == (355, 10)
    assert run.submodel("1/2") is not None
    with pytest.raises(ConfigError, match=r"^model: .*'cnn'"):
        package.open(tmp_path / "run", model=Pair())
    run.resume({"train": {"rounds": 3}}, progress=False)
    assert len(run.metrics) == 3
    with pytest.raises(ConfigError, match="submodel resume"):
        run.resume({"train": {"rounds": 4}, "engine": {"name": "torchrun"}})


def test_another_engine_takes_its_keys_along(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create(parse({"engine": {"name": "torchrun", "processes": 2}}))
    by_command = read(folder.config_file, ["engine.name=local"], of_run=True)
    in_python = package.open(folder.path).with_changes({"engine": {"name": "local"}})
    assert by_command == in_python
    assert in_python.engine.name == "local"
    with pytest.raises(ConfigError, match=r"engine\.processes"):
        package.open(folder.path).with_changes({"engine": {"name": "local", "processes": 2}})
    with pytest.raises(ConfigError, match=r"engine\.processes"):
        read(folder.config_file, ["engine.name=local", "engine.processes=2"], of_run=True)
