"""Runs that start with weights of a file, ours or of Hugging Face, or errors."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.model.build import tensors_of
from tests.support.common import tiny_images
from tests.support.tokens import LENGTH, VOCABULARY, tiny_text, token_loss

SIZES = {"n_layer": 2, "n_embd": 16, "n_head": 2}
SECTIONS: dict[str, Any] = {
    "data": {"partition": "iid"},
    "clients": {"count": 4, "per_round": 4, "capacities": [1]},
    "local": {"absent_labels": "keep"},
}


def gpt2(kind: str) -> Any:
    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(7)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, bos_token_id=0, eos_token_id=0, **SIZES
    )
    return getattr(transformers, kind)(config)


def module_with(weights: Path) -> nn.Module:
    model = {"name": "transformers:GPT2Config", "options": SIZES, "weights": str(weights)}
    config = parse({**SECTIONS, "model": model})
    return prepare(config, data=tiny_text(), loss=token_loss).module


def mlp_with(weights: Path, width: int = 8) -> nn.Module:
    model = {"name": "mlp", "width": width, "weights": weights}
    return prepare(parse({**SECTIONS, "model": model}), data=tiny_images()).module


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "GPT2Model"])
@pytest.mark.parametrize("shard", ["1GB", "4KB"])
def test_what_hugging_face_saved_is_loaded(tmp_path: Path, kind: str, shard: str) -> None:
    """In the base model, names lack the prefix; the head is tied to the embeddings."""
    theirs = gpt2(kind)
    theirs.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors").is_file() == (shard == "1GB")
    module: Any = module_with(tmp_path)
    tensors = tensors_of(getattr(theirs, "transformer", theirs))
    for name, tensor in tensors_of(module.transformer).items():
        assert torch.equal(tensor, tensors[name])
    assert module.lm_head.weight is module.transformer.wte.weight


def mlp_tensors(width: int = 8) -> dict[str, Tensor]:
    config = parse({**SECTIONS, "model": {"name": "mlp", "width": width}, "seed": 5})
    module = prepare(config, data=tiny_images()).module
    return {name: tensor.detach().clone() for name, tensor in tensors_of(module).items()}


def test_our_own_weights_are_loaded(tmp_path: Path) -> None:
    tensors = mlp_tensors()
    save_file(tensors, tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        module = mlp_with(path)
        assert all(
            torch.equal(tensor, tensors[name]) for name, tensor in tensors_of(module).items()
        )


def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    tensors = mlp_tensors()
    bias = tensors.pop("1.bias")
    save_file({**tensors, "other.bias": bias}, tmp_path / "model.safetensors")
    key = rf"model\.weights: {tmp_path}: "
    with pytest.raises(ConfigError, match=rf"^{key}.*: 1\.bias\n{key}.*: other\.bias$"):
        mlp_with(tmp_path)
    save_file(mlp_tensors(), tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"^model\.weights: .*1\.bias .*\(8,\) .*\(6,\)"):
        mlp_with(tmp_path, width=6)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^model\.weights: .*nowhere: "):
        mlp_with(tmp_path / "nowhere")
    index = tmp_path / "model.safetensors.index.json"
    for text in ("[]", "{", '{"weight_map": {"a": "../model.safetensors"}}'):
        index.write_text(text)
        with pytest.raises(ConfigError, match=r"^model\.weights: .*index\.json: "):
            mlp_with(tmp_path)


def test_a_model_in_python_has_its_own() -> None:
    config = parse({**SECTIONS, "model": {"weights": "somewhere"}})
    with pytest.raises(ConfigError, match=r"^model\.weights: .*Python"):
        prepare(config, nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), tiny_images())
