"""Exported models compute what the run's model computes, without this package."""

from __future__ import annotations

import importlib
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from submodel.config import parse
from submodel.data import digits
from submodel.errors import SubmodelError
from submodel.prepare.setup import prepare
from submodel.runs.export import trained_module, trained_state
from submodel.runs.loop import RunFolder, run_rounds
from submodel.runs.open import Run
from submodel.runs.training import Training
from tests.support.commands import Command


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    config = parse({"model": {"width": 8}, "train": {"rounds": 4}})
    folder = RunFolder(tmp_path_factory.mktemp("run") / "run")
    folder.create(config)
    run_rounds(Training(config, prepare(config)), folder)
    return folder


def logits(run: RunFolder, capacity: float) -> torch.Tensor:
    training = Training(run.config(), prepare(run.config()))
    module, _, _ = trained_module(training, trained_state(run, training), capacity)
    with torch.no_grad():
        values: torch.Tensor = module(digits().test.x)
    return values


def test_the_command_exports_with_the_measured_accuracy(run: RunFolder, submodel: Command) -> None:
    result = submodel("export", run.path, "--capacity", "1/4")
    assert result.returncode == 0, result.stderr
    assert "capacity 0.25, test accuracy" in result.stdout
    about = json.loads((run.path / "export/capacity-0.25/model.json").read_text())
    right = (logits(run, 0.25).argmax(1) == digits().test.y).float().mean()
    assert about["score"]["accuracy"] == pytest.approx(float(right))
    assert about["config"]["model"]["width"] == 8
    tensors = load_file(run.path / "export/capacity-0.25/model.safetensors")
    assert tensors["0.weight"].shape == (2, 1, 3, 3)
    assert tensors["1.running_mean"].shape == (2,)
    whole = RunFolder(run.path).summary() or {}
    _, measured = Run(run.path).export(1.0, "safetensors", run.path / "export/whole")
    assert measured is not None
    assert measured.accuracy == whole["test_accuracy"]


def test_the_weights_alone_rebuild_the_model(run: RunFolder, tmp_path: Path) -> None:
    path, _ = Run(run.path).export(1.0, "safetensors", tmp_path)
    plain = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10),
    ).eval()  # fmt: skip
    missing = plain.load_state_dict(load_file(path), strict=False)
    assert [name for name in missing.missing_keys if "num_batches" not in name] == []
    assert missing.unexpected_keys == []
    with torch.no_grad():
        torch.testing.assert_close(plain(digits().test.x), logits(run, 1.0))


@pytest.mark.parametrize("capacity", [1.0, 0.5])
def test_a_program_runs_on_any_batch_size(run: RunFolder, tmp_path: Path, capacity: float) -> None:
    path, _ = Run(run.path).export(capacity, "program", tmp_path)
    program: Any = torch.export.load(path).module()
    torch.testing.assert_close(program(digits().test.x), logits(run, capacity))


def test_onnx_runs_elsewhere_and_says_nothing(
    run: RunFolder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runtime: Any = importlib.import_module("onnxruntime")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        path, _ = Run(run.path).export(0.5, "onnx", tmp_path)
    assert [str(warning.message) for warning in caught] == []
    assert capfd.readouterr() == ("", "")
    session = runtime.InferenceSession(path)
    name = session.get_inputs()[0].name
    (found,) = session.run(None, {name: digits().test.x.numpy()})
    # another runtime's kernels in float32
    torch.testing.assert_close(torch.from_numpy(found), logits(run, 0.5), rtol=1e-4, atol=1e-4)


def test_what_cannot_be_exported_is_said(run: RunFolder, tmp_path: Path, submodel: Command) -> None:
    config = parse({"model": {"width": 8}})
    unfinished = RunFolder(tmp_path / "unfinished")
    unfinished.create(config)
    with pytest.raises(SubmodelError, match="not finished"):
        Run(unfinished.path).export(1.0, "safetensors", tmp_path / "out")
    content = run.model_file.read_bytes()
    try:
        run.model_file.write_bytes(content[:-4] + b"\0\0\0\1")
        with pytest.raises(SubmodelError, match="does not match its hash"):
            Run(run.path).export(1.0, "safetensors", tmp_path / "out")
        run.model_file.write_bytes(content[:50])
        with pytest.raises(SubmodelError, match="cannot be read"):
            Run(run.path).export(1.0, "safetensors", tmp_path / "out")
    finally:
        run.model_file.write_bytes(content)
    assert submodel("export", tmp_path).returncode == 2
