"""Sub-models for devices: fitted beside the global model, exported, resumed bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import submodel
from submodel.algorithm import rounds
from submodel.algorithm.score import score
from submodel.cli.common import command_line
from submodel.core.errors import ConfigError, SubmodelError
from submodel.data.population import able_clients
from submodel.runs.checkpoint import model_sha256
from submodel.runs.fitted import FitFolder
from submodel.runs.loop import Interruption
from submodel.runs.open import Run

CONFIG: dict[str, Any] = {
    "clients": {"count": 20, "per_round": 5, "capacities": [1, "1/2", "1/4"]},
    "train": {"rounds": 4, "evaluate_every": 4, "checkpoint_every": 2},
    "local": {"lr": 0.05},
}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fit") / "run"
    data = submodel.data.limit(submodel.digits(), 400, 100)
    submodel.train(net(), data, CONFIG, out=path, progress=False)
    return path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Run:
    shutil.copytree(trained, tmp_path / "run")
    data = submodel.data.limit(submodel.digits(), 400, 100)
    return submodel.open(tmp_path / "run", model=net(), data=data)


def test_a_fitted_sub_model_is_better_handed_out_and_the_global_model_stays(run: Run) -> None:
    before = run.submodel("1/4")
    whole = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    (result,) = run.fit("1/4", rounds=6, progress=False)
    assert result["score"]["loss"] < result["score_before"]["loss"]
    assert result["cut"] == min(result["candidates"], key=lambda n: result["candidates"][n]["loss"])
    after = run.submodel(0.25)
    assert [tuple(p.shape) for p in after.parameters()] == [
        tuple(p.shape) for p in before.parameters()
    ]
    setup = run._training.setup
    test = score(after, setup.clients.dataset.test, setup)
    assert test.entries() == pytest.approx(result["score"])
    assert all(torch.equal(run.model.state_dict()[name], tensor) for name, tensor in whole.items())
    path, exported_score = run.export("1/4")
    assert exported_score is not None
    assert exported_score.entries() == pytest.approx(result["score"])
    assert json.loads((path.parent / "model.json").read_text())["fit"]["rounds"] == 6
    assert run.fitted_model("1/2") is None


def test_books_are_those_of_the_sub_model_alone(run: Run) -> None:
    (result,) = run.fit("1/4", rounds=2, cut="prefix", progress=False)
    values = 64 * 4 + 4 + 4 * 10 + 10
    lines = [json.loads(text) for text in _metrics(run).read_text().splitlines()]
    clients = sum(line["clients"] for line in lines)
    assert clients == 10  # of these 20 clients 18 train, and any of them can hold 1/4
    assert result["parameters"] == values
    assert result["units"] == {"1": [0, 1, 2, 3]}
    assert result["candidates"] == {}  # there was nothing to choose from
    assert result["bytes_up"] <= 4 * values * clients  # less for clients without some labels
    assert result["bytes_down"] == result["bytes_up"]


def _metrics(run: Run) -> Path:
    return run.folder.path / "fit" / "capacity-0.25" / "metrics.jsonl"


def test_a_fit_that_is_stopped_goes_on_to_the_same_bytes(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = run.fit("1/4", rounds=5, progress=False)
    (run.folder.path / "fit" / "capacity-0.25" / "start.json").unlink()
    steps: list[Any] = []
    real = rounds.step

    def step(*args: Any) -> Any:
        steps.append(args)
        if len(steps) == 4:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr("submodel.runs.fitting.step", step)
    with pytest.raises(Interruption, match=r"\b0\.25 .*\bround 3 of 5"):
        run.fit("1/4", rounds=5, progress=False)
    assert run.fitted_model("1/4") is None
    (again,) = run.fit("1/4", rounds=5, progress=False)
    assert len(steps) == 4 + 2
    same = ("fitted_sha256", "bytes_down", "bytes_up", "flops", "score", "units", "candidates")
    assert {name: again[name] for name in same} == {name: whole[name] for name in same}
    assert run.fit("1/4", rounds=5, progress=False) == [again]
    assert len(steps) == 6  # finished work is not repeated


def test_another_plan_begins_anew_and_another_global_model_has_no_fit(run: Run) -> None:
    (first,) = run.fit("1/4", rounds=1, progress=False)
    (second,) = run.fit("1/4", rounds=2, progress=False)
    assert (first["rounds"], second["rounds"]) == (1, 2)
    assert first["fitted_sha256"] != second["fitted_sha256"]
    folder = FitFolder(run.folder.path, 0.25)
    assert folder.result(second["model_sha256"]) == second
    assert folder.result("0" * 64) is None


@pytest.mark.parametrize(
    ("capacity", "options", "message"),
    [
        (1, {}, "^capacity: 1 "),
        ("1/4", {"rounds": 0}, "^rounds: 0 "),
        ("1/4", {"lr": -1.0}, "^lr: -1.0 "),
        ("1/4", {"cut": "best"}, "^cut: 'best' .*search, importance, prefix, scheme"),
        ([], {}, "^capacity: "),
        (2, {}, "^capacity: 2 "),
    ],
)
def test_mistakes_are_named(run: Run, capacity: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run.fit(capacity, progress=False, **options)


def test_damage_is_named_with_what_repairs_it(run: Run) -> None:
    run.fit("1/4", rounds=1, progress=False)
    path = run.folder.path / "fit" / "capacity-0.25" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(SubmodelError, match=rf"^{path}: .*submodel fit .* --capacity 0\.25"):
        run.export("1/4")


def test_only_those_who_can_hold_it_train_and_validators_never_do() -> None:
    whole = submodel.data.Population(60, 6, [1.0, 0.5, 0.25], [1, 1, 1], "fixed", seed=3)
    able = able_clients(whole, 0.5, keep_out=True)
    trained_clients = {client for round_ in range(40) for client in able.sample(round_)}
    expected = {c for c in range(60) if whole.capacity(c, 0) >= 0.5} - set(able.validators)
    assert trained_clients == expected
    assert able.validators
    assert all(whole.capacity(c, 0) >= 0.5 for c in able.validators)
    assert {len(able.sample(round_)) for round_ in range(40)} == {6}


@pytest.mark.slow
def test_the_command_says_how_good_sub_models_are(tmp_path: Path) -> None:
    path, call = str(tmp_path / "run"), CliRunner().invoke
    small = [
        "model.name=mlp",
        "model.width=8",
        "train.rounds=2",
        "data.examples=200",
        "data.test_examples=50",
    ]
    settings = [text for key in small for text in ("--set", key)]
    assert call(command_line, ["train", "--out", path, *settings]).exit_code == 0
    plain = call(command_line, ["export", path, "--capacity", "1/8"])
    assert f"'submodel fit {path} --capacity 0.125' trains this" in plain.stdout.replace("\n", " ")
    fitted = call(command_line, ["fit", path, "--capacity", "1/8", "--rounds", "3", "--json"])
    (result,) = json.loads(fitted.stdout)["submodels"]
    assert result["capacity"] == 0.125
    assert result["model_sha256"] == Run(path).summary["model_sha256"]  # type: ignore[index]
    table = call(command_line, ["fit", path, "--capacity", "1/8", "--rounds", "3"])
    assert "fitted sub-models" in table.stdout
    export = call(command_line, ["export", path, "--capacity", "1/8"])
    assert f"fitted, test accuracy {result['score']['accuracy']:.1%}" in export.stdout


def test_hash_of_a_fit_is_of_the_small_model(run: Run) -> None:
    (result,) = run.fit("1/2", rounds=1, progress=False)
    small = run.submodel("1/2").state_dict()
    assert result["fitted_sha256"] == model_sha256(small)
    assert np.all([len(units) == 8 for units in result["units"].values()])
