"""Exported models and adapters compute the function of the run's model without this package."""

from __future__ import annotations

import importlib
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from submodel.config import Config, parse
from submodel.config.setup import prepare
from submodel.core.errors import SubmodelError
from submodel.data import digits
from submodel.model.zoo import fold_adapters, make_model
from submodel.runs.export import trained_module, trained_state
from submodel.runs.loop import RunFolder, run_rounds
from submodel.runs.open import Run
from submodel.runs.training import Training
from tests.support.commands import Command

pytestmark = pytest.mark.slow


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
    with pytest.raises(SubmodelError, match="submodel resume"):
        Run(unfinished.path).export(1.0, "safetensors", tmp_path / "out")
    content = run.model_file.read_bytes()
    try:
        run.model_file.write_bytes(content[:-4] + b"\0\0\0\1")
        with pytest.raises(SubmodelError, match=f"^{run.model_file}: .*hash"):
            Run(run.path).export(1.0, "safetensors", tmp_path / "out")
        run.model_file.write_bytes(content[:50])
        with pytest.raises(SubmodelError, match=f"^{run.model_file}: "):
            Run(run.path).export(1.0, "safetensors", tmp_path / "out")
    finally:
        run.model_file.write_bytes(content)
    assert submodel("export", tmp_path).returncode == 2


CHARACTERS = "abcdefgh \n"


def trained(config: Config, path: Path) -> Run:
    folder = RunFolder(path)
    folder.create(config)
    run_rounds(Training(config, prepare(config)), folder)
    return Run(path)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """Make a model with `save_pretrained`, and a run that adapted it."""
    from transformers import GPT2Config, GPT2LMHeadModel

    path = tmp_path_factory.mktemp("gpt2")
    (path / "text.txt").write_text(CHARACTERS * 60)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(CHARACTERS), **sizes))
    model.save_pretrained(path / "base")
    config: dict[str, Any] = {
        "model": {
            "name": "transformers:GPT2Config",
            "options": sizes,
            "weights": str(path / "base"),
            "adapters": "lora",
            "adapter_rank": 4,
        },
        "data": {"name": f"text:{path / 'text.txt'}", "tokens": "characters", "length": 16},
        "clients": {"count": 2, "per_round": 2, "capacities": [1, 0.5]},
        "local": {"optimiser": "adam", "lr": 0.05, "steps": 5},
        "train": {"rounds": 2},
    }
    return path / "base", trained(parse(config), path / "run")


def with_adapters(module: Any, folder: Path) -> Any:
    from peft import PeftModel  # imported here, as it takes two seconds

    return PeftModel.from_pretrained(module, folder)


def logits_of(module: nn.Module, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        returned = module.eval()(tokens)
    values: Tensor = returned if isinstance(returned, Tensor) else returned.logits
    return values


@pytest.mark.parametrize("capacity", ["1", "1/2"])
def test_peft_loads_what_the_command_writes(
    gpt2: tuple[Path, Run], tmp_path: Path, submodel: Command, capacity: str
) -> None:
    from transformers import GPT2LMHeadModel

    base, run = gpt2
    options = ("--format", "peft", "--capacity", capacity, "--out", tmp_path / "adapters")
    result = submodel("export", base.parent / "run", *options)
    assert result.returncode == 0, result.stderr
    assert "adapter_model.safetensors: capacity" in result.stdout
    plain = GPT2LMHeadModel.from_pretrained(base)
    tokens = torch.arange(16).view(1, 16) % len(CHARACTERS)
    before = logits_of(plain, tokens)
    adapted = with_adapters(plain, tmp_path / "adapters")
    share = 1.0 if capacity == "1" else 0.5
    expected = logits_of(run.submodel(share), tokens)
    torch.testing.assert_close(logits_of(adapted, tokens), expected, rtol=1e-5, atol=1e-5)
    assert float((expected - before).abs().max()) > 0.01  # they were trained
    about = json.loads((tmp_path / "adapters/adapter_config.json").read_text())
    assert (about["r"], about["lora_alpha"]) == ((4, 8.0) if share == 1 else (2, 4.0))
    assert about["base_model_name_or_path"] == str(base)
    # peft's merged weights equal our folded ones
    merged = adapted.merge_and_unload()
    folded = fold_adapters(run.submodel(share))
    torch.testing.assert_close(
        logits_of(merged, tokens), logits_of(folded, tokens), rtol=1e-5, atol=1e-5
    )


def test_for_transformers_adapters_are_folded_into_the_model(
    gpt2: tuple[Path, Run], tmp_path: Path
) -> None:
    from transformers import GPT2LMHeadModel

    _, run = gpt2
    run.export(1.0, "huggingface", tmp_path)
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path)
    tokens = torch.arange(16).view(1, 16) % len(CHARACTERS)
    expected = logits_of(run.submodel(1.0), tokens)
    torch.testing.assert_close(logits_of(loaded, tokens), expected, rtol=1e-4, atol=1e-4)


def test_layers_that_hold_different_numbers_of_ranks(tmp_path: Path) -> None:
    config = {
        "model": {"name": "mlp", "width": 8, "adapters": "lora", "adapter_layers": ["1", "3", "5"]},
        "data": {"examples": 60, "test_examples": 20},
        "clients": {"count": 2, "per_round": 2, "capacities": [0.5]},
        "scheme": {"name": "random", "sampling": "bernoulli"},
        "local": {"absent_labels": "keep"},
        "train": {"rounds": 2},
    }
    run = trained(parse(config), tmp_path / "run")
    small = run.submodel(0.5)
    path, _ = run.export(0.5, "peft", tmp_path / "adapters")
    about = json.loads((tmp_path / "adapters/adapter_config.json").read_text())
    assert about["rank_pattern"]
    base = make_model("mlp", (1, 8, 8), 10, width=8)
    plain_names = {n: n.replace(".base.", ".") for n in small.state_dict()}
    state = {plain_names[n]: t for n, t in small.state_dict().items() if plain_names[n] != n}
    base.load_state_dict(state)
    adapted = with_adapters(base, path.parent)
    x = torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(logits_of(adapted, x), logits_of(small, x), rtol=1e-5, atol=1e-5)


def test_a_run_without_adapters_has_none_to_write(tmp_path: Path) -> None:
    config = {"model": {"name": "mlp", "width": 8}, "train": {"rounds": 1}}
    run = trained(parse(config), tmp_path / "run")
    with pytest.raises(SubmodelError, match="--format peft: "):
        run.export(1.0, "peft", tmp_path / "out")
