"""Runs of models of transformers: by every command, and back into transformers by an export."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import submodel as package
from submodel.errors import SubmodelError
from submodel.model.axes import Axes, trace
from submodel.model.build import build_module
from submodel.model.capacity import prefix_cut
from submodel.runs.pretrained_folder import write_pretrained
from tests.support.commands import Command
from tests.support.text import folder_of

WORDS = ["the", "whale", "rose", "and", "the", "men", "cried", "and", "the", "sea", "ran", "on"]
CONFIG = """
name = "pretrained"
[data]
name = "text:{text}"
tokens = "{tokens}"
length = 8
{keys}
[model]
name = "transformers:{kind}"
[model.options]
{options}
[clients]
capacities = [1, 0.5, 0.25]
[local]
epochs = 1
[train]
rounds = {rounds}
"""
GPT2 = "n_embd = 16\nn_head = 2\nn_layer = 1"
LLAMA = """hidden_size = 16
intermediate_size = 24
num_attention_heads = 2
num_key_value_heads = 1
num_hidden_layers = 1"""


def written_config(
    folder: Path,
    kind: str = "GPT2Config",
    options: str = GPT2,
    tokens: str = "bpe",
    rounds: int = 2,
) -> Path:
    texts = {
        f"{client}.txt": " ".join(WORDS[(client * i) % len(WORDS)] for i in range(1, 90))
        for client in (1, 2, 3)
    }
    text = folder_of(folder / "text", texts)
    keys = "vocabulary = 270" if tokens == "bpe" else ""
    path = folder / "config.toml"
    path.write_text(
        CONFIG.format(
            text=text, kind=kind, options=options, tokens=tokens, keys=keys, rounds=rounds
        )
    )
    return path


@pytest.fixture(scope="module")
def transformers() -> Any:
    return importlib.import_module("transformers")


def test_every_command_takes_a_config_class(
    tmp_path: Path, submodel: Command, transformers: Any
) -> None:
    config, run = written_config(tmp_path), tmp_path / "run"
    cost = submodel("cost", config)
    assert "0.25" in cost.stdout, cost.stderr
    plan = submodel("plan", config, "--memory", "1GB")
    assert plan.stdout.startswith("capacity 1 fits memory 1 G"), plan.stderr
    sizes = [word for key in GPT2.split("\n") for word in ("--set", key.replace(" ", ""))]
    inspect = submodel("inspect", "transformers:GPT2Config", *sizes)
    assert "verified: permuting every axis" in inspect.stdout, inspect.stderr
    assert submodel("train", config, "--out", run).returncode == 0
    for capacity, width in (("1", 16), ("1/2", 8), ("1/4", 4)):
        exported = submodel("export", run, "--capacity", capacity, "--format", "huggingface")
        assert exported.returncode == 0, exported.stderr
        assert exported.stderr == ""
        folder = run / f"export/capacity-{width / 16:g}"
        assert exported.stdout.startswith(f"{folder}/model.safetensors: capacity {width / 16:g}")
    for capacity, width in (("1", 16), ("1/2", 8), ("1/4", 4)):
        folder = run / f"export/capacity-{width / 16:g}"
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        assert model.config.n_embd == width
        ours: Any = package.open(run).submodel(capacity)
        tokeniser = transformers.AutoTokenizer.from_pretrained(folder)
        tokens = tokeniser("the sea", return_tensors="pt")["input_ids"]
        assert tokeniser.decode(tokens[0]) == "the sea"
        with torch.no_grad():
            torch.testing.assert_close(model(tokens).logits, ours(tokens).logits)
        assert model.generate(tokens, max_new_tokens=2, do_sample=False).shape[1] > tokens.shape[1]
        assert not list(folder.glob(".partial*"))
    assert submodel("resume", run, "--set", "train.rounds=3").returncode == 0


def test_a_llama_in_the_middle_of_an_epoch(
    tmp_path: Path, submodel: Command, transformers: Any
) -> None:
    """After one round the windows have rolled on: frequencies are not the first ones."""
    config = written_config(tmp_path, "LlamaConfig", LLAMA, "bytes", rounds=1)
    run = tmp_path / "run"
    assert submodel("train", config, "--out", run).returncode == 0
    path, score = package.open(run).export("1/2", "huggingface", tmp_path / "out")
    model = transformers.LlamaForCausalLM.from_pretrained(path.parent)
    assert (model.config.hidden_size, model.config.head_dim) == (8, 4)
    assert model.config.rope_parameters["rope_type"] == "longrope"
    ours: Any = package.open(run).submodel("1/2")
    tokens = torch.tensor([list(b"the sea")])
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, ours(tokens).logits)
    assert not (path.parent / "tokenizer.json").exists()  # bytes are tokens by themselves
    assert score is not None
    assert json.loads((path.parent / "model.json").read_text())["score"]["loss"] == score.loss


def test_what_has_no_such_form_is_said(tmp_path: Path, submodel: Command) -> None:
    options = GPT2.replace("16", "24").replace("n_head = 2", "n_head = 4")  # heads of 6 units
    config, run = (
        written_config(tmp_path, options=options, tokens="bytes", rounds=1),
        tmp_path / "r",
    )
    assert submodel("train", config, "--out", run).returncode == 0
    refused = submodel("export", run, "--capacity", "1/4", "--format", "huggingface")
    assert refused.returncode == 2
    words = "error: export: format 'huggingface': no GPT2Config makes a model of the sub-model's"
    assert words in refused.stderr
    assert list((run / "export/capacity-0.25").iterdir()) == []
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4), torch.nn.Linear(4, 10))
    own = tmp_path / "own"
    package.train(net, package.digits(), {"train": {"rounds": 1}}, out=own)
    with pytest.raises(SubmodelError, match="is for models of transformers, not for a Sequential"):
        package.open(own, model=net, data=package.digits()).export(1, "huggingface")


WIDTH: dict[str, Any] = {"vocab_size": 40, "max_position_embeddings": 16, "use_cache": False}
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "experts, whose product knows no double precision": (
        "Qwen2MoeConfig", "Qwen2MoeForCausalLM",
        {"hidden_size": 32, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
         "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
         "num_experts": 4, "num_experts_per_tok": 2},
    ),
    "a scale of words that the classifier shares": (
        "BioGptConfig", "BioGptForCausalLM",
        {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
         "num_attention_heads": 4},
    ),
    "positions that the library does not save": (
        "MarianConfig", "MarianMTModel",
        {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 56,
         "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1},
    ),
    "positions that a config computes": (
        "XGLMConfig", "XGLMForCausalLM",
        {"d_model": 32, "ffn_dim": 48, "num_layers": 1, "attention_heads": 4},
    ),
}  # fmt: skip


def architecture(case: str) -> tuple[nn.Module, dict[str, torch.Tensor], Axes]:
    library: Any = importlib.import_module("transformers")
    config, kind, options = ARCHITECTURES[case]
    torch.manual_seed(3)
    model = getattr(library, kind)(getattr(library, config)(**WIDTH, **options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # so that attention is far from uniform
    example = {"input_ids": torch.randint(2, 40, (2, 7))}
    if kind == "MarianMTModel":
        example["decoder_input_ids"] = torch.randint(2, 40, (2, 5))
    return model, example, trace(model, example, outputs=lambda result: result.logits)


@pytest.mark.parametrize("case", ARCHITECTURES)
@pytest.mark.parametrize("share", [0.5, 1])
def test_sub_models_load_and_compute_the_same(case: str, share: float, tmp_path: Path) -> None:
    model, example, axes = architecture(case)
    small = build_module(model, prefix_cut(axes, share)).eval()
    if share < 1 and "a config computes" in case:
        with pytest.raises(SubmodelError, match=r"embed_positions\.weights is not saved"):
            write_pretrained(small, example, None, tmp_path)
        return
    write_pretrained(small, example, None, tmp_path)
    loaded: Any = type(model)
    loaded = loaded.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = small(**example).logits
        torch.testing.assert_close(
            loaded(**example).logits, expected, rtol=0, atol=1e-5 * float(expected.abs().max())
        )


def test_a_model_that_the_library_cannot_run_is_refused(tmp_path: Path) -> None:
    """Its product in groups wants widths of 16 bytes; sub-models here pad."""
    model, example, axes = architecture("experts, whose product knows no double precision")
    small = build_module(model, prefix_cut(axes, 0.25)).eval()
    with pytest.raises(SubmodelError, match="loads the model and cannot run it"):
        write_pretrained(small, example, None, tmp_path)
    assert not any(tmp_path.iterdir())
